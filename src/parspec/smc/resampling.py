"""Resampling schemes: which particles the next population descends from.

The contract of every scheme, stated once: ``ancestors = scheme(weights, count, generator)`` takes normalised
linear weights ``[N]``, and returns ``count`` indices (int64, ascending) such that index i is expected
``count * weights[i]`` times. An index of weight 0 is never returned.

Comparison of the schemes: Douc & Cappe, arXiv cs/0507025; Chopin & Papaspiliopoulos (2020), chapter 9.
"""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

Scheme = Callable[[Tensor, int, Generator], Tensor]


def systematic(weights: Tensor, count: int, generator: Generator) -> Tensor:
    """One uniform for all: points ``(i + u) / count`` on the cumulative weights (Carpenter et al. 1999)."""
    return _invert(weights, (torch.arange(count) + _uniforms(1, generator)) / count)


def stratified(weights: Tensor, count: int, generator: Generator) -> Tensor:
    """One uniform per stratum: points ``(i + u_i) / count`` (Kitagawa 1996)."""
    return _invert(weights, (torch.arange(count) + _uniforms(count, generator)) / count)


def multinomial(weights: Tensor, count: int, generator: Generator) -> Tensor:
    """Independent draws (Gordon, Salmond & Smith 1993)."""
    return _invert(weights, _uniforms(count, generator).sort().values)


def residual(weights: Tensor, count: int, generator: Generator) -> Tensor:
    """``floor(count * w)`` copies of each for certain, the rest by independent draws (Liu & Chen 1998)."""
    expected = weights.double() / weights.double().sum() * count
    # 49 * (1 / 49) is just below 1: without the margin rounding turns certain copies into lottery tickets.
    certain = (expected * (1 + 4 * torch.finfo(weights.dtype).eps)).floor()
    ancestors = torch.repeat_interleave(torch.arange(len(weights)), certain.long())[:count]
    missing = count - len(ancestors)
    if missing:
        rest = (expected - certain).clamp_min(0)
        # Rounding can leave nothing of the fractions although a copy is missing: then fall back on the weights.
        rest = rest if rest.sum() > 0 else expected
        ancestors = torch.cat([ancestors, multinomial(rest / rest.sum(), missing, generator)])
    return ancestors.sort().values


SCHEMES: dict[str, Scheme] = {
    "systematic": systematic,
    "stratified": stratified,
    "multinomial": multinomial,
    "residual": residual,
}


def keep_survivors(ancestors: Tensor) -> Tensor:
    """Reorder ancestors so that every survivor keeps its own row and only dead rows are overwritten.

    Args:
        ancestors: ``[N]`` int64 indices below N.

    Returns:
        ``[N]``, the same multiset, with ``result[i] == i`` for every i that occurs in it.
    """
    size = len(ancestors)
    copies = torch.bincount(ancestors, minlength=size)
    result = torch.arange(size)
    dead = copies == 0
    result[dead] = torch.repeat_interleave(result, (copies - 1).clamp_min(0))
    return result


def _uniforms(count: int, generator: Generator) -> Tensor:
    return torch.rand(count, generator=generator, dtype=torch.float64)


def _invert(weights: Tensor, points: Tensor) -> Tensor:
    """Indices at which the cumulative weights first exceed the points ``[count]`` in [0, 1)."""
    cumulative = weights.double().cumsum(0)
    # Scaling by the last value keeps every point below the end, whatever the rounding of the sum; right=True
    # steps over indices of weight 0, at the start too; the last index of positive weight ends the search.
    indices = torch.searchsorted(cumulative, points * cumulative[-1], right=True)
    return indices.clamp(max=int(weights.nonzero()[-1]))
