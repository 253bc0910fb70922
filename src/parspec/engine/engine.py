"""The loop: admits requests, runs their forward passes together, hands out what has become final."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import count

import torch
from torch import Tensor

from parspec.decoding.logprobs import TokenLogProb
from parspec.decoding.task import CycleReport
from parspec.engine.cost import CostModel, measure_costs
from parspec.engine.group import Group
from parspec.engine.outputs import RequestOutput
from parspec.engine.pilot import Pilot
from parspec.engine.request import Request, make_request
from parspec.engine.scheduler import Scheduler
from parspec.errors import InvalidRequestError, OutOfMemoryError
from parspec.models.device import is_out_of_memory
from parspec.models.interface import LanguageModel
from parspec.models.loader import LoadedModel
from parspec.models.pair import shared_vocab_size
from parspec.sampling.params import MethodParams, SamplingParams


@dataclass(frozen=True)
class Update:
    """News of one request.

    Attributes:
        request_id: Which.
        token_ids: Tokens that have become final.
        reports: Cycles it has been through.
        output: The complete answer, once the request has ended.
        log_probs: Of those tokens, if the request wants them.
        error: What ended the request instead; no other request is affected.
    """

    request_id: int
    token_ids: list[int]
    reports: list[CycleReport] = field(default_factory=list)
    output: RequestOutput | None = None
    log_probs: list[TokenLogProb] = field(default_factory=list)
    error: Exception | None = None


class Engine:
    """Serves any number of requests on one pair of models by continuous batching.

    Requests of different prompts, methods and parameters share forward passes. A waiting request enters, and a
    finished one leaves, between any two passes.

    Args:
        target: The model aimed at.
        draft: The model that proposes, or None.
        defaults: Method parameters for requests that do not set their own.
        budget: Bytes the caches of all running requests may take.
        max_running: Most requests that run at once; None for as many as fit into the budget.

    Raises:
        ModelError: The two models do not share a tokenizer.
    """

    def __init__(
        self,
        target: LoadedModel,
        draft: LoadedModel | None,
        defaults: MethodParams,
        budget: int,
        max_running: int | None = None,
    ) -> None:
        self.target = target
        self.draft = draft
        self.defaults = defaults
        self.vocab_size = shared_vocab_size(target, draft)
        self.scheduler = Scheduler(budget, max_running)
        self._ids = count()
        self.pilot = Pilot(self._measure_costs, lambda: len(self.scheduler.running))

    def check(self, prompt: list[int], sampling: SamplingParams) -> Request:
        """Check a prompt and its parameters without queueing anything.

        Raises:
            InvalidRequestError: They cannot be served.
            OutOfMemoryError: The request alone exceeds the memory budget.
        """
        request = make_request(prompt, sampling, self.defaults, self.target, self.draft, self.vocab_size)
        self.scheduler.check_fits(request)
        return request

    def check_score(self, token_ids: list[int], num_top: int) -> Request:
        """Check a text that is to be scored; see `check`."""
        if len(token_ids) < 2:
            raise InvalidRequestError("the text has fewer than two tokens: only tokens after the first are scored")
        plain = replace(self.defaults, method="autoregressive", preset=None)
        request = make_request(
            token_ids,
            SamplingParams(max_tokens=1, prompt_logprobs=num_top),
            plain,
            self.target,
            self.draft,
            self.vocab_size,
            scored=True,
        )
        self.scheduler.check_fits(request)
        return request

    def new_id(self) -> int:
        """An id no request has; may be called from any thread."""
        return next(self._ids)

    def submit(self, request: Request, request_id: int | None = None) -> int:
        """Queue a checked request, under an id from `new_id` or a fresh one, and return its id."""
        request_id = self.new_id() if request_id is None else request_id
        self.scheduler.submit(request_id, request)
        return request_id

    def abort(self, request_id: int) -> None:
        """Drop a request, waiting or running, and free its memory."""
        self.scheduler.remove(request_id)

    def abort_all(self) -> None:
        """Drop every request."""
        for request_id in [*self.scheduler.running, *(entry[0] for entry in self.scheduler.waiting)]:
            self.abort(request_id)

    @property
    def has_work(self) -> bool:
        """Whether any request is waiting or running."""
        return bool(self.scheduler.waiting or self.scheduler.running)

    @torch.inference_mode()
    def step(self) -> list[Update]:
        """Admit what fits and run one forward pass, of the draft while any request drafts, else of the target.

        Returns:
            News of the requests that had any; ended ones have left the engine.
        """
        updates = self._admit()
        running = self.scheduler.running
        # Drafting requests go first, so that all of them meet in the same scoring pass.
        models = [model.model for model in (self.draft, self.target) if model is not None]
        for model in models:
            batch = {i: group for i, group in running.items() if group.forward and group.forward.model is model}
            if batch:
                for request_id, part in self._forward(model, batch).items():
                    try:
                        if isinstance(part, Exception):
                            raise part
                        batch[request_id].send(part)
                    except Exception as error:
                        updates.append(self._fail(request_id, error))
                    else:
                        updates.extend(self._collect(request_id, batch[request_id]))
                break
        return updates

    def _forward(self, model: LanguageModel, batch: Mapping[int, Group]) -> dict[int, Tensor | Exception]:
        """Logits for each group; where memory runs out for all of them together, one after the other.

        Caches advance only when a pass is through, so that a pass can be repeated.
        """
        passes = {request_id: group.forward for request_id, group in batch.items() if group.forward}
        try:
            return dict(zip(passes, model.forward(list(passes.values())), strict=True))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            if len(passes) == 1:
                shortage = OutOfMemoryError(
                    "memory ran out while the request was running: lower its max_tokens or num_particles, "
                    "or cache_memory for all"
                )
                shortage.__cause__ = error
                return dict.fromkeys(passes, shortage)
        return {
            request_id: logits
            for one, group in batch.items()
            for request_id, logits in self._forward(model, {one: group}).items()
        }

    def _admit(self) -> list[Update]:
        updates = []
        while (entry := self.scheduler.next_admissible()) is not None:
            request_id, request, submitted_at = entry
            try:
                left_open = request.method.method == "auto"
                pilot = self.pilot if left_open and request.sampling.seed is None else None
                if left_open:
                    request = self._settle(request)
                group = Group(request, self.target, self.draft, self.vocab_size, submitted_at, pilot)
            except Exception as error:
                updates.append(self._fail(request_id, error))
            else:
                self.scheduler.running[request_id] = group
        return updates

    def _settle(self, request: Request) -> Request:
        """Choose the method of a request that left it open."""
        needs_smc = bool(request.sampling.needing_smc)
        if request.sampling.seed is None:
            method = self.pilot.choose(request.method, len(self.scheduler.waiting) + 1, needs_smc=needs_smc)
        else:
            method = self.pilot.fixed(request.method, needs_smc=needs_smc)
        return request.with_method(method, self.target.model, None if self.draft is None else self.draft.model)

    def _measure_costs(self) -> CostModel:
        assert self.draft is not None
        return measure_costs(self.target.model, self.draft.model)

    def _collect(self, request_id: int, group: Group) -> list[Update]:
        final, log_probs, reports = group.take_final(), group.take_log_probs(), group.take_reports()
        if group.output is not None:
            self.scheduler.remove(request_id)
        if not (final or reports or group.output):
            return []
        return [Update(request_id, final, reports, group.output, log_probs)]

    def _fail(self, request_id: int, error: Exception) -> Update:
        self.scheduler.remove(request_id)
        return Update(request_id, [], error=error)
