"""A running request: its decoding method, its caches, and what it has done so far."""

import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from parspec.decoding import METHODS
from parspec.decoding.logprobs import TokenLogProb
from parspec.decoding.prefill import score
from parspec.decoding.task import CycleReport, Outcome, Task
from parspec.engine.outputs import FinishReason, Metrics, Posterior, PosteriorParticle, RequestOutput
from parspec.engine.pilot import Pilot
from parspec.engine.request import Request
from parspec.models.interface import Forward
from parspec.models.loader import LoadedModel

_HOST_STREAM = 0x5DEECE66D
"""Separates the seed of resampling draws from that of token draws."""


class Group:
    """One request between its admission and its end.

    Args:
        request: What is asked for, its method settled.
        target: The model aimed at.
        draft: The model that proposes, or None.
        vocab_size: Number of ids that may be drawn.
        submitted_at: When it was queued.
        pilot: Chooses the draft length of each cycle; None for the request's own.

    Attributes:
        request: What is asked for.
        forward: The forward pass it waits for; None once it has ended.
        output: The answer, once it has ended.
    """

    def __init__(
        self,
        request: Request,
        target: LoadedModel,
        draft: LoadedModel | None,
        vocab_size: int,
        submitted_at: float,
        pilot: Pilot | None = None,
    ) -> None:
        self.request = request
        self.forward: Forward | None = None
        self.output: RequestOutput | None = None
        self._submitted_at = submitted_at
        self._started_at = time.perf_counter()
        self._first_token_at: float | None = None
        self._reports: list[CycleReport] = []
        self._new_reports: list[CycleReport] = []
        self._new_final: list[int] = []
        self._new_log_probs: list[TokenLogProb] = []
        self._num_final = 0
        device = target.model.cache_shape.device
        reservation = request.reservation
        draft_length: Callable[[], int] = lambda: request.method.num_draft_tokens  # noqa: E731
        self._observe: Callable[[CycleReport], None] | None = None
        if pilot is not None:
            draft_length, self._observe = pilot.steer(request.method)
        uses_draft = request.method.method != "autoregressive"
        task = Task(
            prompt=torch.tensor(request.prompt, device=device),
            max_tokens=request.max_tokens,
            sampling=request.sampling,
            adjustments=request.adjustments,
            constraint=request.constraint,
            method=request.method,
            target=target.model,
            target_cache=reservation.cache_for(target.model),
            draft=draft.model if draft is not None and uses_draft else None,
            draft_cache=reservation.cache_for(draft.model) if draft is not None and uses_draft else None,
            vocab_size=vocab_size,
            stop=request.stop,
            decode=request.stop.text,
            generator=torch.Generator(device).manual_seed(request.seed),
            host_generator=torch.Generator().manual_seed(request.seed ^ _HOST_STREAM),
            report=self._record,
            draft_length=draft_length,
            watched=request.watched,
        )
        self._decoding = score(task) if request.scored else METHODS[request.method.method](task)
        self._advance(lambda: next(self._decoding))

    def send(self, logits: Tensor) -> None:
        """Continue with the logits of the pass it waited for."""
        self._advance(lambda: self._decoding.send(logits))

    def take_final(self) -> list[int]:
        """Token ids that have become final since the last call, in order."""
        final, self._new_final = self._new_final, []
        return final

    def take_log_probs(self) -> list[TokenLogProb]:
        """Log-probabilities of the tokens that have become final since the last call, if they are wanted."""
        taken, self._new_log_probs = self._new_log_probs, []
        return taken

    def take_reports(self) -> list[CycleReport]:
        """Reports of the cycles since the last call."""
        reports, self._new_reports = self._new_reports, []
        return reports

    def close(self) -> None:
        """Stop at once and let go of the caches."""
        self._decoding.close()
        self.forward = None

    def _advance(self, resume: Callable[[], Forward]) -> None:
        try:
            self.forward = resume()
        except StopIteration as end:
            self.forward = None
            self.output = self._finish(end.value)

    def _record(self, report: CycleReport) -> None:
        self._new_reports.append(report)
        self._reports.append(replace(report, trace=None, log_probs=None))
        if self._observe is not None:
            self._observe(report)
        if report.final and self._first_token_at is None:
            self._first_token_at = time.perf_counter()
        self._new_final.extend(report.final)
        self._new_log_probs.extend(report.log_probs or [])
        self._num_final += len(report.final)

    def _finish(self, outcome: Outcome) -> RequestOutput:
        chosen, text = outcome.particles[outcome.chosen], self.request.stop.text
        self._new_final.extend(chosen.token_ids[self._num_final :])
        self._new_log_probs.extend((chosen.log_probs or [])[self._num_final :])
        seconds = time.perf_counter() - self._started_at
        return RequestOutput(
            prompt_token_ids=self.request.prompt,
            text=text(chosen.token_ids),
            token_ids=chosen.token_ids,
            finish_reason=_reason(chosen.stopped),
            posterior=Posterior(
                particles=[
                    PosteriorParticle(p.token_ids, text(p.token_ids), p.weight, _reason(p.stopped), p.log_prob)
                    for p in outcome.particles
                ],
                log_evidence=outcome.log_evidence,
                ess=[report.ess for report in self._reports if report.ess is not None],
                intervals=outcome.intervals,
                unique_ancestors=outcome.unique_ancestors,
            ),
            metrics=Metrics(
                num_prompt_tokens=len(self.request.prompt),
                num_tokens=len(chosen.token_ids),
                queue_seconds=self._started_at - self._submitted_at,
                first_token_seconds=(None if self._first_token_at is None else self._first_token_at - self._started_at),
                seconds=seconds,
                cycles=len(self._reports),
                num_drafted=sum(report.drafted for report in self._reports),
                num_kept=sum(report.kept for report in self._reports),
                advanced=sum(report.advanced for report in self._reports),
                resamplings=sum(report.resampled for report in self._reports),
            ),
            method=self.request.method.method,
            seed=self.request.seed,
            log_probs=chosen.log_probs,
            prompt_log_probs=outcome.prompt_log_probs,
        )


def _reason(stopped: bool) -> FinishReason:
    return "stop" if stopped else "length"
