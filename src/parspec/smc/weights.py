"""Particle weights, kept as unnormalised natural logs.

Contract of the package: ``log_weights`` is a float tensor ``[N]`` (or ``[..., N]``), -inf for a particle of
weight 0. Sources: Chopin & Papaspiliopoulos, An Introduction to Sequential Monte Carlo (2020), chapter 8.
"""

import torch
from torch import Tensor


def normalise(log_weights: Tensor) -> Tensor:
    """Linear weights that sum to 1.

    Args:
        log_weights: ``[N]``.

    Returns:
        ``[N]``, in the same number format.

    Raises:
        ValueError: All weights are 0, or one is NaN or infinite.
    """
    largest = log_weights.max()
    if not torch.isfinite(largest):  # max propagates NaN
        raise ValueError("log-weights cannot be normalised: all are -inf, or one is NaN or +inf")
    return torch.softmax(log_weights, dim=-1)


def ess(log_weights: Tensor) -> Tensor:
    """Effective sample size ``(sum w)^2 / sum w^2`` (Kong, Liu & Wong 1994), in particles.

    Args:
        log_weights: ``[..., N]``.

    Returns:
        ``[...]``, between 1 and N; 0 where all weights are 0; NaN where one is NaN or infinite.
    """
    largest = log_weights.amax(-1, keepdim=True)
    weights = (log_weights - largest.nan_to_num(nan=torch.nan, neginf=0.0)).exp()
    squares = weights.square().sum(-1)
    # Rounding can leave the range by an ulp, which would make N / ESS - 1 negative.
    size = (weights.sum(-1).square() / squares).clamp(1, log_weights.shape[-1])
    return torch.where(squares == 0, 0.0, size)


def log_mean_exp(log_weights: Tensor) -> Tensor:
    """Log of the mean weight.

    Args:
        log_weights: ``[..., N]``.

    Returns:
        ``[...]``; -inf where all weights are 0.
    """
    largest = log_weights.amax(-1, keepdim=True).nan_to_num(nan=torch.nan, neginf=0.0)
    return (log_weights - largest).exp().mean(-1).log() + largest.squeeze(-1)
