"""One request: what is asked for, checked and sized before anything runs."""

import secrets
from dataclasses import dataclass, replace

from parspec.decoding.prefill import CHUNK
from parspec.engine.reservation import Reservation
from parspec.errors import InvalidRequestError, PromptTooLongError
from parspec.models.interface import LanguageModel
from parspec.models.loader import LoadedModel
from parspec.sampling.adjustments import Adjustments
from parspec.sampling.constraint import Constraint
from parspec.sampling.params import MethodParams, SamplingParams
from parspec.sampling.stopping import StopCondition


@dataclass(frozen=True)
class Request:
    """A checked request, ready to be queued.

    Attributes:
        prompt: Token ids, at least one.
        sampling: Sampling parameters.
        method: Method parameters, the engine's defaults filled in.
        max_tokens: Most tokens the answer may have, within the target's context.
        stop: Decides where a sequence ends.
        adjustments: What it does to logits.
        constraint: What the answer's text must look like, if anything.
        reservation: The memory it holds while it runs.
        seed: Seed of all its draws.
        scored: Whether the prompt is only to be read.
        watched: Whether its cycle reports are to say what happened to every particle.
    """

    prompt: list[int]
    sampling: SamplingParams
    method: MethodParams
    max_tokens: int
    stop: StopCondition
    adjustments: Adjustments
    constraint: Constraint | None
    reservation: Reservation
    seed: int
    scored: bool = False
    watched: bool = False

    def with_method(self, method: MethodParams, target: LanguageModel, draft: LanguageModel | None) -> "Request":
        """The same request by another method, with the memory that one needs."""
        num_logits = 1 if self.sampling.prompt_logprobs is None else CHUNK
        reservation = Reservation.of(len(self.prompt), self.max_tokens, method, target, draft, num_logits)
        return replace(self, method=method, reservation=reservation)

    def runs(self) -> "list[Request]":
        """One request for each of the n answers: the same with seeds in a row."""
        return [replace(self, seed=(self.seed + index) % 2**63) for index in range(self.sampling.n)]


def make_request(
    prompt: list[int],
    sampling: SamplingParams,
    defaults: MethodParams,
    target: LoadedModel,
    draft: LoadedModel | None,
    vocab_size: int,
    *,
    scored: bool = False,
) -> Request:
    """Check a prompt and its parameters against the models.

    Args:
        prompt: Token ids.
        sampling: Sampling parameters, with the method parameters that differ from the defaults.
        defaults: The engine's method parameters.
        target: The model aimed at.
        draft: The model that proposes, or None.
        vocab_size: Number of ids that may occur.
        scored: Whether the prompt is only to be read, for its log-probabilities.

    Raises:
        InvalidRequestError: The prompt or a parameter cannot be served; nothing has been run.
    """
    method = defaults.override(sampling)
    if not prompt:
        raise InvalidRequestError("the prompt is empty: give at least one token", "prompt")
    outside = next((index for index in prompt if not 0 <= index < vocab_size), None)
    if outside is not None:
        raise InvalidRequestError(
            f"prompt token id {outside} is outside the vocabulary: use ids 0 to {vocab_size - 1}", "prompt"
        )
    if method.method == "auto" and draft is None:
        method = replace(defaults, method="autoregressive", preset=None).override(
            replace(sampling, method=None, preset=None)
        )
    needs_draft = method.method != "autoregressive"
    if needs_draft and draft is None:
        raise InvalidRequestError(
            f'method "{method.method}" needs a draft model: give one, or use "autoregressive"', "method"
        )
    for model in (target, draft if needs_draft else None):
        # The target also has to have room for one token of the answer, if there is to be one.
        room = 0 if model is None else model.context - (1 if model is target and not scored else 0)
        if model is not None and len(prompt) > room:
            raise PromptTooLongError(
                f'the prompt has {len(prompt)} tokens but "{model.name}" takes at most {room}: shorten the prompt',
                "prompt",
            )
    stop = StopCondition(sampling, target.eos_ids, target.tokenizer, vocab_size)
    device = target.model.cache_shape.device
    room = max(1, target.context - len(prompt))
    max_tokens = room if sampling.max_tokens is None else min(sampling.max_tokens, room)
    return Request(
        prompt=prompt,
        sampling=sampling,
        method=method,
        max_tokens=max_tokens,
        stop=stop,
        constraint=Constraint(sampling, stop.ids, target.tokenizer, vocab_size) if sampling.constrained else None,
        adjustments=Adjustments(sampling, prompt, stop.ids, target.tokenizer, vocab_size, device),
        reservation=Reservation.of(
            len(prompt),
            max_tokens,
            method,
            target.model,
            draft.model if draft is not None and needs_draft else None,
            num_logits=1 if sampling.prompt_logprobs is None else CHUNK,
        ),
        scored=scored,
        seed=secrets.randbits(63) if sampling.seed is None else sampling.seed,
    )
