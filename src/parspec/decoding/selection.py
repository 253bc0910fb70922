"""Which particle of a finished population becomes the answer."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence

import regex
import torch

from parspec.decoding.task import Particle
from parspec.errors import InvalidRequestError
from parspec.sampling.callables import call
from parspec.sampling.params import Extractor
from parspec.smc.resampling import multinomial

_SECONDS = 1.0
"""How long an extractor may look for its pattern in one text: some patterns take exponential time."""


def select(
    particles: Sequence[Particle],
    how: str,
    vote: Extractor | None,
    decode: Callable[[list[int]], str],
    generator: torch.Generator,
) -> int:
    """Choose a particle.

    Args:
        particles: The population.
        how: "sample" draws one by weight. "best" takes the heaviest; of equal ones the first. "vote" takes the
            heaviest of those whose extracted results have the largest total weight; particles without a result
            have no vote, and if none has, the heaviest is taken.
        vote: What to extract; needed for "vote".
        decode: Token ids to text.
        generator: Source of the draw.

    Returns:
        The particle's index.

    Raises:
        InvalidRequestError: The extractor takes too long or returns what cannot be counted.
    """
    weights = torch.tensor([particle.weight for particle in particles], dtype=torch.float64)
    if how == "sample":
        return int(multinomial(weights, 1, generator)[0])
    if how == "best":
        return int(weights.argmax())
    assert vote is not None
    results = [_extract(vote, decode(particle.token_ids)) for particle in particles]
    totals: dict[Hashable, float] = defaultdict(float)
    for result, weight in zip(results, weights.tolist(), strict=True):
        if result is not None:
            totals[result] += weight
    if totals:
        winner = max(totals, key=lambda result: totals[result])
        weights[[result != winner for result in results]] = -1.0
    return int(weights.argmax())


def _extract(vote: Extractor, text: str) -> Hashable:
    """The result in a text: of a pattern the last match, its first group where it has one."""
    if not isinstance(vote, str):
        result: Hashable = call(vote, "vote", text)
        try:
            hash(result)
        except TypeError as error:
            raise InvalidRequestError(
                f"vote returned a {type(result).__name__}, which cannot be counted: return a string, number or tuple",
                "vote",
            ) from error
        return result
    found: str | None = None
    try:
        for match in regex.finditer(vote, text, timeout=_SECONDS):
            found = match[1] if match.re.groups and match[1] is not None else match[0]
    except TimeoutError as error:
        raise InvalidRequestError(
            f"vote takes longer than {_SECONDS:g} s on one answer: use a simpler pattern", "vote"
        ) from error
    return None if found is None else found.strip()
