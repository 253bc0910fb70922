"""The loop: admits requests, runs their forward passes together, hands out what has become final."""

from dataclasses import dataclass

import torch

from parspec.engine.cost import CostModel, measure_costs
from parspec.engine.group import Group
from parspec.engine.outputs import RequestOutput
from parspec.engine.pilot import Pilot
from parspec.engine.request import Request, make_request
from parspec.engine.scheduler import Scheduler
from parspec.models.loader import LoadedModel
from parspec.models.pair import shared_vocab_size
from parspec.sampling.params import MethodParams, SamplingParams


@dataclass(frozen=True)
class Update:
    """News of one request.

    Attributes:
        request_id: Which.
        token_ids: Tokens that have become final.
        output: The complete answer, once the request has ended.
        error: What ended the request instead; no other request is affected.
    """

    request_id: int
    token_ids: list[int]
    output: RequestOutput | None = None
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

    Raises:
        ModelError: The two models do not share a tokenizer.
    """

    def __init__(self, target: LoadedModel, draft: LoadedModel | None, defaults: MethodParams, budget: int) -> None:
        self.target = target
        self.draft = draft
        self.defaults = defaults
        self.vocab_size = shared_vocab_size(target, draft)
        self.scheduler = Scheduler(budget)
        self._next_id = 0
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

    def submit(self, request: Request) -> int:
        """Queue a checked request and return its id."""
        request_id, self._next_id = self._next_id, self._next_id + 1
        self.scheduler.submit(request_id, request)
        return request_id

    def abort(self, request_id: int) -> None:
        """Drop a request, waiting or running, and free its memory."""
        self.scheduler.remove(request_id)

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
                logits = model.forward([group.forward for group in batch.values() if group.forward])
                for (request_id, group), part in zip(batch.items(), logits, strict=True):
                    try:
                        group.send(part)
                    except Exception as error:
                        updates.append(self._fail(request_id, error))
                    else:
                        updates.extend(self._collect(request_id, group))
                break
        return updates

    def _admit(self) -> list[Update]:
        updates = []
        while (entry := self.scheduler.next_admissible()) is not None:
            request_id, request, submitted_at = entry
            try:
                pilot = self.pilot if request.method.method == "auto" else None
                if pilot is not None:
                    request = self._settle(request)
                group = Group(request, self.target, self.draft, self.vocab_size, submitted_at, pilot)
            except Exception as error:
                updates.append(self._fail(request_id, error))
            else:
                self.scheduler.running[request_id] = group
        return updates

    def _settle(self, request: Request) -> Request:
        """Choose the method of a request that left it open."""
        needs_smc = request.sampling.power != 1 or bool(request.sampling.potentials)
        method = self.pilot.choose(request.method, len(self.scheduler.waiting) + 1, needs_smc=needs_smc)
        return request.with_method(method, self.target.model, None if self.draft is None else self.draft.model)

    def _measure_costs(self) -> CostModel:
        assert self.draft is not None
        return measure_costs(self.target.model, self.draft.model)

    def _collect(self, request_id: int, group: Group) -> list[Update]:
        final = group.take_final()
        if group.output is not None:
            self.scheduler.remove(request_id)
        return [Update(request_id, final, group.output)] if final or group.output else []

    def _fail(self, request_id: int, error: Exception) -> Update:
        self.scheduler.remove(request_id)
        return Update(request_id, [], error=error)
