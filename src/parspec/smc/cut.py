"""How many of the drafted tokens the whole population keeps.

A resampling time that depends on the past only, evaluated on tokens drafted ahead: adaptive resampling (Del
Moral, Doucet & Jasra, Bernoulli 18(1), 2012). The tokens behind it are dropped unseen, so the weights at the cut
are those of a population that never drew them.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from parspec.smc.weights import ess


class Cut(NamedTuple):
    """Where a block is cut.

    Attributes:
        position: Drafted tokens kept, 0..K.
        log_weights: ``[N]`` the weights there.
    """

    position: int
    log_weights: Tensor


def choose_cut(log_weights: Tensor, increments: Tensor, cut_threshold: float) -> Cut:
    """Cut at the first position where the effective sample size falls below ``cut_threshold * N``.

    If all particles have weight 0 from some position on, the cut lies before it, whatever the threshold.

    Args:
        log_weights: ``[N]`` before the block, at least one finite.
        increments: ``[N, K]`` what each drafted token adds to the log-weights; K may be 0.
        cut_threshold: kappa in [0, 1]; 0 keeps every token.
    """
    size, num_drafted = increments.shape
    # [K + 1, N]; the running sum never leaves -inf once it is there, because increments are below +inf.
    paths = torch.cat([log_weights[:, None], increments], dim=1).cumsum(1).T
    sizes = ess(paths)
    collapsed = (sizes[1:] < cut_threshold * size).nonzero()
    position = int(collapsed[0]) + 1 if len(collapsed) else num_drafted
    dead = (sizes == 0).nonzero()
    if len(dead):
        position = min(position, max(int(dead[0]) - 1, 0))
    return Cut(position, paths[position])
