"""What becomes final, and that forcing it costs no bias."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from parspec.smc.commit import plan_commit
from parspec.smc.genealogy import common_prefix_length
from parspec.smc.resampling import SCHEMES, systematic
from tests.smc.ragged import RAGGED, matrix

# Particle 3 is finished and shorter than any depth that is forced; 0 and 4, and 1 and 2, are classes of two.
ROWS = [[0, 0, 1, 1], [0, 1, 1, 1], [0, 1, 2, 2], [1], [0, 0, 2, 0]]
ROUNDS = 2500


@given(
    rows=RAGGED,
    lag=st.one_of(st.none(), st.integers(1, 5)),
    log_weights=st.lists(st.one_of(st.floats(-5, 5), st.just(-math.inf)), min_size=6, max_size=6),
    seed=st.integers(0, 999),
)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_plan(scheme: str, rows: list[list[int]], lag: int | None, log_weights: list[float], seed: int) -> None:
    """Every promise at once, against loops over lists."""
    if max(log_weights[: len(rows)]) == -math.inf:
        log_weights[0] = 0.0
    tokens, lengths = matrix(rows)
    weights = torch.tensor(log_weights[: len(rows)], dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    before = generator.get_state()
    plan = plan_commit(tokens, lengths, weights, lag, generator, SCHEMES[scheme])

    shared, longest = common_prefix_length(tokens, lengths), max(map(len, rows))
    if lag is None or longest - shared <= lag:
        assert plan == (shared, None)
        assert torch.equal(generator.get_state(), before)
        return
    depth = longest - lag
    assert plan.ancestors is not None
    ancestors = plan.ancestors.tolist()
    assert len(ancestors) == len(rows)
    assert all(ancestors[i] == i for i in set(ancestors))
    assert all(log_weights[i] > -math.inf for i in ancestors)
    population = [rows[i] for i in ancestors]
    assert len({tuple(row[:depth]) for row in population}) == 1
    assert plan.length == common_prefix_length(*matrix(population))
    assert plan.length >= depth or all(row == population[0] and len(row) < depth for row in population)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    ("dtype", "weights"),
    [(torch.float64, [0.1, 0.3, 0.15, 0.25, 0.2]), (torch.float32, [0.02, 0.0, 0.9, 0.06, 0.02])],
)
def test_forced_commit_is_unbiased(scheme: str, dtype: torch.dtype, weights: list[float]) -> None:
    """A particle is expected N * w times, finished short ones included."""
    log_weights = torch.tensor(weights, dtype=dtype).log() - 3.0
    generator = torch.Generator().manual_seed(0)
    counts = []
    for _ in range(ROUNDS):
        plan = plan_commit(*matrix(ROWS), log_weights, 2, generator, SCHEMES[scheme])
        assert plan.ancestors is not None
        counts.append(torch.bincount(plan.ancestors, minlength=5))
    mean = torch.stack(counts).double()
    error = mean.std(0) / ROUNDS**0.5
    expected = 5 * torch.tensor(weights, dtype=torch.float64)
    assert bool(((mean.mean(0) - expected).abs() <= 4 * error).all())


def test_a_finished_short_particle_can_win_and_takes_all() -> None:
    lengths = set()
    for seed in range(60):
        plan = plan_commit(*matrix(ROWS), torch.zeros(5), 2, torch.Generator().manual_seed(seed), systematic)
        assert plan.ancestors is not None
        if 3 in plan.ancestors.tolist():
            assert plan.ancestors.tolist() == [3] * 5
            assert plan.length == 1
        else:
            assert plan.length >= 2
        lengths.add(plan.length)
    assert 1 in lengths
    assert 2 in lengths


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dead_particles_never_win(dtype: torch.dtype) -> None:
    tokens, lengths = matrix([[0, 0, 0], [1, 1, 1]])
    log_weights = torch.tensor([-math.inf, 0.0], dtype=dtype)
    for seed in range(50):
        plan = plan_commit(tokens, lengths, log_weights, 1, torch.Generator().manual_seed(seed), systematic)
        assert plan.ancestors is not None
        assert plan.ancestors.tolist() == [1, 1]
        assert plan.length == 3


def test_a_single_particle_is_final_at_once() -> None:
    plan = plan_commit(*matrix([[4, 5, 6]]), torch.zeros(1), 1, torch.Generator(), systematic)
    assert plan == (3, None)


def test_nothing_open_is_no_plan() -> None:
    tokens, lengths = torch.empty(3, 0, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)
    assert plan_commit(tokens, lengths, torch.zeros(3), 1, torch.Generator(), systematic) == (0, None)


def test_forcing_a_dead_population_is_refused() -> None:
    tokens, lengths = matrix([[0, 0, 0], [1, 1, 1]])
    with pytest.raises(ValueError, match="cannot be normalised"):
        plan_commit(tokens, lengths, torch.full((2,), -math.inf), 1, torch.Generator(), systematic)
