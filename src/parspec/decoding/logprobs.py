"""Log-probabilities of tokens, as requests may ask for them beside the text."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class TokenLogProb:
    """A token of a text and what the target thought of it.

    Attributes:
        token_id: The token.
        log_prob: Its log-probability after the tokens before it.
        top: The most probable tokens at its place, as pairs of id and log-probability, best first.
    """

    token_id: int
    log_prob: float
    top: list[tuple[int, float]]


class Entries(NamedTuple):
    """Log-probabilities of a block of tokens, on the CPU.

    Attributes:
        own: ``[R, T]`` of the tokens themselves.
        top_ids: ``[R, T, k]`` the most probable tokens at each place, best first.
        top_values: ``[R, T, k]`` their log-probabilities.
    """

    own: Tensor
    top_ids: Tensor
    top_values: Tensor

    @classmethod
    def of(cls, log_probs: Tensor, tokens: Tensor, num_top: int) -> "Entries":
        """Look up tokens ``[R, T]`` in log-probabilities ``[R, T, V]``."""
        own = log_probs.gather(-1, tokens.to(log_probs.device)[..., None])[..., 0]
        top = log_probs.topk(min(num_top, log_probs.shape[-1]), dim=-1)
        return cls(own.cpu(), top.indices.cpu(), top.values.cpu())

    @classmethod
    def empty(cls, num_rows: int, length: int, num_top: int) -> "Entries":
        """Room for the entries of so many tokens."""
        block = num_rows, length, num_top
        return cls(torch.empty(num_rows, length), torch.empty(block, dtype=torch.int64), torch.empty(block))

    def cut(self, length: int) -> "Entries":
        """The first entries of every row."""
        return Entries(*(part[:, :length] for part in self))

    def row(self, index: int, token_ids: list[int], start: int = 0) -> list[TokenLogProb]:
        """One row as a list, from a place on, for the tokens that stand there."""
        places = slice(start, start + len(token_ids))
        own, ids, values = (part[index, places].tolist() for part in self)
        return [
            TokenLogProb(token, value, [pair for pair in zip(*top, strict=True) if pair[1] > -float("inf")])
            for token, value, *top in zip(token_ids, own, ids, values, strict=True)
        ]
