"""Prefixes and ancestors against loops over lists."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from parspec.smc.genealogy import common_prefix_length, compose, prefix_classes, unique_ancestors
from tests.smc.ragged import RAGGED, matrix

MAP = st.lists(st.integers(0, 4), min_size=5, max_size=5)


@given(rows=RAGGED)
def test_common_prefix(rows: list[list[int]]) -> None:
    expected = 0
    while all(len(row) > expected for row in rows) and len({row[expected] for row in rows}) == 1:
        expected += 1
    assert common_prefix_length(*matrix(rows)) == expected


def test_common_prefix_of_nothing() -> None:
    assert common_prefix_length(torch.empty(3, 0, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)) == 0
    assert common_prefix_length(torch.ones(2, 4, dtype=torch.int64), torch.tensor([4, 0])) == 0


@given(rows=RAGGED, depth=st.integers(0, 6))
def test_prefix_classes(rows: list[list[int]], depth: int) -> None:
    tokens, lengths = matrix(rows)
    depth = min(depth, tokens.shape[1])
    before = tokens.clone()
    classes = prefix_classes(tokens, lengths, depth)
    assert torch.equal(tokens, before)
    assert classes.dtype == torch.int64
    for i, a in enumerate(rows):
        for j, b in enumerate(rows):
            assert bool(classes[i] == classes[j]) == (a[:depth] == b[:depth])


@pytest.mark.parametrize("depth", [1, 2])
def test_a_shorter_particle_is_not_of_the_class_of_its_continuations(depth: int) -> None:
    classes = prefix_classes(*matrix([[1], [1, 1], [1, 1]]), depth).tolist()
    assert classes[1] == classes[2]
    assert (classes[0] == classes[1]) == (depth == 1)


@given(earlier=MAP, later=MAP)
def test_composed_ancestors_equal_two_gathers(earlier: list[int], later: list[int]) -> None:
    names = torch.arange(100, 105)
    first, second = torch.tensor(earlier), torch.tensor(later)
    assert torch.equal(names[compose(first, second)], names[first][second])
    assert unique_ancestors(compose(first, second)) == len({earlier[i] for i in later})
