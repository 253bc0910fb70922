"""How far the draft strayed from the target, estimated from the weights.

For self-normalised importance sampling E[N / ESS] is about 1 + chi2(p || q), and bias and mean squared error are
at most constants times (1 + chi2) / N (Agapiou et al., Statistical Science 32(3), 2017, arXiv 1511.06196; for
SMC-SD arXiv 2604.15672). The estimate cannot exceed N - 1: near that value it only says that N is too small.
"""

from dataclasses import dataclass

from torch import Tensor

from parspec.smc.weights import ess


@dataclass(frozen=True)
class Interval:
    """One stretch between two resamplings.

    Attributes:
        end: Length of the answer at its end, in tokens.
        ess: Effective sample size at its end, in particles.
        chi2: Estimate of chi2(p || q) over the stretch.
        error_scale: chi2 / N, the scale of the error the mismatch contributes.
    """

    end: int
    ess: float
    chi2: float
    error_scale: float


def chi2_estimate(log_weights: Tensor) -> float:
    """``N / ESS - 1`` of weights ``[N]`` that were equal at the start of the stretch; inf if all are 0."""
    size = float(ess(log_weights))
    return len(log_weights) / size - 1 if size > 0 else float("inf")


def interval(end: int, log_weights: Tensor) -> Interval:
    """Describe the stretch that ends at ``end`` tokens with these weights ``[N]``."""
    chi2 = chi2_estimate(log_weights)
    return Interval(end, float(ess(log_weights)), chi2, chi2 / len(log_weights))
