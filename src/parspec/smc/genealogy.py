"""Who descends from whom, and what a population has in common."""

import torch
from torch import Tensor


def compose(earlier: Tensor, later: Tensor) -> Tensor:
    """Ancestors across two steps: where the particles after ``later`` were before ``earlier``.

    Args:
        earlier: ``[N]`` ancestors of the first step.
        later: ``[N]`` ancestors of the second.

    Returns:
        ``[N]``.
    """
    return earlier[later]


def unique_ancestors(origins: Tensor) -> int:
    """Number of distinct indices in ``[N]``: founders that still have descendants."""
    return len(torch.unique(origins))


def common_prefix_length(tokens: Tensor, lengths: Tensor) -> int:
    """Length of the longest prefix all particles share.

    Args:
        tokens: ``[N, T]`` int64; entries beyond a particle's length are ignored.
        lengths: ``[N]`` int64, at most T.
    """
    shortest = int(lengths.min())
    differs = (tokens[:, :shortest] != tokens[0, :shortest]).any(0).nonzero()
    return int(differs[0]) if len(differs) else shortest


def prefix_classes(tokens: Tensor, lengths: Tensor, depth: int) -> Tensor:
    """Which particles agree on their first ``depth`` tokens.

    A shorter particle is finished: its class is its whole sequence.

    Args:
        tokens: ``[N, T]`` int64, T >= depth; entries beyond a particle's length are ignored.
        lengths: ``[N]`` int64.
        depth: Tokens to compare.

    Returns:
        ``[N]`` int64 class numbers, equal exactly for particles of the same class.
    """
    if depth == 0:  # torch.unique refuses rows without columns
        return torch.zeros_like(lengths)
    keys = tokens[:, :depth].clone()
    keys[torch.arange(depth) >= lengths[:, None]] = -1
    classes: Tensor = torch.unique(keys, dim=0, return_inverse=True)[1]
    return classes
