"""Every scheme keeps the contract: unbiased counts, ascending, never an index of weight 0, never past the end."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from parspec.smc import resampling
from parspec.smc.resampling import SCHEMES, keep_survivors
from parspec.smc.weights import normalise

ROUNDS = 2500


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


@pytest.mark.parametrize("name", ["systematic", "stratified", "multinomial"])
@given(parts=st.lists(st.integers(0, 50), min_size=1, max_size=20), seed=st.integers(0, 9999))
def test_against_a_walk_along_the_weights(name: str, parts: list[int], seed: int) -> None:
    parts = [*parts, 1024 - sum(parts)]  # sums of multiples of 1/1024 are exact
    uniforms = torch.rand(
        1 if name == "systematic" else 9, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).tolist()
    strata = [(i + uniforms[i % len(uniforms)]) / 9 for i in range(9)]
    points = sorted(uniforms) if name == "multinomial" else strata
    expected = []
    for point in points:
        index, passed = 0, parts[0]
        while passed <= point * 1024:
            index += 1
            passed += parts[index]
        expected.append(index)
    weights = torch.tensor(parts, dtype=torch.float64) / 1024
    assert SCHEMES[name](weights, 9, torch.Generator().manual_seed(seed)).tolist() == expected


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize(("dtype", "count"), [(torch.float32, 5), (torch.float64, 8)])
@pytest.mark.parametrize("raw", [[0.05, 0.3, 0.0, 0.4, 0.25], [0.0, 0.97, 0.01, 0.02, 0.0], [0.2] * 5])
def test_expected_copies(name: str, dtype: torch.dtype, count: int, raw: list[float]) -> None:
    weights = torch.tensor(raw, dtype=dtype)
    generator = torch.Generator().manual_seed(0)
    counts = torch.stack(
        [torch.bincount(SCHEMES[name](weights, count, generator), minlength=5) for _ in range(ROUNDS)]
    ).double()
    error = counts.std(0) / ROUNDS**0.5
    assert bool(((counts.mean(0) - count * weights.double()).abs() <= 4 * error + 1e-6).all())


@pytest.mark.parametrize("name", ["systematic", "residual"])
def test_low_variance_schemes_round_to_a_neighbour(name: str) -> None:
    weights = torch.tensor([0.13, 0.37, 0.5], dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    for _ in range(200):
        counts = torch.bincount(SCHEMES[name](weights, 10, generator), minlength=3)
        assert bool((counts >= (10 * weights).floor()).all())
        if name == "systematic":
            assert bool((counts <= (10 * weights).ceil()).all())


@pytest.mark.parametrize("name", ["systematic", "stratified", "residual"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_weights_keep_everyone(name: str, dtype: torch.dtype) -> None:
    """For every N: N * (1 / N) is below 1 in floats for 49 and others, which must not cost a certain copy."""
    generator = torch.Generator().manual_seed(0)
    for size in range(1, 260):
        ancestors = SCHEMES[name](normalise(torch.zeros(size, dtype=dtype)), size, generator)
        assert torch.equal(ancestors, torch.arange(size)), size


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("extreme", [0.0, math.nextafter(1.0, 0.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_extreme_uniforms_stay_in_the_support(
    name: str, extreme: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(M - 1 + u) / M rounds up to 1 for the largest u: the point lies on the end itself."""
    monkeypatch.setattr(
        resampling, "_uniforms", lambda count, generator: torch.full((count,), extreme, dtype=torch.float64)
    )
    for inner in ([1.0], [0.3, 0.0, 0.7], [1 - 1e-7, 1e-7], [0.1] * 10, [1e-30, 1.0, 1e-30]):
        weights = torch.tensor([0.0, 0.0, *inner, 0.0, 0.0], dtype=dtype)
        for count in (1, 3, 10, 1000):
            ancestors = SCHEMES[name](weights, count, torch.Generator())
            assert bool((weights[ancestors] > 0).all())


@pytest.mark.parametrize("name", SCHEMES)
def test_float_rounding_cannot_leave_the_support(name: str) -> None:
    """Weights whose float32 sum is off, with zeros at both ends."""
    weights = torch.full((10_003,), 1 / 10_000, dtype=torch.float32)
    weights[[0, 1, -1]] = 0.0
    for seed in range(20):
        ancestors = SCHEMES[name](weights, 5000, torch.Generator().manual_seed(seed))
        assert int(ancestors.min()) >= 2
        assert int(ancestors.max()) <= 10_001


@pytest.mark.parametrize("name", SCHEMES)
def test_a_lone_positive_weight_takes_all(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    assert SCHEMES[name](torch.ones(1), 4, generator).tolist() == [0] * 4
    assert SCHEMES[name](torch.tensor([0.0, 0.0, 1.0, 0.0]), 4, generator).tolist() == [2] * 4


@pytest.mark.parametrize("name", SCHEMES)
def test_the_generator_alone_decides(name: str) -> None:
    weights = torch.rand(50, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    weights = weights / weights.sum()
    drawn = []
    for seed in (1, 1, 2):
        torch.rand(1)  # the global state is not used
        drawn.append(SCHEMES[name](weights, 50, torch.Generator().manual_seed(seed)).tolist())
    assert drawn[0] == drawn[1] != drawn[2]


@given(ancestors=st.integers(1, 9).flatmap(lambda n: st.lists(st.integers(0, n - 1), min_size=n, max_size=n)))
def test_survivors_keep_their_rows(ancestors: list[int]) -> None:
    result = keep_survivors(torch.tensor(ancestors)).tolist()
    assert sorted(result) == sorted(ancestors)
    assert all(result[i] == i for i in set(ancestors))
