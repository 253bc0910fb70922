"""What decoding needs of a model, and nothing more."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from parspec.models.cache import CacheShape, GroupCache


@dataclass(frozen=True)
class Forward:
    """One group's share of a forward pass: new tokens behind its trunk or behind its first R branches.

    Attributes:
        model: The model to run; requests of several groups for the same model share one pass.
        cache: The group's cache under that model.
        tokens: ``[R, T]`` int64; R = 1 when they go into the trunk.
        num_logits: How many of the T positions, counted from the last, need logits (0: none).
        into_trunk: Whether the tokens are final and go into the trunk.
    """

    model: "LanguageModel"
    cache: GroupCache
    tokens: Tensor
    num_logits: int
    into_trunk: bool = False


class LanguageModel(Protocol):
    """A causal language model that runs many groups' forward requests in one pass."""

    @property
    def cache_shape(self) -> CacheShape:
        """Sizes of a position in the cache."""

    @property
    def vocab_size(self) -> int:
        """Rows of the vocabulary head."""

    @property
    def max_positions(self) -> int:
        """Longest context in tokens."""

    def forward(self, requests: Sequence[Forward]) -> list[Tensor]:
        """Run all requests in one pass and advance their caches.

        Returns:
            For each request logits ``[R, num_logits, V]``, as the model computes them (unprocessed).
        """
