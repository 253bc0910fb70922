"""Who runs and who waits: first come, first served, within a memory budget and a number of requests."""

import time
from collections import deque

from parspec.engine.group import Group
from parspec.engine.request import Request
from parspec.errors import OutOfMemoryError

_GIB = 1024**3


class Scheduler:
    """Two queues and a budget.

    Attributes:
        budget: Bytes all running requests together may reserve.
        max_running: Most requests that run at once; None for as many as the budget holds.
        waiting: Ids and requests that have not started, oldest first, with their time of submission.
        running: Groups by id.
        blocked: Whether the oldest waiting request was found not to fit when it was last tried.
    """

    def __init__(self, budget: int, max_running: int | None = None) -> None:
        self.budget = budget
        self.max_running = max_running
        self.waiting: deque[tuple[int, Request, float]] = deque()
        self.running: dict[int, Group] = {}
        self.blocked = False

    @property
    def reserved(self) -> int:
        """Bytes the running requests have reserved."""
        return sum(group.request.reservation.num_bytes for group in self.running.values())

    def check_fits(self, request: Request) -> None:
        """Refuse a request that could never run.

        Raises:
            OutOfMemoryError: Says how much it needs, how much there is, and what to lower.
        """
        needed = request.reservation.num_bytes
        if needed > self.budget:
            raise OutOfMemoryError(
                f"the request needs {needed / _GIB:.2f} GiB of cache but the budget is {self.budget / _GIB:.2f} GiB: "
                f"lower max_tokens ({request.max_tokens}), num_particles ({request.method.rows}), "
                f"num_draft_tokens ({request.method.num_draft_tokens}) or the prompt ({len(request.prompt)} tokens), "
                "or raise cache_memory"
            )

    def submit(self, request_id: int, request: Request) -> None:
        """Queue a request that has passed `check_fits`."""
        self.waiting.append((request_id, request, time.perf_counter()))

    def next_admissible(self) -> tuple[int, Request, float] | None:
        """Take the oldest waiting request off the queue if its reservation fits beside the running ones."""
        self.blocked = bool(self.waiting) and not self._fits(self.waiting[0][1])
        return None if self.blocked or not self.waiting else self.waiting.popleft()

    def _fits(self, request: Request) -> bool:
        if self.max_running is not None and len(self.running) >= self.max_running:
            return False
        return self.reserved + request.reservation.num_bytes <= self.budget

    def remove(self, request_id: int) -> None:
        """Forget a request, waiting or running, and free its memory; unknown ids are ignored."""
        group = self.running.pop(request_id, None)
        if group is not None:
            group.close()
        self.waiting = deque(entry for entry in self.waiting if entry[0] != request_id)
