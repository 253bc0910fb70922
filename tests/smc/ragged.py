"""Particles of unequal length, for the tests of genealogy and commit."""

import torch
from hypothesis import strategies as st

RAGGED = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=6)


def matrix(rows: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ragged rows as tokens and lengths; what lies beyond a row's end is noise."""
    width = max(map(len, rows))
    tokens = torch.tensor([row + [7 + i] * (width - len(row)) for i, row in enumerate(rows)])
    return tokens, torch.tensor([len(row) for row in rows])
