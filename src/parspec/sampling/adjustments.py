"""What a request does to logits before they become a distribution, from each particle's own answer so far.

In the order and with the meaning of vLLM: allowed tokens, bad words, min_tokens, logit_bias, custom processors,
penalties. Every position of a block has a history of its own: the drafted tokens before it belong to it.
"""

from collections.abc import Collection, Iterable, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from parspec.errors import InvalidRequestError
from parspec.sampling.callables import call
from parspec.sampling.params import SamplingParams


class Adjustments:
    """A request's adjustments, made ready once.

    Args:
        params: The request's parameters.
        prompt: Its prompt.
        stop_ids: Tokens that end an answer.
        tokenizer: The model's, or None.
        vocab_size: Number of token ids.
        device: Where the logits are.

    Raises:
        InvalidRequestError: A token id is outside the vocabulary, bad words without a tokenizer, or nothing is left.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt: Sequence[int],
        stop_ids: Collection[int],
        tokenizer: PreTrainedTokenizerBase | None,
        vocab_size: int,
        device: torch.device,
    ) -> None:
        self._params = params
        self._penalised = (
            params.repetition_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0
        )
        read = prompt if params.repetition_penalty != 1 else []
        self._prompt_ids = torch.tensor(sorted(set(read)), dtype=torch.int64, device=device)
        self._stop_ids = torch.tensor(sorted(stop_ids), dtype=torch.int64, device=device)
        words = _spellings(params.bad_words or (), tokenizer)
        self._phrases = [
            torch.tensor([word for word in words if len(word) == length], device=device)
            for length in sorted({len(word) for word in words} - {1})
        ]
        self._bias = _bias(params, [word[0] for word in words if len(word) == 1], vocab_size, device)
        early = _bias_is_empty(self._bias, stop_ids if params.min_tokens else ())
        if early:
            raise InvalidRequestError(
                "allowed_token_ids, bad_words and min_tokens together leave no token to draw: allow more tokens",
                "allowed_token_ids",
            )
        self._can_exhaust = self._bias is not None or bool(self._phrases) or bool(params.logits_processors)

    @property
    def active(self) -> bool:
        """Whether there is anything to adjust."""
        return (
            self._penalised
            or self._bias is not None
            or bool(self._phrases)
            or self._params.min_tokens > 0
            or bool(self._params.logits_processors)
        )

    def __call__(self, logits: Tensor, answers: Tensor) -> Tensor:
        """Adjust the logits that follow the last T prefixes of the rows' answers.

        Args:
            logits: ``[R, T, V]``, left as they are.
            answers: ``[R, L]`` int64 on any device, L >= T - 1: ``logits[:, -1]`` follow all L tokens,
                ``logits[:, -2]`` all but the last, and so on.

        Returns:
            ``[R, T, V]`` float32.

        Raises:
            InvalidRequestError: Nothing is left to draw, or a logits processor returned something else than logits.
        """
        if not self.active or not logits.shape[1]:
            return logits
        answers = answers.to(logits.device)
        adjusted = logits.float() if self._bias is None else logits.float() + self._bias
        if adjusted.data_ptr() == logits.data_ptr():
            adjusted = adjusted.clone()
        # How many answer tokens stand before each position.
        counts = range(answers.shape[1] - logits.shape[1] + 1, answers.shape[1] + 1)
        for phrases in self._phrases:
            _forbid_phrases(adjusted, answers, phrases)
        for t, count in enumerate(counts):
            if count < self._params.min_tokens:
                adjusted[:, t].index_fill_(-1, self._stop_ids, -torch.inf)
        if self._params.logits_processors:
            self._run_processors(adjusted, answers, counts)
        if self._can_exhaust and not torch.isfinite(adjusted.amax(-1)).all():
            raise InvalidRequestError(
                f"nothing is left to draw within {counts[-1]} tokens: allowed_token_ids, bad_words, min_tokens and "
                "logits_processors rule out every token (or a processor returned NaN or +inf)"
            )
        if self._penalised:
            self._penalise(adjusted, answers, counts[0])
        return adjusted

    def _run_processors(self, logits: Tensor, answers: Tensor, counts: Sequence[int]) -> None:
        rows = answers.tolist()
        for processor in self._params.logits_processors:
            name = getattr(processor, "__name__", type(processor).__name__)
            for row, answer in enumerate(rows):
                for t, count in enumerate(counts):
                    returned = call(processor, f"logits processor {name}", answer[:count], logits[row, t].clone())
                    if not _are_logits(returned, logits.shape[-1]):
                        raise InvalidRequestError(
                            f"logits processor {name} returned {_described(returned)}: "
                            f"return a dense tensor of {logits.shape[-1]} real numbers",
                            "logits_processors",
                        )
                    logits[row, t] = returned

    def _penalise(self, logits: Tensor, answers: Tensor, first: int) -> None:
        """Penalise in place; only the columns of tokens that occur are touched."""
        ids = torch.cat([self._prompt_ids, answers.flatten()]).unique()
        if not len(ids):
            return
        columns = torch.searchsorted(ids, answers.contiguous())
        num_rows, num_positions = logits.shape[:2]
        counts = logits.new_zeros(num_rows, num_positions, len(ids))
        counts[:, 0].scatter_add_(1, columns[:, :first], logits.new_ones(1).expand(num_rows, first))
        counts[:, 1:].scatter_(2, columns[:, first:, None], 1.0)
        counts = counts.cumsum(1)
        seen, values = counts > 0, logits[..., ids]
        penalty = self._params.repetition_penalty
        if penalty != 1:
            read = torch.isin(ids, self._prompt_ids)
            values = torch.where(seen | read, torch.where(values > 0, values / penalty, values * penalty), values)
        values -= self._params.frequency_penalty * counts
        values -= self._params.presence_penalty * seen
        logits.index_copy_(-1, ids, values)


def _spellings(words: Iterable[str], tokenizer: PreTrainedTokenizerBase | None) -> list[list[int]]:
    """The token sequences to forbid: each word at the beginning of a text, and behind a space."""
    spellings: list[list[int]] = []
    for word in words:
        if tokenizer is None:
            raise InvalidRequestError("bad_words need a tokenizer, and the model has none", "bad_words")
        bare = list(tokenizer(word.lstrip(), add_special_tokens=False)["input_ids"])
        spaced = list(tokenizer(f" {word.lstrip()}", add_special_tokens=False)["input_ids"])
        spellings.append(bare)
        # Behind a space only where that makes another first token: else it is the same word after a token " ".
        if spaced[0] != bare[0] and len(spaced) == len(bare):
            spellings.append(spaced)
    return spellings


def _bias(params: SamplingParams, forbidden: Sequence[int], vocab_size: int, device: torch.device) -> Tensor | None:
    """What is added to all logits ``[V]``: logit_bias, and -inf for what may never be drawn; None for nothing."""
    allowed = params.allowed_token_ids
    biases = params.logit_bias or {}
    for name, ids in (("allowed_token_ids", allowed or ()), ("logit_bias", biases)):
        outside = next((index for index in ids if index >= vocab_size), None)
        if outside is not None:
            raise InvalidRequestError(
                f"{name} has {outside}, outside the vocabulary: use ids 0 to {vocab_size - 1}", name
            )
    if allowed is None and not biases and not forbidden:
        return None
    bias = torch.zeros(vocab_size) if allowed is None else torch.full((vocab_size,), -torch.inf)
    if allowed is not None:
        bias[list(allowed)] = 0.0
    bias[list(forbidden)] = -torch.inf
    for index, value in biases.items():
        bias[index] += value
    return bias.to(device)


def _bias_is_empty(bias: Tensor | None, excluded: Collection[int]) -> bool:
    """Whether nothing can be drawn under a bias, less some excluded tokens."""
    if bias is None:
        return False
    drawable = torch.isfinite(bias)
    drawable[list(excluded)] = False
    return not bool(drawable.any())


def _are_logits(returned: object, vocab_size: int) -> bool:
    return (
        isinstance(returned, Tensor)
        and returned.shape == (vocab_size,)
        and returned.layout == torch.strided
        and not returned.is_complex()
        and not returned.is_meta
    )


def _described(returned: object) -> str:
    if not isinstance(returned, Tensor):
        return f"a {type(returned).__name__}"
    return f"a tensor of shape {tuple(returned.shape)}, {returned.dtype}, {returned.layout}, on {returned.device}"


def _forbid_phrases(logits: Tensor, answers: Tensor, phrases: Tensor) -> None:
    """Rule out, in place, the last token of phrases ``[P, S]`` wherever the tokens before it have just been drawn."""
    start, num_positions = phrases.shape[1] - 1, logits.shape[1]
    first = answers.shape[1] - num_positions + 1  # answer tokens before the first position
    early = max(0, start - first)  # positions before which there is too little
    if early >= num_positions:
        return
    windows = answers[:, first + early - start :].unfold(1, start, 1)
    rows, positions, which = (windows[:, :, None] == phrases[:, :-1]).all(-1).nonzero(as_tuple=True)
    logits[rows, positions + early, phrases[which, -1]] = -torch.inf
