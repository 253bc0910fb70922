"""What becomes final, and that forcing it costs no bias."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from parspec.smc.commit import plan_commit
from parspec.smc.genealogy import common_prefix_length, compose, prefix_classes, unique_ancestors
from parspec.smc.resampling import SCHEMES, systematic

RAGGED = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=6)


def matrix(rows: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ragged rows as tokens and lengths; what lies beyond a row's end is noise."""
    width = max(map(len, rows))
    tokens = torch.tensor([row + [7 + i] * (width - len(row)) for i, row in enumerate(rows)])
    return tokens, torch.tensor([len(row) for row in rows])


@given(rows=RAGGED)
def test_common_prefix(rows: list[list[int]]) -> None:
    expected = 0
    while all(len(row) > expected for row in rows) and len({row[expected] for row in rows}) == 1:
        expected += 1
    assert common_prefix_length(*matrix(rows)) == expected


@given(rows=RAGGED, depth=st.integers(1, 6))
def test_prefix_classes(rows: list[list[int]], depth: int) -> None:
    tokens, lengths = matrix(rows)
    depth = min(depth, tokens.shape[1])
    classes = prefix_classes(tokens, lengths, depth).tolist()
    for i, a in enumerate(rows):
        for j, b in enumerate(rows):
            assert (classes[i] == classes[j]) == (a[:depth] == b[:depth])


def test_ancestors_of_ancestors() -> None:
    earlier, later = torch.tensor([0, 0, 2, 2]), torch.tensor([3, 1, 1, 0])
    assert compose(earlier, later).tolist() == [2, 0, 0, 0]
    assert unique_ancestors(compose(earlier, later)) == 2


@given(rows=RAGGED, lag=st.one_of(st.none(), st.integers(1, 5)), seed=st.integers(0, 999))
def test_a_plan_leaves_at_most_the_lag_open(rows: list[list[int]], lag: int | None, seed: int) -> None:
    tokens, lengths = matrix(rows)
    plan = plan_commit(tokens, lengths, torch.zeros(len(rows)), lag, torch.Generator().manual_seed(seed), systematic)
    population = rows if plan.ancestors is None else [rows[i] for i in plan.ancestors.tolist()]
    assert len({tuple(row[: plan.length]) for row in population}) == 1
    assert plan.length == common_prefix_length(*matrix(population))
    if lag is None:
        assert plan.ancestors is None
    else:
        open_ = max(map(len, population)) - plan.length
        assert open_ <= lag or len({tuple(row) for row in population}) == 1


@pytest.mark.parametrize("scheme", SCHEMES)
def test_forced_commit_is_unbiased(scheme: str) -> None:
    """A particle is expected N * w times, finished short ones included."""
    tokens, lengths = matrix([[0, 0, 1, 1], [0, 1, 1, 1], [0, 1, 2, 2], [1], [0, 0, 2, 0]])
    log_weights = torch.log(torch.tensor([0.1, 0.3, 0.15, 0.25, 0.2], dtype=torch.float64))
    generator = torch.Generator().manual_seed(0)
    counts = []
    for _ in range(4000):
        plan = plan_commit(tokens, lengths, log_weights, 2, generator, SCHEMES[scheme])
        assert plan.ancestors is not None
        counts.append(torch.bincount(plan.ancestors, minlength=5))
    mean = torch.stack(counts).double()
    error = mean.std(0) / 4000**0.5
    assert bool(((mean.mean(0) - 5 * log_weights.exp()).abs() < 4 * error).all())


def test_dead_particles_never_win() -> None:
    tokens, lengths = matrix([[0, 0, 0], [1, 1, 1]])
    log_weights = torch.tensor([-math.inf, 0.0])
    for seed in range(50):
        plan = plan_commit(tokens, lengths, log_weights, 1, torch.Generator().manual_seed(seed), systematic)
        assert plan.ancestors is not None
        assert plan.ancestors.tolist() == [1, 1]
        assert plan.length == 3
