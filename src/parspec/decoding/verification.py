"""Which drafted tokens lossless speculative decoding accepts: rejection sampling over one or several chains.

At each position the chains that agree with everything accepted so far offer their next tokens, independent draws
from the draft's q. They are tried in turn against a residual r that starts as the target's p: token x is accepted
with probability min(1, r(x) / q(x)); each rejection replaces r by max(r - q, 0), normalised. When all are
rejected, a token is drawn from the last residual. The token so chosen is distributed exactly as p.
Single chain: Leviathan et al., arXiv 2211.17192, Appendix A.1, and Chen et al., arXiv 2302.01318. Several i.i.d.
chains: SpecInfer, arXiv 2305.09781 (multi-step speculative sampling); SpecTr, arXiv 2310.15141.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from parspec.sampling.processors import sample


class Verdict(NamedTuple):
    """What was accepted.

    Attributes:
        chain: The chain whose first ``accepted`` tokens are kept.
        accepted: How many of its drafted tokens are kept, 0..K.
        token: The token that follows them, drawn from the target or from the residual.
    """

    chain: int
    accepted: int
    token: int


def verify(log_p: Tensor, log_q: Tensor, tokens: Tensor, generator: torch.Generator) -> Verdict:
    """Accept a prefix of one chain and draw the token after it, such that both together follow the target.

    Args:
        log_p: ``[M, K+1, V]`` the target's log-probabilities before each drafted token and after the last.
        log_q: ``[M, K, V]`` the draft's, exactly those the tokens were drawn from.
        tokens: ``[M, K]`` int64 drafted tokens of M independent chains.
        generator: Source of the acceptance and residual draws, on the same device.

    Returns:
        The verdict; accepted + 1 tokens can be emitted.
    """
    num_chains, num_drafted = tokens.shape
    drafted = tokens.tolist()
    p_drafted, q_drafted = (
        part[:, :num_drafted].gather(-1, tokens[..., None])[..., 0].exp().tolist() for part in (log_p, log_q)
    )
    uniforms = torch.rand(num_chains, num_drafted, generator=generator, device=tokens.device).tolist()
    alive = list(range(num_chains))
    for k in range(num_drafted):
        residual: Tensor | None = None  # the target's own p, until a token has been rejected
        accepted: int | None = None
        for chain in alive:
            token = drafted[chain][k]
            mass = p_drafted[chain][k] if residual is None else float(residual[token])
            if uniforms[chain][k] * q_drafted[chain][k] < mass:
                accepted = token
                break
            target = log_p[chain, k].exp() if residual is None else residual
            residual = _residual(target, log_q[chain, k].exp())
        if accepted is None:
            assert residual is not None
            token = int(sample(residual.log()[None], generator))
            return Verdict(alive[0], k, token)
        alive = [chain for chain in alive if drafted[chain][k] == accepted]
    bonus = int(sample(log_p[alive[0], num_drafted][None], generator))
    return Verdict(alive[0], num_drafted, bonus)


def _residual(target: Tensor, draft: Tensor) -> Tensor:
    """max(target - draft, 0), normalised; the target itself where rounding leaves nothing of it."""
    rest = (target - draft).clamp_min_(0)
    total = rest.sum()
    return rest / total if total > 0 else target
