"""Accuracies with intervals, and differences between settings on the same items.

Answers to one item by several seeds are not independent evidence: all intervals are over items, each by its mean.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Scores = Mapping[str, Sequence[float]]
"""By item, the score of each seed's answer, from 0 to 1."""

Sequences = Mapping[str, Sequence[Sequence[int]]]
"""By item, the token ids of each seed's answer."""

_PERMUTATIONS = 9999
_SHUFFLES = 999


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


def average(scores: Scores) -> Estimate:
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


def same_distribution(first: Scores, second: Scores) -> float:
    """p-value of two settings' numbers having the same distribution, on the items both have.

    The largest distance of the two distribution functions (Kolmogorov's), each item weighing the same, beside what it
    is when the answers to each item change places between the settings at random.

    Raises:
        ValueError: They have no item in common.
    """
    items = [item for item in first if item in second]
    if not items:
        raise ValueError("no items")
    values = np.array([value for item in items for value in (*first[item], *second[item])])
    sizes = [(len(first[item]), len(second[item])) for item in items]
    weights = np.concatenate([[1 / m] * m + [-1 / n] * n for m, n in sizes])
    owners = np.repeat(np.arange(len(items)), [m + n for m, n in sizes])
    order = np.argsort(values, kind="stable")
    last = np.append(np.diff(values[order]) > 0, True)  # the last of equal values
    rng = np.random.default_rng(0)

    def distance(shuffled: NDArray[np.float64]) -> float:
        return float(np.abs(np.cumsum(shuffled[order])[last]).max())

    observed = distance(weights)
    shuffles = (weights[np.lexsort((rng.random(len(weights)), owners))] for _ in range(_SHUFFLES))
    reached = sum(distance(shuffled) >= observed - 1e-9 for shuffled in shuffles)
    return (reached + 1) / (_SHUFFLES + 1)


class Distance(NamedTuple):
    """How far apart two settings' sequences are.

    Attributes:
        energy: Energy distance with the number of differing places as metric, mean over items; about 0 (it may fall
            below) for the same distribution.
        p_value: Of the same distribution, by sequences changing places between the settings at random.
    """

    energy: float
    p_value: float


def sequence_distance(first: Sequences, second: Sequences) -> Distance:
    """Two-sample test on short sequences, of Székely and Rizzo, within the items both settings have.

    Raises:
        ValueError: No item has two sequences from each.
    """
    items = [item for item in first if len(first[item]) > 1 and len(second.get(item, ())) > 1]
    if not items:
        raise ValueError("no items with several sequences")
    rng = np.random.default_rng(0)
    # By item the distances of all pairs, and how many of the sequences are the first setting's.
    tables = [(_places([*first[item], *second[item]]), len(first[item])) for item in items]

    def energy(orders: Sequence[NDArray[np.int64]]) -> float:
        return fmean(_energy(table[np.ix_(order, order)], m) for (table, m), order in zip(tables, orders, strict=True))

    observed = energy([np.arange(len(table)) for table, _ in tables])
    reached = sum(energy([rng.permutation(len(t)) for t, _ in tables]) >= observed - 1e-12 for _ in range(_SHUFFLES))
    return Distance(observed, (reached + 1) / (_SHUFFLES + 1))


def _places(sequences: Sequence[Sequence[int]]) -> NDArray[np.float64]:
    """In how many places each pair differs ``[R, R]``; a shorter one goes on with a mark of its end."""
    length = max(len(sequence) for sequence in sequences)
    padded = np.array([[*sequence, *[-1] * (length - len(sequence))] for sequence in sequences])
    places: NDArray[np.float64] = (padded[:, None] != padded[None]).sum(-1).astype(np.float64)
    return places


def _energy(table: NDArray[np.float64], m: int) -> float:
    """Unbiased: a sequence's distance from itself does not count."""
    n = len(table) - m
    within = table[:m, :m].sum() / (m * (m - 1)) + table[m:, m:].sum() / (n * (n - 1))
    return float(2 * table[:m, m:].mean() - within)


def _estimate(values: Sequence[float]) -> Estimate:
    if not values:
        raise ValueError("no items")
    mean = fmean(values)
    if len(values) == 1:
        return Estimate(mean, -np.inf, np.inf, 1)
    half = float(stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values)))
    return Estimate(mean, mean - half, mean + half, len(values))
