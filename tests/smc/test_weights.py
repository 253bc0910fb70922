"""Weights against plain arithmetic."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from parspec.smc.weights import ess, log_mean_exp, normalise

LOG_WEIGHT = st.one_of(st.floats(-40, 40), st.just(-math.inf))
ALIVE = st.lists(LOG_WEIGHT, min_size=1, max_size=12).filter(lambda w: max(w) > -math.inf)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(values=ALIVE, shift=st.floats(-500, 500))
def test_against_plain_arithmetic(dtype: torch.dtype, values: list[float], shift: float) -> None:
    log_weights = torch.tensor(values, dtype=dtype)
    weights = np.exp(log_weights.double().numpy())
    share = weights / weights.sum()
    tolerance = 1e-3 if dtype == torch.float32 else 1e-9
    np.testing.assert_allclose(normalise(log_weights), share, atol=tolerance)
    assert float(ess(log_weights)) == pytest.approx(1 / (share**2).sum(), rel=tolerance)
    assert float(log_mean_exp(log_weights)) == pytest.approx(math.log(weights.mean()), abs=10 * tolerance)
    # Weights are relative: a common factor changes nothing but the mean, and nothing overflows.
    assert float(ess(log_weights.double() + shift)) == pytest.approx(float(ess(log_weights.double())), rel=1e-9)
    assert float(log_mean_exp(log_weights.double() + shift)) == pytest.approx(
        float(log_mean_exp(log_weights.double())) + shift, abs=1e-6
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(values=ALIVE)
def test_the_number_format_is_kept_and_zero_stays_zero(dtype: torch.dtype, values: list[float]) -> None:
    log_weights = torch.tensor(values, dtype=dtype)
    weights = normalise(log_weights)
    assert weights.dtype == ess(log_weights).dtype == log_mean_exp(log_weights).dtype == dtype
    assert float(weights.sum()) == pytest.approx(1.0, abs=1e-6)
    assert bool((weights[log_weights == -math.inf] == 0).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(seed=st.integers(0, 9999), size=st.integers(1, 1024), spread=st.sampled_from([0.0, 1e-7, 1e-4, 1.0, 1e3]))
def test_ess_never_leaves_its_range(dtype: torch.dtype, seed: int, size: int, spread: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    sizes = ess(torch.randn(8, size, generator=generator, dtype=dtype) * spread)
    assert 1 <= float(sizes.min()) <= float(sizes.max()) <= size


def test_rows_are_independent() -> None:
    rows = torch.tensor([[0.0, 1.0, 2.0], [-math.inf] * 3, [-math.inf, 5.0, 5.0], [-1e5, -1e5, -1e5]])
    assert torch.equal(ess(rows), torch.stack([ess(row) for row in rows]))
    assert torch.equal(log_mean_exp(rows), torch.stack([log_mean_exp(row) for row in rows]))
    assert ess(rows)[1:].tolist() == [0.0, 2.0, 3.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_single_particle_has_all_the_weight(dtype: torch.dtype) -> None:
    alone = torch.tensor([-1234.5], dtype=dtype)
    assert normalise(alone).tolist() == [1.0]
    assert float(ess(alone)) == 1.0
    assert float(log_mean_exp(alone)) == -1234.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_all_dead_is_no_nan(dtype: torch.dtype) -> None:
    dead = torch.full((2, 3), -torch.inf, dtype=dtype)
    assert ess(dead).tolist() == [0.0, 0.0]
    assert log_mean_exp(dead).tolist() == [-math.inf, -math.inf]


@pytest.mark.parametrize("bad", [[-math.inf] * 3, [0.0, math.nan], [-math.inf, math.nan], [0.0, math.inf]])
def test_what_cannot_be_normalised_is_refused(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="cannot be normalised"):
        normalise(torch.tensor(bad))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nan_is_never_hidden(dtype: torch.dtype) -> None:
    """Least of all as a dead population, which the cut would quietly step back from."""
    broken = torch.tensor([[0.0, math.nan], [-math.inf, math.nan]], dtype=dtype)
    assert bool(ess(broken).isnan().all())
    assert bool(log_mean_exp(broken).isnan().all())
