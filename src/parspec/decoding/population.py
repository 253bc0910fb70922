"""The particles of one SMC request: their tokens, weights and ends.

Everything here is small and lives on the CPU; weights are float64. Unfinished particles come first, so that a
forward pass runs over the first `num_active` rows of a cache and skips the finished ones without copying.
"""

import torch
from torch import Tensor

from parspec.decoding.logprobs import Entries, TokenLogProb
from parspec.decoding.task import Particle
from parspec.smc.commit import plan_commit
from parspec.smc.cut import Cut
from parspec.smc.diagnostics import Interval, interval
from parspec.smc.genealogy import compose, unique_ancestors
from parspec.smc.resampling import SCHEMES, keep_survivors
from parspec.smc.weights import ess, log_mean_exp, normalise


class Population:
    """N particles of one request.

    Attributes:
        tokens: ``[N, max_tokens]`` int64, each particle's answer so far; undefined beyond its length.
        lengths: ``[N]`` int64.
        stopped: ``[N]`` bool, ended by a stop token or string.
        log_weights: ``[N]`` float64, unnormalised, since the last resampling.
        log_potentials: ``[N]`` float64, the potentials' value already contained in the weights.
        log_probs: ``[N]`` float64, see `Particle`.
        record: Log-probabilities of the tokens, ``[N, max_tokens]``, if they are wanted; undefined like them.
        final_length: Tokens, from the first, that all particles share for good.
        log_evidence: log Z-hat up to the last resampling.
        intervals: Diagnostics of the resampling intervals ended so far.
    """

    def __init__(
        self,
        num_particles: int,
        max_tokens: int,
        scheme: str,
        generator: torch.Generator,
        num_top: int | None = None,
    ) -> None:
        self.size = num_particles
        self.max_tokens = max_tokens
        self.tokens = torch.zeros(num_particles, max_tokens, dtype=torch.int64)
        self.lengths = torch.zeros(num_particles, dtype=torch.int64)
        self.stopped = torch.zeros(num_particles, dtype=torch.bool)
        self.log_weights = torch.zeros(num_particles, dtype=torch.float64)
        self.log_potentials = torch.zeros(num_particles, dtype=torch.float64)
        self.log_probs = torch.zeros(num_particles, dtype=torch.float64)
        self.record = None if num_top is None else Entries.empty(num_particles, max_tokens, num_top)
        self.final_length = 0
        self.log_evidence = 0.0
        self.intervals: list[Interval] = []
        self._origins = torch.arange(num_particles)
        self._scheme = SCHEMES[scheme]
        self._generator = generator

    @property
    def finished(self) -> Tensor:
        """``[N]`` bool: ended, by a stop or by the length limit."""
        return self.stopped | (self.lengths >= self.max_tokens)

    @property
    def active(self) -> Tensor:
        """Indices of the unfinished particles, ascending."""
        return (~self.finished).nonzero()[:, 0]

    @property
    def length(self) -> int:
        """Tokens of the longest particle; unfinished ones all have this length."""
        return int(self.lengths.max())

    def histories(self, rows: Tensor) -> list[list[int]]:
        """The answers so far of some particles, which must have equal lengths."""
        return self.tokens[rows, : int(self.lengths[rows[0]])].tolist()

    def extend(
        self, rows: Tensor, block: Tensor, ends: Tensor, log_probs: Tensor, entries: Entries | None = None
    ) -> None:
        """Append a block of tokens to some unfinished particles, each up to its own end.

        Args:
            rows: ``[R]`` particle indices.
            block: ``[R, T]`` int64.
            ends: ``[R]`` int64, 1-based position in the block of the token a particle ends with; > T if none.
            log_probs: ``[R]`` float64, of the block's tokens up to the end, see `Particle`.
            entries: ``[R, T]``, for the record if there is one.
        """
        start, count = int(self.lengths[rows[0]]), block.shape[1]
        self.tokens[rows, start : start + count] = block
        self.log_probs[rows] += log_probs
        if self.record is not None and entries is not None:
            for kept, new in zip(self.record, entries, strict=True):
                kept[rows, start : start + count] = new
        self.lengths[rows] += ends.clamp(max=count)
        self.stopped[rows] |= ends <= count

    def apply_cut(self, cut: Cut) -> None:
        """Take over the weights at the cut."""
        self.log_weights = cut.log_weights

    def ess(self) -> float:
        """Effective sample size of the current weights, in particles."""
        return float(ess(self.log_weights))

    def resample(self) -> Tensor:
        """Draw N ancestors by the request's scheme and give every particle the same weight.

        Returns:
            ``[N]`` int64 ancestors; survivors keep their own row.
        """
        ancestors = keep_survivors(self._scheme(normalise(self.log_weights), self.size, self._generator))
        self.close_interval()
        self.gather(ancestors)
        return ancestors

    def close_interval(self) -> None:
        """Put the weights since the last resampling into log Z-hat and the diagnostics, and level them."""
        self.intervals.append(interval(self.length, self.log_weights))
        self.log_evidence += float(log_mean_exp(self.log_weights))
        self.log_weights = torch.zeros_like(self.log_weights)

    def commit(self, commit_lag: int | None) -> tuple[list[int], Tensor | None]:
        """Find the tokens that have become final; force some to, if more than ``commit_lag`` are still open.

        Returns:
            The newly final token ids, and the ancestors of a forced commit, which is a resampling step.
        """
        start = self.final_length
        plan = plan_commit(
            self.tokens[:, start : self.length],
            self.lengths - start,
            self.log_weights,
            commit_lag,
            self._generator,
            self._scheme,
        )
        if plan.ancestors is not None:
            self.close_interval()
            self.gather(plan.ancestors)
        self.final_length = start + plan.length
        return self.tokens[0, start : self.final_length].tolist(), plan.ancestors

    def put_active_first(self) -> Tensor | None:
        """Swap finished particles behind the unfinished ones, moving as few rows as possible.

        Returns:
            ``[N]`` int64, where each row came from, or None if nothing moved.
        """
        finished = self.finished
        num_active = int((~finished).sum())
        holes = finished[:num_active].nonzero()[:, 0]
        if not len(holes):
            return None
        movers = (~finished[num_active:]).nonzero()[:, 0] + num_active
        order = torch.arange(self.size)
        order[holes], order[movers] = movers, holes
        self.gather(order, log_weights=True)
        return order

    def gather(self, ancestors: Tensor, *, log_weights: bool = False) -> None:
        """Make particle i a copy of particle ``ancestors[i]``, its weight included only if asked."""
        for part in self.record or ():
            # What is final is the same for all, and most of a long answer.
            part[:, self.final_length : self.length] = part[ancestors, self.final_length : self.length]
        for name in ("tokens", "lengths", "stopped", "log_potentials", "log_probs"):
            setattr(self, name, getattr(self, name)[ancestors])
        self._origins = compose(self._origins, ancestors)
        if log_weights:
            self.log_weights = self.log_weights[ancestors]

    def unique_ancestors(self) -> int:
        """How many of the first cycle's particles still have descendants."""
        return unique_ancestors(self._origins)

    def particles(self) -> list[Particle]:
        """All particles with normalised weights."""
        weights = normalise(self.log_weights).tolist()
        return [
            Particle(
                self.tokens[i, : self.lengths[i]].tolist(),
                weights[i],
                bool(self.stopped[i]),
                float(self.log_probs[i]),
                self.recorded(i, 0, int(self.lengths[i])),
            )
            for i in range(self.size)
        ]

    def recorded(self, index: int, start: int, end: int) -> list[TokenLogProb] | None:
        """The record of one particle's tokens from start to end, if there is one."""
        return None if self.record is None else self.record.row(index, self.tokens[index, start:end].tolist(), start)
