"""Log-softmax and the nucleus against torch in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parspec.kernels.linear import available
from parspec.kernels.logits import draw, log_softmax, log_softmax_at, nucleus_floor, serves

pytestmark = pytest.mark.skipif(not available(), reason="this machine has no kernels")
ROWS = st.tuples(st.integers(1, 4), st.integers(1, 50) | st.sampled_from([4095, 4097, 9000]), st.integers(0, 2**32))


def draw_rows(shape: tuple[int, int, int], spread: float) -> torch.Tensor:
    rows, columns, seed = shape
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * spread


@settings(max_examples=80)
@given(ROWS, st.floats(0.05, 20), st.sampled_from([0.1, 3.0, 40.0]))
def test_log_softmax(shape: tuple[int, int, int], scale: float, spread: float) -> None:
    x = draw_rows(shape, spread)
    ours, largest = log_softmax(x, scale)
    expected = (x.double() * scale).log_softmax(-1)
    torch.testing.assert_close(ours.double(), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(largest, x.amax(-1, keepdim=True))


def test_log_softmax_of_part_of_the_columns_and_of_masked_ones() -> None:
    x = torch.randn(2, 3, 100)
    x[..., 5] = -torch.inf
    part = x[..., :77]
    assert serves(part)
    ours, _ = log_softmax(part, 1.0)
    torch.testing.assert_close(ours, part.log_softmax(-1), rtol=1e-5, atol=1e-5)
    assert (ours[..., 5] == -torch.inf).all()


@pytest.mark.parametrize("column", [0, 8, 20])
def test_nan_is_reported(column: int) -> None:
    x = torch.zeros(2, 21)
    x[1, column] = torch.nan
    _, largest = log_softmax(x, 1.0)
    assert largest.isnan().squeeze(-1).tolist() == [False, True]


@settings(max_examples=80)
@given(ROWS, st.floats(0.001, 0.999), st.sampled_from([0.1, 3.0, 40.0]))
def test_nucleus(shape: tuple[int, int, int], mass: float, spread: float) -> None:
    log_probs = draw_rows(shape, spread).log_softmax(-1)
    floors = nucleus_floor(log_probs, torch.full((shape[0], 1), mass))
    for row, floor in zip(log_probs.double(), floors.double().flatten(), strict=True):
        kept, without_last = row[row >= floor].exp().sum(), row[row > floor].exp().sum()
        assert kept >= mass - 1e-5
        assert without_last < mass + 1e-5


def test_nucleus_of_a_mass_that_rounding_cannot_reach() -> None:
    log_probs = torch.randn(1, 1000).log_softmax(-1)
    assert nucleus_floor(log_probs, torch.full((1, 1), 1.1)) == log_probs.min()


@settings(max_examples=60)
@given(ROWS, st.floats(0.05, 20))
def test_log_softmax_at_single_tokens(shape: tuple[int, int, int], scale: float) -> None:
    x = draw_rows(shape, 3.0)
    tokens = torch.randint(shape[1], (shape[0],), generator=torch.Generator().manual_seed(shape[2]))
    ours, largest = log_softmax_at(x, scale, tokens)
    everywhere, _ = log_softmax(x, scale)
    torch.testing.assert_close(ours, everywhere.gather(-1, tokens[:, None])[:, 0], rtol=1e-6, atol=1e-6)
    assert torch.equal(largest, x.amax(-1, keepdim=True))


@settings(max_examples=100)
@given(ROWS, st.floats(0, 1, exclude_max=True), st.booleans())
def test_draws_invert_the_cumulative_distribution(shape: tuple[int, int, int], u: float, gaps: bool) -> None:
    log_probs = draw_rows(shape, 3.0)
    if gaps:
        log_probs[:, ::3] = -torch.inf
        log_probs[:, -1] = 0.0
    tokens = draw(log_probs, torch.full((shape[0],), u, dtype=torch.float64))
    probs = log_probs.double().exp()
    cumulative = probs.cumsum(-1)
    for row, token in enumerate(tokens.tolist()):
        point, slack = u * cumulative[row, -1], 1e-5 * cumulative[row, -1]
        assert probs[row, token] > 0
        assert cumulative[row, token] > point - slack
        assert cumulative[row, token] - probs[row, token] <= point + slack


def test_draws_follow_the_distribution() -> None:
    probs = torch.tensor([0.5, 0.0, 0.3, 0.2])
    uniforms = torch.rand(40_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    counts = draw(probs.log().expand(40_000, 4).contiguous(), uniforms).bincount(minlength=4) / 40_000
    torch.testing.assert_close(counts, probs, atol=0.01, rtol=0)
    assert counts[1] == 0
