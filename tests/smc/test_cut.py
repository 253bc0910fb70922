"""The cut against a loop that reads like the rule."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from parspec.smc.cut import choose_cut

VALUE = st.one_of(st.floats(-6, 6), st.just(-math.inf))


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
def blocks(draw: st.DrawFn) -> tuple[list[float], list[list[float]]]:
    size, length = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    log_weights = draw(st.lists(VALUE, min_size=size, max_size=size).filter(lambda w: max(w) > -math.inf))
    rows = draw(st.lists(st.lists(VALUE, min_size=length, max_size=length), min_size=size, max_size=size))
    return log_weights, rows


@given(block=blocks(), kappa=st.sampled_from([0.0, 0.25, 0.5, 0.9, 1.0]))
def test_against_the_rule(block: tuple[list[float], list[list[float]]], kappa: float) -> None:
    log_weights, rows = block
    start, increments = torch.tensor(log_weights, dtype=torch.float64), torch.tensor(rows, dtype=torch.float64)
    cut = choose_cut(start, increments, kappa)
    expected = by_the_rule(log_weights, rows, kappa)
    if cut.position != expected:  # only where the size is within rounding of the threshold
        paths = torch.cat([start[:, None], increments], 1).cumsum(1).softmax(0)
        sizes = 1 / paths.square().sum(0)
        assert float((sizes - kappa * len(rows)).abs().min()) < 1e-9
    torch.testing.assert_close(cut.log_weights, start + increments[:, : cut.position].sum(1))


def test_zero_keeps_everything() -> None:
    increments = torch.tensor([[9.0, 9.0], [-9.0, -9.0]])
    assert choose_cut(torch.zeros(2), increments, 0.0).position == 2


def test_the_collapsing_token_itself_is_kept() -> None:
    increments = torch.tensor([[0.0, 9.0, 0.0], [0.0, -9.0, 0.0]])
    assert choose_cut(torch.zeros(2), increments, 0.6).position == 2


@pytest.mark.parametrize("kappa", [0.0, 0.5, 1.0])
def test_all_dead_goes_back_before_the_death(kappa: float) -> None:
    dead = -math.inf
    increments = torch.tensor([[0.0, dead, 0.0], [0.0, dead, 0.0]])
    cut = choose_cut(torch.zeros(2), increments, kappa)
    assert cut.position == 1
    assert cut.log_weights.tolist() == [0.0, 0.0]
    assert choose_cut(torch.zeros(2), increments[:, 1:], kappa).position == 0


def test_no_drafted_tokens() -> None:
    cut = choose_cut(torch.tensor([0.0, 1.0]), torch.empty(2, 0), 0.5)
    assert cut.position == 0
    assert cut.log_weights.tolist() == [0.0, 1.0]
