"""The estimate of chi2 against its exact value."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from parspec.smc.diagnostics import chi2_estimate, interval


def test_the_estimate_approaches_chi2() -> None:
    """Mean of N / ESS over many populations drawn from q, against 1 + chi2(p || q) = sum p^2 / q."""
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    q = torch.tensor([0.3, 0.3, 0.4], dtype=torch.float64)
    exact = float((p.square() / q).sum()) - 1
    drawn = torch.multinomial(q, 400 * 2000, replacement=True, generator=torch.Generator().manual_seed(0))
    estimates = torch.tensor([chi2_estimate(row) for row in (p / q).log()[drawn].view(400, 2000)])
    error = float(estimates.std()) / 20
    # 1e-3 = 2 / N for the bias of the estimate, which is of order 1 / N.
    assert float(estimates.mean()) == pytest.approx(exact, abs=4 * error + 1e-3)


@given(size=st.integers(1, 300), level=st.floats(-1e3, 1e3))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_weights_show_no_distance(dtype: torch.dtype, size: int, level: float) -> None:
    assert chi2_estimate(torch.full((size,), level, dtype=dtype)) == 0.0


@given(log_weights=st.lists(st.floats(-(2**-10), 2**-10, width=32), min_size=1, max_size=50))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_estimate_is_never_negative(dtype: torch.dtype, log_weights: list[float]) -> None:
    assert chi2_estimate(torch.tensor(log_weights, dtype=dtype)) >= 0.0


def test_one_survivor_shows_the_most_that_can_be_seen() -> None:
    assert chi2_estimate(torch.tensor([-math.inf, 0.0, -math.inf, -math.inf])) == 3.0


def test_a_dead_population_is_infinitely_far() -> None:
    described = interval(3, torch.full((4,), -math.inf))
    assert (described.ess, described.chi2, described.error_scale) == (0.0, math.inf, math.inf)


def test_an_interval_describes_its_weights() -> None:
    described = interval(7, torch.log(torch.tensor([0.5, 0.5, 1e-30, 1e-30], dtype=torch.float64)))
    assert described.end == 7
    assert described.ess == pytest.approx(2.0)
    assert described.chi2 == pytest.approx(1.0)
    assert described.error_scale == pytest.approx(0.25)
