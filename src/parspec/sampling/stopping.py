"""Where an answer ends: at a stop token or the token that completes a stop string, whichever is first."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from parspec.errors import InvalidRequestError
from parspec.sampling.detokenize import REPLACEMENT, decode, find_stop
from parspec.sampling.params import SamplingParams

_MOST_BYTES = 4
"""Of a character, in UTF-8."""
_SLACK_TOKENS = 8
"""Tokens decoded before those a stop string can reach back to: a character may begin in them."""


class StopCondition:
    """Decides at which token a sequence ends.

    Args:
        params: The request's parameters.
        eos_ids: Token ids with which the model ends a text.
        tokenizer: The model's, or None.
        vocab_size: Number of token ids.

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
            self._silent = frozenset(i for i, t in tokenizer.added_tokens_decoder.items() if t.special)
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
                ends[i] = min(int(ends[i]), self._string_end(self._recent(history), new))
        return ends

    def trim(self, text: str) -> str:
        """The text before the first stop string."""
        end = find_stop(text, self.strings)
        return text if end is None else text[:end]

    def _recent(self, history: list[int]) -> list[int]:
        """The last tokens a stop string can have begun in; special tokens have no text and do not count."""
        recent: list[int] = []
        for token in reversed(history):
            if len(recent) == self._lookback:
                break
            if token not in self._silent:
                recent.append(token)
        return recent[::-1]

    def _string_end(self, recent: list[int], new: list[int]) -> int:
        """1-based position of the new token that completes a stop string, len(new) + 1 if none does."""
        assert self._tokenizer is not None
        text = decode(self._tokenizer, recent + new)
        if find_stop(text, self.strings) is None and REPLACEMENT not in text:
            return len(new) + 1
        # A character cut off at a border can hide a stop string: some tokenizers then give up a run of bytes.
        starts = range(min(_MOST_BYTES, len(recent) + 1)) if REPLACEMENT in text else range(1)
        for position in range(1, len(new) + 1):
            for start in starts:
                text = decode(self._tokenizer, recent[start:] + new[:position])
                if find_stop(text, self.strings) is not None:
                    return position
        return len(new) + 1
