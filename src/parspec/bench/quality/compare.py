"""Accuracies with intervals, and differences between settings on the same items.

Answers to one item by several seeds are not independent evidence: all intervals are over items, each by its mean.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np
from scipy import stats

Scores = Mapping[str, Sequence[float]]
"""By item, the score of each seed's answer, from 0 to 1."""

_PERMUTATIONS = 9999


class Estimate(NamedTuple):
    """A mean over items with its 95% interval (Student's t over the items' means).

    Attributes:
        mean: The estimate.
        low: Lower end.
        high: Upper end.
        num_items: Items it rests on.
    """

    mean: float
    low: float
    high: float
    num_items: int


class Difference(NamedTuple):
    """How much better one setting is than another on the items both have.

    Attributes:
        estimate: Mean difference, first less second, with its interval.
        p_value: Of no difference, by flipping the signs of the items' differences at random, two-sided.
    """

    estimate: Estimate
    p_value: float


def accuracy(scores: Scores) -> Estimate:
    """Mean score.

    Raises:
        ValueError: There are no items.
    """
    return _estimate([fmean(values) for values in scores.values()])


def difference(first: Scores, second: Scores) -> Difference:
    """Compare two settings on the items both have answered.

    Raises:
        ValueError: They have no item in common.
    """
    items = [item for item in first if item in second]
    deltas = np.array([fmean(first[item]) - fmean(second[item]) for item in items])
    estimate = _estimate(deltas.tolist())
    if not deltas.any():
        return Difference(estimate, 1.0)
    test = stats.permutation_test(
        (deltas,),
        lambda values, axis: np.mean(values, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=_PERMUTATIONS,
        rng=np.random.default_rng(0),
    )
    return Difference(estimate, float(test.pvalue))


def _estimate(values: Sequence[float]) -> Estimate:
    if not values:
        raise ValueError("no items")
    mean = fmean(values)
    if len(values) == 1:
        return Estimate(mean, -np.inf, np.inf, 1)
    half = float(stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values)))
    return Estimate(mean, mean - half, mean + half, len(values))
