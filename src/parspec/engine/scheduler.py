"""Who runs and who waits: first come, first served, within a memory budget."""

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
        waiting: Ids and requests that have not started, oldest first, with their time of submission.
        running: Groups by id.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.waiting: deque[tuple[int, Request, float]] = deque()
        self.running: dict[int, Group] = {}

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
        if not self.waiting or self.reserved + self.waiting[0][1].reservation.num_bytes > self.budget:
            return None
        return self.waiting.popleft()

    def remove(self, request_id: int) -> None:
        """Forget a request, waiting or running, and free its memory; unknown ids are ignored."""
        group = self.running.pop(request_id, None)
        if group is not None:
            group.close()
        self.waiting = deque(entry for entry in self.waiting if entry[0] != request_id)
