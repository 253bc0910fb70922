"""Potentials: a user's own factors on the distribution over answers.

The distribution aimed at is the model's, times the product of the potentials' values at the whole answer;
values on prefixes only steer the population on the way there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from parspec.errors import InvalidRequestError
from parspec.sampling.callables import call


@dataclass(frozen=True)
class Prefix:
    """A particle's answer so far.

    Attributes:
        token_ids: Its tokens, without the prompt's.
        text: The same as text; empty for a model without a tokenizer.
        finished: Whether it is complete.
    """

    token_ids: list[int]
    text: str
    finished: bool


Potential = Callable[[Sequence[Prefix]], Sequence[float] | Tensor]
"""Prefixes of all N particles to N log-values, -inf for what is impossible. Called once a cycle."""


def evaluate(potentials: Sequence[Potential], prefixes: Sequence[Prefix]) -> Tensor:
    """Sum of the potentials' log-values.

    Args:
        potentials: Any number.
        prefixes: One a particle, N.

    Returns:
        ``[N]`` float64.

    Raises:
        InvalidRequestError: A potential returned the wrong number of values, NaN or +inf.
    """
    total = torch.zeros(len(prefixes), dtype=torch.float64)
    for potential in potentials:
        name = getattr(potential, "__name__", type(potential).__name__)
        returned = call(potential, f"potential {name}", prefixes)
        try:
            if isinstance(returned, Tensor) and returned.is_complex():
                raise TypeError("complex")
            values = torch.as_tensor(returned, dtype=torch.float64).to_dense().cpu()
        except (TypeError, ValueError, RuntimeError) as error:
            raise InvalidRequestError(
                f"potential {name} returned a {type(returned).__name__} that is not numbers: "
                "return one log-value for each prefix"
            ) from error
        if values.shape != total.shape:
            raise InvalidRequestError(
                f"potential {name} returned shape {tuple(values.shape)} for {len(prefixes)} prefixes: "
                "return one log-value for each prefix"
            )
        if torch.isnan(values).any() or (values == torch.inf).any():
            raise InvalidRequestError(f"potential {name} returned NaN or +inf: return finite log-values or -inf")
        total = total + values
    return total
