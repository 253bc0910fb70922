"""What a request gives back."""

from dataclasses import dataclass
from typing import Literal

from parspec.decoding.logprobs import TokenLogProb
from parspec.smc.diagnostics import Interval

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class PosteriorParticle:
    """One weighted sequence of the final population.

    Attributes:
        token_ids: Its tokens after the prompt.
        text: The same as text, cut at the stop string; empty for a model without a tokenizer.
        weight: Normalised weight; the population's sum to 1.
        finish_reason: "stop" or "length".
        log_prob: Log-probability of all its tokens under the distribution the request samples from, before power and
            potentials; under a global constraint, before the constraint.
    """

    token_ids: list[int]
    text: str
    weight: float
    finish_reason: FinishReason
    log_prob: float


@dataclass(frozen=True)
class Posterior:
    """The final population: a weighted sample from the target's distribution over whole answers.

    Attributes:
        particles: All particles; a single one of weight 1 for the methods other than SMC.
        log_evidence: log Z-hat. For plain decoding (power 1, no potentials, no truncation) the true value is 0,
            so its distance from 0 is a check on the run.
        ess: Effective sample size at every cycle's cut, before resampling, in particles.
        intervals: Per resampling interval its end (tokens), ESS, chi2 estimate and error scale chi2 / N.
        unique_ancestors: How many of the first cycle's particles still have descendants; 1 means that nothing
            of the beginning's diversity is left.
    """

    particles: list[PosteriorParticle]
    log_evidence: float
    ess: list[float]
    intervals: list[Interval]
    unique_ancestors: int


@dataclass(frozen=True)
class Metrics:
    """Counts and times (seconds) of one request.

    Attributes:
        num_prompt_tokens: Length of the prompt.
        num_tokens: Length of the answer.
        queue_seconds: From submission until the request began to run.
        first_token_seconds: From then until the first token was final; None if none was before the end.
        seconds: From the beginning of the run until the answer was complete, prefill included.
        cycles: Draft-and-score rounds; the first token, drawn from the prompt's pass, counts as one.
        num_drafted: Positions drafted in all cycles.
        num_kept: Drafted positions kept in all cycles.
        advanced: Tokens the request grew by in all cycles (the answer may be shorter than the longest particle).
        resamplings: How often the population was resampled.
    """

    num_prompt_tokens: int
    num_tokens: int
    queue_seconds: float
    first_token_seconds: float | None
    seconds: float
    cycles: int
    num_drafted: int
    num_kept: int
    advanced: int
    resamplings: int

    @property
    def tokens_per_second(self) -> float:
        """Answer tokens per second of run time, prefill included."""
        return self.num_tokens / self.seconds if self.seconds > 0 else float("inf")

    @property
    def tokens_per_cycle(self) -> float:
        """Tokens the request grew by, per cycle."""
        return self.advanced / self.cycles if self.cycles else 0.0


@dataclass(frozen=True)
class RequestOutput:
    """The answer to one request.

    Attributes:
        prompt_token_ids: The prompt as token ids.
        text: The answer without special tokens, cut at the stop string; empty for a model without a tokenizer.
        token_ids: The answer's tokens, including the one that ended it.
        finish_reason: "stop" (a stop token or string) or "length" (max_tokens or the model's context).
        posterior: The whole population.
        metrics: Counts and times.
        method: The method that ran.
        seed: The seed of every draw; passing it again gives the same tokens.
        log_probs: One entry a token of the answer, if the request asked for ``logprobs``.
        prompt_log_probs: One entry for each token of the prompt but the first, if it asked for ``prompt_logprobs``.
        others: The further answers, if it asked for ``n`` of them.
    """

    prompt_token_ids: list[int]
    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    posterior: Posterior
    metrics: Metrics
    method: str
    seed: int
    log_probs: list[TokenLogProb] | None = None
    prompt_log_probs: list[TokenLogProb] | None = None
    others: "tuple[RequestOutput, ...]" = ()

    @property
    def outputs(self) -> "list[RequestOutput]":
        """All n answers, this one first."""
        return [self, *self.others]
