"""Every scheme keeps the contract: unbiased counts, ascending, never an index of weight 0, never past the end."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from parspec.smc.resampling import SCHEMES, keep_survivors

ROUNDS = 4000


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(raw=st.lists(st.one_of(st.just(0.0), st.floats(1e-12, 1.0)), min_size=1, max_size=20), seed=st.integers(0, 9999))
def test_the_contract(name: str, dtype: torch.dtype, raw: list[float], seed: int) -> None:
    if sum(raw) == 0:
        raw[0] = 1.0
    weights = torch.tensor(raw, dtype=dtype)
    weights = weights / weights.sum()
    generator = torch.Generator().manual_seed(seed)
    for count in (1, len(raw), 2 * len(raw) + 1):
        ancestors = SCHEMES[name](weights, count, generator)
        assert ancestors.dtype == torch.int64
        assert ancestors.shape == (count,)
        assert torch.equal(ancestors, ancestors.sort().values)
        assert 0 <= int(ancestors.min()) <= int(ancestors.max()) < len(raw)
        assert bool((weights[ancestors] > 0).all())


@pytest.mark.parametrize("name", SCHEMES)
def test_expected_copies(name: str) -> None:
    weights = torch.tensor([0.05, 0.3, 0.0, 0.4, 0.25], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    counts = torch.stack(
        [torch.bincount(SCHEMES[name](weights, 5, generator), minlength=5) for _ in range(ROUNDS)]
    ).double()
    error = counts.std(0) / ROUNDS**0.5
    assert bool(((counts.mean(0) - 5 * weights).abs() <= 4 * error + 1e-12).all())


@pytest.mark.parametrize("name", ["systematic", "residual"])
def test_low_variance_schemes_round_to_a_neighbour(name: str) -> None:
    weights = torch.tensor([0.13, 0.37, 0.5], dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    for _ in range(200):
        counts = torch.bincount(SCHEMES[name](weights, 10, generator), minlength=3)
        assert bool((counts >= (10 * weights).floor()).all())
        if name == "systematic":
            assert bool((counts <= (10 * weights).ceil()).all())


@pytest.mark.parametrize("name", SCHEMES)
def test_float_rounding_cannot_leave_the_support(name: str) -> None:
    """Weights whose float32 sum is off, with zeros at both ends."""
    weights = torch.full((10_003,), 1 / 10_000, dtype=torch.float32)
    weights[[0, 1, -1]] = 0.0
    for seed in range(20):
        ancestors = SCHEMES[name](weights, 5000, torch.Generator().manual_seed(seed))
        assert int(ancestors.min()) >= 2
        assert int(ancestors.max()) <= 10_001


@given(ancestors=st.lists(st.integers(0, 7), min_size=8, max_size=8))
def test_survivors_keep_their_rows(ancestors: list[int]) -> None:
    result = keep_survivors(torch.tensor(ancestors)).tolist()
    assert sorted(result) == sorted(ancestors)
    assert all(result[i] == i for i in set(ancestors))
