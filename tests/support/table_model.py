"""A language model given by a table: its distribution over all sequences can be enumerated exactly.

It keeps its whole state, the tokens each particle has seen, in the group's key/value cache (one layer, one head,
one dimension: the key of a position is its token id), so the cache's gather, truncate and commit are part of what
an exactness test exercises.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from parspec.models.cache import CacheShape, GroupCache
from parspec.models.interface import Forward
from parspec.models.loader import LoadedModel


class TableModel:
    """Next-token logits looked up by everything after the prompt's first token.

    Args:
        tables: ``tables[d]`` is ``[vocab_size ** d, vocab_size]``: logits after d tokens, oldest token first in
            the index's least significant digit.
    """

    def __init__(self, tables: list[Tensor], max_positions: int = 64) -> None:
        self.tables = tables
        self.vocab_size = tables[0].shape[1]
        self.max_positions = max_positions
        self.cache_shape = CacheShape(1, 1, 1, torch.float32, torch.device("cpu"))
        self.num_passes = 0

    @classmethod
    def random(cls, vocab_size: int, length: int, seed: int, sharpness: float = 1.0) -> "TableModel":
        """Independent normal logits for every history."""
        generator = torch.Generator().manual_seed(seed)
        return cls(
            [sharpness * torch.randn(vocab_size**depth, vocab_size, generator=generator) for depth in range(length + 1)]
        )

    def perturbed(self, seed: int, size: float) -> "TableModel":
        """A model whose logits differ from this one's by normal noise of the given size."""
        generator = torch.Generator().manual_seed(seed)
        return TableModel([table + size * torch.randn(table.shape, generator=generator) for table in self.tables])

    def forward(self, requests: Sequence[Forward]) -> list[Tensor]:
        """See LanguageModel."""
        self.num_passes += 1
        return [self._forward(request) for request in requests]

    def _forward(self, request: Forward) -> Tensor:
        cache, tokens = request.cache, request.tokens
        rows, num_new = tokens.shape
        cache.check_room(num_new, request.into_trunk)
        seen = self.history(cache, rows)
        if request.into_trunk:
            cache.trunk[0, 0, 0, cache.trunk_length : cache.trunk_length + num_new, 0] = tokens[0].float()
        else:
            cache.branches[0, 0, :rows, 0, cache.branch_length : cache.branch_length + num_new, 0] = tokens.float()
        cache.advance(num_new, request.into_trunk)
        whole = torch.cat([seen, tokens], dim=1)[:, 1:]
        digits = self.vocab_size ** torch.arange(whole.shape[1])
        codes = torch.cat([torch.zeros(rows, 1, dtype=torch.int64), (whole * digits).cumsum(1)], dim=1)
        depths = range(whole.shape[1] + 1 - request.num_logits, whole.shape[1] + 1)
        logits = [self._lookup(depth, codes[:, depth]) for depth in depths]
        return torch.stack(logits, dim=1) if logits else torch.empty(rows, 0, self.vocab_size)

    def _lookup(self, depth: int, codes: Tensor) -> Tensor:
        if depth >= len(self.tables):  # drafted past the longest sequence: any distribution will do
            return torch.zeros(len(codes), self.vocab_size)
        return self.tables[depth][codes]

    @staticmethod
    def history(cache: GroupCache, rows: int) -> Tensor:
        """Tokens ``[rows, length]`` the first ``rows`` particles have in the cache."""
        trunk = cache.trunk[0, 0, 0, : cache.trunk_length, 0].expand(rows, -1)
        branch = cache.branches[0, 0, :rows, 0, : cache.branch_length, 0]
        return torch.cat([trunk, branch], dim=1).long()


class TightModel(TableModel):
    """Has no memory for passes over caches of more than 8 positions, alone or in company."""

    def forward(self, requests: Sequence[Forward]) -> list[Tensor]:
        """See LanguageModel."""
        if any(request.cache.trunk_capacity > 8 for request in requests):
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes.")
        return super().forward(requests)


def loaded(model: TableModel, eos_ids: tuple[int, ...] = (0,)) -> LoadedModel:
    """The table as the engine takes it: no tokenizer, token 0 ends a text."""
    return LoadedModel("table", model, None, eos_ids)
