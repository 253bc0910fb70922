"""Packed linear layers against float64 products of the same weights."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parspec.kernels.linear import available, linear, pack, pack_rounded, quantise

pytestmark = pytest.mark.skipif(not available(), reason="this machine has no kernels")
FORMATS = ("int8", "bfloat16", "float32")


def make_layer(shape: tuple[int, int], form: str, generator: torch.Generator, *, bias: bool = True):
    """A packed layer, and its weight and bias in float64."""
    weight = torch.randn(*shape, generator=generator)
    offset = torch.randn(shape[0], generator=generator) if bias else None
    if form == "int8":
        levels, scale = quantise(weight)
        return pack(levels, scale, offset), levels.double() * scale.double()[:, None], offset
    stored = weight.to(getattr(torch, form))
    return pack(stored, None, offset), stored.double(), offset


@pytest.mark.parametrize("form", FORMATS)
@settings(max_examples=60)
@given(
    outputs=st.integers(1, 70),
    inputs=st.integers(1, 70) | st.sampled_from([2047, 2048, 2049, 4097]),
    rows=st.integers(1, 20),
    bias=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_any_shape(form: str, outputs: int, inputs: int, rows: int, bias: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    layer, weight, offset = make_layer((outputs, inputs), form, generator, bias=bias)
    x = torch.randn(rows, inputs, generator=generator)
    expected = x.double() @ weight.T + (0 if offset is None else offset.double())
    # int8 layers also round the activations, to 14 bits of the row's largest.
    step = x.abs().amax(1, keepdim=True).double() / 16382 if form == "int8" else torch.zeros(rows, 1).double()
    allowed = step * weight.abs().sum(1) + 2e-6 * (x.abs().double() @ weight.abs().T + 1)
    assert ((linear(x, layer) - expected).abs() <= allowed).all()


def test_leading_dimensions_and_no_rows() -> None:
    layer, weight, _ = make_layer((5, 3), "float32", torch.Generator().manual_seed(0), bias=False)
    x = torch.randn(2, 4, 3)
    torch.testing.assert_close(linear(x, layer), (x.double() @ weight.T).float())
    assert linear(torch.empty(0, 3), layer).shape == (0, 5)


def test_the_largest_sums_do_not_overflow() -> None:
    levels = torch.full((16, 4096), 127, dtype=torch.int8)
    x = torch.full((6, 4096), 1.0)
    layer = pack(levels, torch.full((16,), 1 / 127))
    torch.testing.assert_close(linear(x, layer), torch.full((6, 16), 4096.0))
    torch.testing.assert_close(linear(-x, layer), torch.full((6, 16), -4096.0))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_broken_row_is_seen_and_stays_alone(form: str, value: float) -> None:
    layer, _, _ = make_layer((20, 9), form, torch.Generator().manual_seed(0))
    x = torch.ones(3, 9)
    x[1, 8] = value
    y = linear(x, layer)
    assert not torch.isfinite(y[1]).any()
    assert torch.isfinite(y[[0, 2]]).all()


@pytest.mark.parametrize("scale", [0.0, 1e-38, 1e30])
def test_rows_of_extreme_size(scale: float) -> None:
    layer, weight, _ = make_layer((20, 9), "int8", torch.Generator().manual_seed(0), bias=False)
    x = torch.ones(1, 9) * scale
    expected = x.double() @ weight.T
    torch.testing.assert_close(linear(x, layer).double(), expected, rtol=1e-3, atol=1e-30)


def test_quantising_keeps_every_row_within_half_a_step() -> None:
    weight = torch.randn(40, 64) * torch.logspace(-6, 3, 40)[:, None]
    weight[7] = 0
    levels, scale = quantise(weight)
    assert levels.abs().max() <= 127
    assert ((levels * scale[:, None] - weight).abs() <= 0.5001 * scale[:, None]).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1), (16, 4), (37, 51), (64, 200)])
def test_rounding_while_packing_is_the_same_as_before(shape: tuple[int, int], dtype: torch.dtype) -> None:
    weight = (torch.randn(shape) * torch.logspace(-5, 2, shape[0])[:, None]).to(dtype)
    weight[0] = 0
    once, twice = pack_rounded(weight), pack(*quantise(weight))
    assert torch.equal(once.scale, twice.scale)
    assert torch.equal(once.data, twice.data)
