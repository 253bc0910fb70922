"""Which tokens are final: the prefix all particles share, or are made to share once too much is open.

Resampling makes particles share ancestors; what they agree on can never change again. If more than
``commit_lag`` tokens stay open, one class of particles that agree on the older ones is drawn in proportion to its
weight and the population is resampled within it. A particle is expected ``N * w`` times, as in any resampling:
``P(class) * N * w / P(class)``.
"""

from typing import NamedTuple

from torch import Generator, Tensor

from parspec.smc.genealogy import common_prefix_length, prefix_classes
from parspec.smc.resampling import Scheme, keep_survivors, multinomial
from parspec.smc.weights import normalise


class Commit(NamedTuple):
    """What becomes final.

    Attributes:
        length: Tokens that are final, counted from the start of the matrix given.
        ancestors: ``[N]`` of the forced resampling, after which all weights are equal; None if none was needed.
    """

    length: int
    ancestors: Tensor | None


def plan_commit(
    tokens: Tensor,
    lengths: Tensor,
    log_weights: Tensor,
    commit_lag: int | None,
    generator: Generator,
    scheme: Scheme,
) -> Commit:
    """Find the final tokens, forcing agreement on all but the last ``commit_lag``.

    Args:
        tokens: ``[N, T]`` int64, each particle's tokens that are not final yet; ignored beyond its length.
        lengths: ``[N]`` int64.
        log_weights: ``[N]``.
        commit_lag: Most tokens that may stay open; None for any number.
        generator: Source of the class draw and the resampling.
        scheme: Resampling scheme used within the class.

    Returns:
        The plan. Randomness is consumed only if agreement is forced.

    Raises:
        ValueError: Agreement has to be forced and no particle has a positive weight.
    """
    shared = common_prefix_length(tokens, lengths)
    depth = 0 if commit_lag is None else int(lengths.max()) - commit_lag
    if shared >= depth:
        return Commit(shared, None)
    weights = normalise(log_weights)
    classes = prefix_classes(tokens, lengths, depth)
    # Drawing a particle and taking its class draws a class by its summed weight.
    drawn = classes[multinomial(weights, 1, generator)[0]]
    within = weights.masked_fill(classes != drawn, 0.0)
    ancestors = keep_survivors(scheme(within / within.sum(), len(weights), generator))
    return Commit(common_prefix_length(tokens[ancestors], lengths[ancestors]), ancestors)
