"""Where an answer ends: at a stop token or the token that completes a stop string, whichever is first."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from parspec.errors import InvalidRequestError
from parspec.sampling.detokenize import REPLACEMENT, Detokenizer, decode, find_stop
from parspec.sampling.params import SamplingParams

_MOST_BYTES = 4
"""Of a character, in UTF-8."""
_SLACK_TOKENS = 8
"""Tokens decoded before those a stop string can reach back to: a character may begin in them."""


class StopCondition:
    """Decides at which token a sequence ends, and what of it is text.

    Args:
        params: The request's parameters.
        eos_ids: Token ids with which the model ends a text.
        tokenizer: The model's, or None.
        vocab_size: Number of token ids.

    Attributes:
        strings: The stop strings.
        ids: Tokens that end an answer.

    Raises:
        InvalidRequestError: Stop strings without a tokenizer, or stop ids outside the vocabulary.
    """

    def __init__(
        self,
        params: SamplingParams,
        eos_ids: Sequence[int],
        tokenizer: PreTrainedTokenizerBase | None,
        vocab_size: int,
    ) -> None:
        self.strings: tuple[str, ...] = tuple(params.stop or ())
        self._params = params
        self._silent: frozenset[int] = frozenset()
        self._tokenizer = tokenizer
        extra = tuple(params.stop_token_ids or ())
        outside = next((i for i in extra if i >= vocab_size), None)
        if outside is not None:
            raise InvalidRequestError(
                f"stop_token_ids has {outside}, outside the vocabulary: use ids 0 to {vocab_size - 1}", "stop_token_ids"
            )
        ids = set(extra) | (set() if params.ignore_eos else set(eos_ids))
        if self.strings:
            if tokenizer is None:
                raise InvalidRequestError(
                    "stop strings need a tokenizer, and the model has none: use stop_token_ids", "stop"
                )
            # Special tokens are not part of the text, so one given as a string can only be met as a token.
            vocabulary = tokenizer.get_added_vocab()
            ids |= {vocabulary[s] for s in self.strings if s in vocabulary}
            if params.skip_special_tokens:
                self._silent = frozenset(i for i, t in tokenizer.added_tokens_decoder.items() if t.special)
        self.ids = frozenset(ids)
        self._ids = torch.tensor(sorted(ids), dtype=torch.int64)
        # A stop string of c characters has at most 4c bytes, and a token of text has at least one.
        self._lookback = _MOST_BYTES * max((len(s) for s in self.strings), default=0) + _SLACK_TOKENS

    def first_end(self, block: Tensor, histories: Callable[[], list[list[int]]]) -> Tensor:
        """Position at which each particle ends within a block of new tokens.

        Args:
            block: ``[N, T]`` int64, on the CPU; T may be 0.
            histories: Gives each particle's earlier answer tokens; called only if there are stop strings.

        Returns:
            ``[N]`` int64: 1 for the block's first token, T + 1 where the particle does not end.
        """
        size, count = block.shape
        if not count:
            return torch.ones(size, dtype=torch.int64)
        hits = torch.isin(block, self._ids)
        ends = torch.where(hits.any(1), hits.int().argmax(1) + 1, count + 1)
        if self.strings:
            for i, (history, new) in enumerate(zip(histories(), block.tolist(), strict=True)):
                ends[i] = min(int(ends[i]), self._string_end(history, new))
        return ends

    def detokenizer(self) -> Detokenizer | None:
        """What turns an answer's tokens into its text; None without a tokenizer."""
        if self._tokenizer is None:
            return None
        include_stop = self._params.include_stop_str_in_output
        return Detokenizer(
            self._tokenizer,
            self.strings,
            silent_ids=() if include_stop else self.ids,
            include_stop=include_stop,
            skip_special=self._params.skip_special_tokens,
            min_tokens=self._params.min_tokens,
        )

    def text(self, token_ids: Sequence[int]) -> str:
        """The text of an answer, up to the stop string if there is one; empty without a tokenizer."""
        detokenizer = self.detokenizer()
        return "" if detokenizer is None else detokenizer.append(token_ids) + detokenizer.flush()

    def _recent(self, history: list[int]) -> tuple[list[int], int]:
        """The last tokens a stop string can have begun in, and how many of them are too early for one to end in.

        Special tokens that have no text do not count.
        """
        recent: list[int] = []
        num_early = 0
        for index in range(len(history) - 1, -1, -1):
            if len(recent) == self._lookback:
                break
            if history[index] not in self._silent:
                recent.append(history[index])
                num_early += index < self._params.min_tokens
        return recent[::-1], num_early

    def _string_end(self, history: list[int], new: list[int]) -> int:
        """1-based position of the new token that completes a stop string, len(new) + 1 if none does."""
        new_early = min(max(0, self._params.min_tokens - len(history)), len(new))
        if new_early == len(new):
            return len(new) + 1
        recent, num_early = self._recent(history)
        num_early += new_early
        text = self._decode(recent + new)
        after = self._early_length(recent + new, num_early)
        if find_stop(text, self.strings, after) is None and REPLACEMENT not in text:
            return len(new) + 1
        # A character cut off at a border can hide a stop string: some tokenizers then give up a run of bytes.
        starts = range(min(_MOST_BYTES, len(recent) + 1)) if REPLACEMENT in text else range(1)
        for position in range(new_early + 1, len(new) + 1):
            for start in starts:
                tokens = recent[start:] + new[:position]
                after = self._early_length(tokens, max(0, num_early - start))
                if find_stop(self._decode(tokens), self.strings, after) is not None:
                    return position
        return len(new) + 1

    def _early_length(self, token_ids: list[int], num_early: int) -> int:
        """Length of the text of the first tokens, in which no stop string may end."""
        return len(self._decode(token_ids[:num_early]).rstrip(REPLACEMENT)) if num_early else 0

    def _decode(self, token_ids: list[int]) -> str:
        assert self._tokenizer is not None
        return decode(self._tokenizer, token_ids, self._params.skip_special_tokens)
