import math
from collections.abc import Sequence

import pytest
import torch

from parspec.errors import InvalidRequestError
from parspec.sampling.potentials import Prefix, evaluate

PREFIXES = [Prefix([1], "a", False), Prefix([1, 2], "ab", True)]


def by_length(prefixes: Sequence[Prefix]) -> list[float]:
    return [float(len(prefix.token_ids)) for prefix in prefixes]


def forbid_finished(prefixes: Sequence[Prefix]) -> torch.Tensor:
    return torch.tensor([-math.inf if prefix.finished else 0.5 for prefix in prefixes])


def test_sums_logs_in_float64() -> None:
    total = evaluate([by_length, forbid_finished], PREFIXES)
    assert total.dtype == torch.float64
    assert total.tolist() == [1.5, -math.inf]


def test_no_potentials_is_zero() -> None:
    assert evaluate([], PREFIXES).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("values", [[0.0], [0.0] * 3, [[0.0, 0.0]], 0.0])
def test_wrong_shape_is_refused(values: object) -> None:
    def short(prefixes: Sequence[Prefix]) -> list[float]:
        return values  # type: ignore[return-value]

    with pytest.raises(InvalidRequestError, match=r"^potential short returned shape .* for 2 prefixes: "):
        evaluate([by_length, short], PREFIXES)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_and_infinity_are_refused(bad: float) -> None:
    class Reward:
        def __call__(self, prefixes: Sequence[Prefix]) -> list[float]:
            return [0.0, bad]

    with pytest.raises(InvalidRequestError, match=r"^potential Reward returned NaN or \+inf"):
        evaluate([Reward()], PREFIXES)


@pytest.mark.parametrize("values", [None, ["a", "b"], [None, 0.0], [[0.0], [0.0, 1.0]]])
def test_what_is_not_numbers_is_refused(values: object) -> None:
    with pytest.raises(InvalidRequestError, match=r"^potential .* return one log-value for each"):
        evaluate([lambda prefixes: values], PREFIXES)  # type: ignore[list-item,return-value]
