"""Weights against plain arithmetic."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from parspec.smc.diagnostics import chi2_estimate, interval
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
def test_all_dead_is_no_nan(dtype: torch.dtype) -> None:
    dead = torch.full((2, 3), -torch.inf, dtype=dtype)
    assert ess(dead).tolist() == [0.0, 0.0]
    assert log_mean_exp(dead).tolist() == [-math.inf, -math.inf]
    assert chi2_estimate(dead[0]) == math.inf


@pytest.mark.parametrize("bad", [[-math.inf] * 3, [0.0, math.nan], [0.0, math.inf]])
def test_what_cannot_be_normalised_is_refused(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="cannot be normalised"):
        normalise(torch.tensor(bad))


def test_nan_is_never_hidden() -> None:
    assert math.isnan(float(log_mean_exp(torch.tensor([0.0, math.nan]))))


def test_an_interval_describes_its_weights() -> None:
    described = interval(7, torch.log(torch.tensor([0.5, 0.5, 1e-30, 1e-30], dtype=torch.float64)))
    assert described.end == 7
    assert described.ess == pytest.approx(2.0)
    assert described.chi2 == pytest.approx(1.0)
    assert described.error_scale == pytest.approx(0.25)
