"""The cut against a loop that reads like the rule."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from parspec.smc.cut import choose_cut

VALUE = st.one_of(st.floats(-6, 6), st.just(-math.inf))
KAPPAS = [0.0, 0.25, 0.5, 1.0]
Block = tuple[list[float], list[list[float]]]


def by_the_rule(log_weights: list[float], increments: list[list[float]], kappa: float) -> int:
    weights = [math.exp(w) for w in log_weights]
    size = len(weights)
    for k in range(len(increments[0])):
        weights = [w * math.exp(row[k]) for w, row in zip(weights, increments, strict=True)]
        if max(weights) == 0:
            return k
        if sum(weights) ** 2 / sum(w * w for w in weights) < kappa * size:
            return k + 1
    return len(increments[0])


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    size, length = draw(st.integers(1, 6)), draw(st.integers(0, 5))
    log_weights = draw(st.lists(VALUE, min_size=size, max_size=size).filter(lambda w: max(w) > -math.inf))
    rows = draw(st.lists(st.lists(VALUE, min_size=length, max_size=length), min_size=size, max_size=size))
    return log_weights, rows


def tensors(block: Block, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    log_weights, rows = block
    return torch.tensor(log_weights, dtype=dtype), torch.tensor(rows, dtype=dtype).view(len(rows), -1)


@given(block=blocks(), kappa=st.sampled_from([*KAPPAS, 0.9]))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_against_the_rule(dtype: torch.dtype, block: Block, kappa: float) -> None:
    start, increments = tensors(block, dtype)
    cut = choose_cut(start, increments, kappa)
    assert cut.log_weights.dtype == dtype
    expected = by_the_rule(start.tolist(), increments.tolist(), kappa)
    if cut.position != expected:  # only where the size is within rounding of the threshold
        paths = torch.cat([start[:, None], increments], 1).double().cumsum(1).softmax(0)
        sizes = 1 / paths.square().sum(0)
        slack = 1e-9 if dtype == torch.float64 else 1e-4
        assert float((sizes - kappa * len(start)).abs().min()) < slack
    torch.testing.assert_close(cut.log_weights, start + increments[:, : cut.position].sum(1))


@given(block=blocks(), kappa=st.sampled_from(KAPPAS), seed=st.integers(0, 99))
def test_the_cut_depends_on_nothing_behind_it(block: Block, kappa: float, seed: int) -> None:
    """What makes it a stopping time. The way back from a dead population is the one exception: it looks one ahead."""
    start, increments = tensors(block)
    cut = choose_cut(start, increments, kappa)
    behind = start + increments[:, : cut.position + 1].sum(1)
    ahead = cut.position + int(bool((behind == -math.inf).all()))
    other = increments.clone()
    other[:, ahead:] = torch.randn(other[:, ahead:].shape, generator=torch.Generator().manual_seed(seed)).double()
    if cut.position < increments.shape[1]:
        changed = choose_cut(start, other, kappa)
        assert changed.position == cut.position
        assert torch.equal(changed.log_weights, cut.log_weights)


@pytest.mark.parametrize("sign", [1, -1])
def test_zero_keeps_everything(sign: int) -> None:
    increments = sign * torch.tensor([[9.0, 9.0], [-9.0, -9.0], [-math.inf * sign, 0.0]])
    assert choose_cut(torch.zeros(3), increments, 0.0).position == 2


@pytest.mark.parametrize("kappa", KAPPAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(size=st.integers(1, 64), step=st.floats(-50, 50))
def test_equal_weights_are_never_cut(dtype: torch.dtype, kappa: float, size: int, step: float) -> None:
    """At kappa = 1 too: q = p must not be taken apart by rounding."""
    increments = torch.full((size, 4), step, dtype=dtype)
    assert choose_cut(torch.zeros(size, dtype=dtype), increments, kappa).position == 4


def test_the_collapsing_token_itself_is_kept() -> None:
    increments = torch.tensor([[0.0, 9.0, 0.0], [0.0, -9.0, 0.0]])
    assert choose_cut(torch.zeros(2), increments, 0.6).position == 2


@pytest.mark.parametrize("kappa", KAPPAS)
def test_all_dead_goes_back_before_the_death(kappa: float) -> None:
    dead = -math.inf
    increments = torch.tensor([[0.0, dead, 0.0], [0.0, dead, 0.0]])
    cut = choose_cut(torch.zeros(2), increments, kappa)
    assert cut.position == 1
    assert cut.log_weights.tolist() == [0.0, 0.0]
    assert choose_cut(torch.zeros(2), increments[:, 1:], kappa).position == 0


def test_particles_that_die_one_after_the_other_go_back_to_the_last_alive() -> None:
    dead = -math.inf
    increments = torch.tensor([[dead, 0.0, 0.0], [0.0, dead, 0.0], [0.0, 0.0, dead]])
    cut = choose_cut(torch.zeros(3), increments, 0.0)
    assert cut.position == 2
    assert cut.log_weights.tolist() == [dead, dead, 0.0]


@pytest.mark.parametrize("kappa", KAPPAS)
def test_a_single_particle_is_cut_only_where_it_dies(kappa: float) -> None:
    assert choose_cut(torch.zeros(1), torch.tensor([[-5.0, 5.0, -9.0]]), kappa).position == 3
    assert choose_cut(torch.zeros(1), torch.tensor([[-5.0, -math.inf, -9.0]]), kappa).position == 1


@pytest.mark.parametrize("kappa", KAPPAS)
def test_no_drafted_tokens(kappa: float) -> None:
    cut = choose_cut(torch.tensor([0.0, 1.0, -math.inf]), torch.empty(3, 0), kappa)
    assert cut.position == 0
    assert cut.log_weights.tolist() == [0.0, 1.0, -math.inf]
