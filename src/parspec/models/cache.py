"""The key/value cache of one group: a trunk stored once, and a branch for each particle.

The trunk holds the prompt and every token all particles share for good; a branch holds one particle's tokens
since. All branches have the same length, because unfinished particles of a group always do, so positions are a
property of the cache, not of a row. Memory is reserved when the cache is made, never in the middle of a request.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from parspec.models.attention import attention_with_lse, causal_mask, merge


@dataclass(frozen=True)
class CacheShape:
    """What a model needs of a cache: the sizes of one position's keys and values."""

    num_layers: int
    num_heads: int
    """Key/value heads."""
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def position_bytes(self) -> int:
        """Bytes of keys and values of one position in all layers."""
        return 2 * self.num_layers * self.num_heads * self.head_dim * self.dtype.itemsize


class GroupCache:
    """Keys and values of one group under one model.

    Args:
        shape: Sizes of one position.
        num_particles: Branches, N.
        trunk_capacity: Positions the trunk can hold.
        branch_capacity: Positions each branch can hold; 0 for a group that only ever has a trunk.

    Attributes:
        trunk: Keys and values ``[2, layers, heads, positions, dim]``.
        branches: Keys and values ``[2, layers, particles, heads, positions, dim]``.
        trunk_length: Positions of the trunk in use.
        branch_length: Positions of each branch in use.
    """

    def __init__(self, shape: CacheShape, num_particles: int, trunk_capacity: int, branch_capacity: int) -> None:
        self.shape = shape
        self.num_particles = num_particles
        self.trunk_length = 0
        self.branch_length = 0
        layers, heads, dim = shape.num_layers, shape.num_heads, shape.head_dim
        new = partial(torch.empty, dtype=shape.dtype, device=shape.device)
        self.trunk: Tensor = new(2, layers, heads, trunk_capacity, dim)
        self.branches: Tensor = new(2, layers, num_particles, heads, branch_capacity, dim)

    @staticmethod
    def bytes_needed(shape: CacheShape, num_particles: int, trunk_capacity: int, branch_capacity: int) -> int:
        """Bytes a cache of these sizes reserves."""
        return shape.position_bytes * (trunk_capacity + num_particles * branch_capacity)

    @property
    def length(self) -> int:
        """Positions each unfinished particle has in the cache, trunk and branch together."""
        return self.trunk_length + self.branch_length

    @property
    def trunk_capacity(self) -> int:
        """Positions the trunk can hold."""
        return int(self.trunk.shape[-2])

    @property
    def branch_capacity(self) -> int:
        """Positions each branch can hold."""
        return int(self.branches.shape[-2])

    def check_room(self, num_new: int, into_trunk: bool) -> None:
        """Assert that num_new more positions fit; a failure is a bug in the caller's reservation."""
        used, capacity = (
            (self.trunk_length, self.trunk_capacity) if into_trunk else (self.branch_length, self.branch_capacity)
        )
        assert used + num_new <= capacity, f"cache overrun: {used} + {num_new} > {capacity} ({into_trunk=})"
        assert not (into_trunk and self.branch_length), "the trunk can only grow while all branches are empty"

    def advance(self, num_new: int, into_trunk: bool) -> None:
        """Count num_new positions, already written by every layer's attend, as part of the cache."""
        if into_trunk:
            self.trunk_length += num_new
        else:
            self.branch_length += num_new

    def attend_branches(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Write new keys and values behind the first R branches and attend over trunk and branch, exactly.

        Args:
            layer: Layer index.
            query: ``[R, T, Hq, D]``, the T new positions of R particles.
            key: ``[R, T, H, D]``; value likewise.
            value: See key.
            scale: Factor on the scores.

        Returns:
            ``[R, T, Hq, D]``.
        """
        rows, num_new, num_query_heads, dim = query.shape
        heads = self.shape.num_heads
        repeats = num_query_heads // heads
        start, end = self.branch_length, self.branch_length + num_new
        self.branches[0, layer, :rows, :, start:end] = key.transpose(1, 2)
        self.branches[1, layer, :rows, :, start:end] = value.transpose(1, 2)

        # [R, H, repeats * T, D]: the query heads of a key head side by side, so that no key is ever repeated.
        grouped = query.view(rows, num_new, heads, repeats, dim).permute(0, 2, 3, 1, 4)
        output, lse = attention_with_lse(
            grouped.reshape(rows, heads, repeats * num_new, dim),
            self.branches[0, layer, :rows, :, :end],
            self.branches[1, layer, :rows, :, :end],
            scale,
            causal_mask(num_new, end, repeats, query.device),
        )
        if self.trunk_length:
            # [1, H, R * repeats * T, D]: all particles' queries against the one copy of the trunk.
            trunk_output, trunk_lse = attention_with_lse(
                grouped.transpose(0, 1).reshape(1, heads, rows * repeats * num_new, dim),
                self.trunk[0, layer, None, :, : self.trunk_length],
                self.trunk[1, layer, None, :, : self.trunk_length],
                scale,
            )
            output = merge(
                trunk_output.view(heads, rows, repeats * num_new, dim).transpose(0, 1),
                trunk_lse.view(heads, rows, repeats * num_new).transpose(0, 1),
                output,
                lse,
            )
        output = output.reshape(rows, heads, repeats, num_new, dim).permute(0, 3, 1, 2, 4)
        return output.reshape(rows, num_new, num_query_heads, dim)

    def attend_trunk(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Write new keys and values at the end of the trunk and attend over it, causally.

        Args:
            layer: Layer index.
            query: ``[1, T, Hq, D]``, the T new positions.
            key: ``[1, T, H, D]``; value likewise.
            value: See key.
            scale: Factor on the scores.

        Returns:
            ``[1, T, Hq, D]``.
        """
        _, num_new, num_query_heads, dim = query.shape
        start, end = self.trunk_length, self.trunk_length + num_new
        self.trunk[0, layer, :, start:end] = key[0].transpose(0, 1)
        self.trunk[1, layer, :, start:end] = value[0].transpose(0, 1)
        keys, values = self.trunk[0, layer, None, :, :end], self.trunk[1, layer, None, :, :end]
        if start == 0:
            output = torch.nn.functional.scaled_dot_product_attention(
                query.transpose(1, 2), keys, values, is_causal=True, scale=scale, enable_gqa=True
            )
            return output.transpose(1, 2)
        heads = self.shape.num_heads
        repeats = num_query_heads // heads
        grouped = query.view(num_new, heads, repeats, dim).permute(1, 2, 0, 3)
        output, _ = attention_with_lse(
            grouped.reshape(1, heads, repeats * num_new, dim),
            keys,
            values,
            scale,
            causal_mask(num_new, end, repeats, query.device),
        )
        return output.view(heads, repeats, num_new, dim).permute(2, 0, 1, 3).reshape(query.shape)

    def truncate(self, length: int) -> None:
        """Forget every position from ``length`` (trunk and branch together) on; the trunk is never shortened."""
        assert length >= self.trunk_length, "committed tokens cannot be dropped"
        self.branch_length = min(self.branch_length, length - self.trunk_length)

    def gather(self, ancestors: Tensor) -> None:
        """Make branch i a copy of branch ``ancestors[i]``; rows that are their own ancestor are not touched.

        Args:
            ancestors: ``[N]`` int64.
        """
        if not self.branch_length:
            return
        moved = (ancestors != torch.arange(len(ancestors), device=ancestors.device)).nonzero()[:, 0]
        if len(moved):
            used = self.branches[..., : self.branch_length, :]
            used[:, :, moved] = used[:, :, ancestors[moved]]

    def commit(self, length: int, row: int = 0) -> None:
        """Move what all branches share, up to ``length`` positions in all, from ``row``'s branch to the trunk.

        Positions the cache has not seen yet are left for a later commit.
        """
        count = min(length, self.length) - self.trunk_length
        if count <= 0:
            return
        end = self.trunk_length + count
        assert end <= self.trunk_capacity, "the trunk's reservation is too small"
        self.trunk[..., self.trunk_length : end, :] = self.branches[:, :, row, :, :count]
        kept = self.branch_length - count
        if kept:
            self.branches[..., :kept, :] = self.branches[..., count : self.branch_length, :].clone()
        self.trunk_length, self.branch_length = end, kept
