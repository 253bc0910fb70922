"""What a decoding method is given, what it yields, reports and returns.

A method is a generator: it yields the forward passes it needs (`Forward`) and is sent their logits. Written so,
each method reads as its algorithm does, while the engine is free to run the passes of many requests as one.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from parspec.decoding.logprobs import Entries, TokenLogProb
from parspec.models.cache import GroupCache
from parspec.models.interface import Forward, LanguageModel
from parspec.sampling.adjustments import Adjustments
from parspec.sampling.constraint import Constraint
from parspec.sampling.params import MethodParams, SamplingParams
from parspec.sampling.processors import log_probs_at, process
from parspec.sampling.stopping import StopCondition
from parspec.smc.diagnostics import Interval


@dataclass(frozen=True)
class Trace:
    """What one cycle did to every particle or draft chain, for a request that is watched.

    Attributes:
        drafted: Per row, the tokens it drafted, up to its own end; those behind the cut are not part of any answer.
        cut_weights: Per row, its normalised weight at the cut, before resampling. Of draft chains, the one that was
            accepted has 1.
        ancestors: Per particle after the cycle, the row it continues.
        appended: Per particle after the cycle, the tokens by which it is longer than its ancestor was before.
        weights: Per particle after the cycle, its normalised weight.
        finished: Per particle after the cycle, whether it is complete.
    """

    drafted: list[list[int]]
    cut_weights: list[float]
    ancestors: list[int]
    appended: list[list[int]]
    weights: list[float]
    finished: list[bool]

    @classmethod
    def single(cls, appended: list[int], finished: bool) -> "Trace":
        """The trace of a cycle that appended tokens to an only sequence, without a draft."""
        return cls([[]], [1.0], [0], [appended], [1.0], [finished])


@dataclass(frozen=True)
class CycleReport:
    """What one cycle did.

    Attributes:
        final: Token ids that became final in this cycle: no later cycle can change them.
        advanced: Tokens by which the request grew, final or not.
        drafted: Positions drafted, K (0 without a draft).
        kept: Drafted positions kept: the cut under SMC, the accepted tokens under speculative decoding.
        ess: Effective sample size at the cut, in particles; None outside SMC.
        resampled: Whether the population was resampled.
        num_particles: Particles, or draft chains.
        trace: What happened to each of them, if the request is watched.
        log_probs: Of the tokens that became final, if the request wants them.
    """

    final: list[int]
    advanced: int
    drafted: int = 0
    kept: int = 0
    ess: float | None = None
    resampled: bool = False
    num_particles: int = 1
    trace: Trace | None = None
    log_probs: list[TokenLogProb] | None = None


@dataclass(frozen=True)
class Particle:
    """One finished sequence of the population.

    Attributes:
        token_ids: Its tokens after the prompt, the one that ended it included.
        weight: Normalised weight; the weights of a population sum to 1.
        stopped: Whether it ended by a stop token or string rather than by the length limit.
        log_prob: Log-probability of all of them under the distribution the request samples from, before power and
            potentials; under a global constraint, before the constraint.
        log_probs: Of each token, if the request wants them.
    """

    token_ids: list[int]
    weight: float
    stopped: bool
    log_prob: float = 0.0
    log_probs: list[TokenLogProb] | None = None


@dataclass(frozen=True)
class Outcome:
    """The end of a request.

    Attributes:
        particles: The whole population; a single one of weight 1 outside SMC.
        chosen: Index of the particle that is the answer.
        log_evidence: log Z-hat, the estimate of the log total mass of the distribution aimed at; 0 outside SMC.
        intervals: One entry a resampling interval: its ESS, chi2 estimate and error scale.
        unique_ancestors: How many of the first cycle's particles still have descendants.
        prompt_log_probs: Of the prompt's tokens but the first, if the request wants them.
    """

    particles: list[Particle]
    chosen: int = 0
    log_evidence: float = 0.0
    intervals: list[Interval] = field(default_factory=list)
    unique_ancestors: int = 1
    prompt_log_probs: list[TokenLogProb] | None = None


@dataclass(frozen=True)
class Task:
    """One request as a decoding method sees it.

    Attributes:
        prompt: ``[P]`` int64 token ids, P >= 1, on the models' device.
        max_tokens: Most tokens the answer may have; the prompt and they fit the target's context.
        sampling: The request's sampling parameters.
        adjustments: What the request does to logits.
        constraint: What the answer's text must look like, if anything.
        method: Its method parameters.
        target: The model aimed at, with its cache.
        target_cache: See target.
        draft: The model that proposes, with its cache; None for autoregressive decoding.
        draft_cache: See draft.
        vocab_size: Ids from this one on are padding and are never drawn.
        stop: Decides where a sequence ends.
        decode: Token ids to text, for potentials.
        generator: Source of every token draw, on the models' device.
        host_generator: Source of resampling, commit and selection draws, on the CPU.
        report: Called at the end of every cycle.
        draft_length: How many tokens the next cycle should draft, asked at its beginning.
        watched: Whether reports are to hold traces.
    """

    prompt: Tensor
    max_tokens: int
    sampling: SamplingParams
    adjustments: Adjustments
    constraint: Constraint | None
    method: MethodParams
    target: LanguageModel
    target_cache: GroupCache
    draft: LanguageModel | None
    draft_cache: GroupCache | None
    vocab_size: int
    stop: StopCondition
    decode: Callable[[list[int]], str]
    generator: torch.Generator
    host_generator: torch.Generator
    report: Callable[[CycleReport], None]
    draft_length: Callable[[], int]
    watched: bool = False

    def log_probs(self, logits: Tensor, answers: Tensor) -> Tensor:
        """The request's distribution over the next token, made of the target's logits and the draft's alike.

        Args:
            logits: ``[R, T, V]``.
            answers: ``[R, L]`` each row's answer tokens: the last logits follow all of them, those before them all
                but the last, and so on.

        Returns:
            Log-probabilities ``[R, T, vocab_size]``.
        """
        return process(self._adjusted(logits, answers), self.sampling)

    def log_probs_at(self, logits: Tensor, tokens: Tensor, answers: Tensor) -> Tensor:
        """``log_probs(logits, answers)`` at one token ``[R, T]`` of each row."""
        return log_probs_at(self._adjusted(logits, answers), tokens, self.sampling)

    def entries(self, logits: Tensor, tokens: Tensor, answers: Tensor) -> Entries | None:
        """Log-probabilities of tokens ``[R, T]`` as the request wants them recorded; None if it does not.

        Args:
            logits: ``[R, T, V]`` the target's.
            tokens: ``[R, T]``.
            answers: ``[R, L]``, see `log_probs`.
        """
        num_top = self.sampling.logprobs
        if num_top is None:
            return None
        if self.sampling.logprobs_mode == "processed_logprobs":
            return Entries.of(self.log_probs(logits, answers), tokens, num_top)
        return Entries.of(logits[..., : self.vocab_size].float().log_softmax(-1), tokens, num_top)

    def log_mass(self, logits: Tensor, answers: Tensor) -> Tensor:
        """Log of the probability the constraint leaves at each place ``[R, T]``, if weights are to carry it; else 0.

        ``log_probs`` plus this is the log-probability before the constraint, of tokens it allows. Truncation (top_p
        and the like) acts within what the constraint allows, and has no part in it.
        """
        if self.constraint is None or self.sampling.constraint_mode == "local":
            return torch.zeros(logits.shape[:2], device=logits.device)
        allowed = self.constraint.masks(answers, logits.shape[1]).to(logits.device)
        plain = replace(self.sampling, top_p=1.0, top_k=0, min_p=0.0)
        log_probs = process(self.adjustments(logits[..., : self.vocab_size], answers), plain)
        return log_probs.masked_fill(~allowed, -torch.inf).logsumexp(-1)

    def forced(self, answers: Tensor) -> Tensor | None:
        """The next tokens ``[R, 1]`` of the answers ``[R, L]`` if the constraint leaves no row a choice; else None."""
        return None if self.constraint is None else self.constraint.forced(answers)

    def _adjusted(self, logits: Tensor, answers: Tensor) -> Tensor:
        logits = logits[..., : self.vocab_size]
        if self.constraint is not None and logits.shape[1]:
            allowed = self.constraint.masks(answers, logits.shape[1]).to(logits.device)
            logits = logits.float().masked_fill(~allowed, -torch.inf)
        return self.adjustments(logits, answers)

    def draft_room(self, length: int) -> int:
        """How many tokens can be drafted behind ``length`` answer tokens before the draft's context is full."""
        assert self.draft is not None
        return max(0, self.draft.max_positions - len(self.prompt) - length + 1)


Decoding = Generator[Forward, Tensor, Outcome]
"""A running method: yields forward passes, is sent their logits ``[R, num_logits, V]``, returns the outcome."""
