"""``method="auto"``: which method a request runs by, and how many tokens it drafts in each cycle.

Lossless decoding is the rule: plain where drafting does not pay, because the draft is poor or because many
requests already keep the machine busy, speculative elsewhere. SMC is chosen where the cost model promises clearly
more, and then drafts only as far as the effective sample size has been seen to last.
"""

import math
from collections.abc import Callable
from dataclasses import replace

from parspec.decoding.task import CycleReport
from parspec.engine.cost import CostModel
from parspec.sampling.params import SEEDED_DRAFT_TOKENS, MethodParams

_PARTICLES = (4, 8, 16)
"""Sizes of populations considered; fewer are hardly one."""
_CLEARLY_MORE = 1.15
"""SMC's predicted gain over the best lossless method from which on it is chosen."""
_NEARLY_FREE = 0.9
"""More particles are taken as long as this share of the speed is left."""
_LEAST_ESS_SHARE = 0.5
"""Share of the particles that drafting must leave effective, on average."""
_FORGET = 0.9
"""Weight of the past against a cycle just seen."""
_PRIOR_CYCLES = 4.0


class Tempo:
    """How well drafting goes: acceptance under rejection, loss of effective sample size under SMC.

    Args:
        acceptance: Expected share of drafted tokens accepted, until cycles say otherwise.
        divergence: Expected ``log(N / ESS)`` per drafted token, likewise.
    """

    def __init__(self, acceptance: float = 0.7, divergence: float = 0.15) -> None:
        self._prior = acceptance
        self._accepted = _PRIOR_CYCLES * acceptance
        self._rejected = _PRIOR_CYCLES * (1 - acceptance)
        self.divergence = divergence

    @property
    def acceptance(self) -> float:
        """Estimated probability that a drafted token is accepted."""
        return self._accepted / (self._accepted + self._rejected)

    def observe(self, report: CycleReport) -> None:
        """Learn from a cycle."""
        if report.ess is not None and report.drafted:
            seen = math.log(max(1.0, report.num_particles / max(report.ess, 1e-9))) / report.drafted
            self.divergence = _FORGET * self.divergence + (1 - _FORGET) * seen
        elif report.drafted:
            self._accepted = _FORGET * self._accepted + report.kept
            self._rejected = _FORGET * self._rejected + (report.kept < report.drafted)
        else:
            # Nothing was drafted: slowly forget why not, or drafting would never be tried again.
            total = self._accepted + self._rejected
            self._accepted += 0.02 * (self._prior * total - self._accepted)
            self._rejected = total - self._accepted


class Pilot:
    """Decides for the requests of an engine that left it the choice.

    Args:
        measure: Makes the cost model; called when it is first needed.
        load: How many requests run at present, the one in question included.
    """

    def __init__(self, measure: Callable[[], CostModel], load: Callable[[], int]) -> None:
        self._measure, self._load = measure, load
        self._costs: CostModel | None = None
        self._seen = Tempo()

    @property
    def costs(self) -> CostModel:
        """The cost model, measured once."""
        if self._costs is None:
            self._costs = self._measure()
        return self._costs

    def choose(self, method: MethodParams, waiting: int, *, needs_smc: bool) -> MethodParams:
        """Settle the method of a request that is about to run; its preset says what may be chosen.

        Args:
            method: Its parameters; ``num_particles`` and ``num_draft_tokens`` are upper limits.
            waiting: Requests that would like to run beside it.
            needs_smc: Whether it asks for something only SMC can do.
        """
        if needs_smc:
            return replace(method, method="smc", preset=None, num_particles=method.rows)
        lossless_only = replace(method, method="speculative", preset=None, num_particles=1)
        if method.preset in ("lossless", "balanced"):
            # No setting of SMC has been measured to be both within 3 points of the target and faster than rejection.
            return lossless_only
        costs, requests = self.costs, max(1, self._load() + waiting)
        lossless = max(
            costs.speculative(requests, k, self._seen.acceptance) for k in range(method.num_draft_tokens + 1)
        )
        drafted = max(1, min(method.num_draft_tokens, self._lasting(self._seen.divergence)))
        rates = {n: costs.smc(requests, n, drafted) for n in _PARTICLES if n <= method.rows}
        best = max(rates.values(), default=0.0)
        if best > _CLEARLY_MORE * lossless:
            particles = max(n for n, rate in rates.items() if rate >= _NEARLY_FREE * best)
            return replace(method, method="smc", preset=None, num_particles=particles)
        return lossless_only

    @staticmethod
    def fixed(method: MethodParams, *, needs_smc: bool) -> MethodParams:
        """The method of a request whose draws must not depend on load or measured times."""
        if needs_smc:
            return replace(method, method="smc", preset=None, num_particles=method.rows)
        drafted = min(method.num_draft_tokens, SEEDED_DRAFT_TOKENS)
        return replace(method, method="speculative", preset=None, num_particles=1, num_draft_tokens=drafted)

    def steer(self, method: MethodParams) -> tuple[Callable[[], int], Callable[[CycleReport], None]]:
        """The draft length of each cycle of a request, and what is to be told of each cycle's report."""
        tempo = Tempo(self._seen.acceptance, self._seen.divergence)

        def draft_length() -> int:
            if method.method == "smc":
                return min(method.num_draft_tokens, self._lasting(tempo.divergence))
            requests, acceptance = max(1, self._load()), tempo.acceptance
            lengths = range(method.num_draft_tokens + 1)
            return max(lengths, key=lambda k: self.costs.speculative(requests, k, acceptance))

        def observe(report: CycleReport) -> None:
            tempo.observe(report)
            self._seen.observe(report)

        return draft_length, observe

    @staticmethod
    def _lasting(divergence: float) -> int:
        """Tokens that can be drafted until the effective sample size has fallen to its least share."""
        return max(1, int(-math.log(_LEAST_ESS_SHARE) / max(divergence, 1e-3)))
