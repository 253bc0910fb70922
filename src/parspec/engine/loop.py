"""An engine that runs by itself, on a thread of its own."""

import threading
from collections.abc import Callable, Sequence

from parspec.engine.engine import Engine, Update
from parspec.engine.request import Request

_CLOSING_SECONDS = 30.0
"""How long closing waits for the pass that is under way."""


class EngineLoop:
    """Steps an engine while it has work, and sleeps otherwise.

    Everything that touches requests happens on the loop's thread; other threads leave commands for it.

    Args:
        engine: Not to be stepped by anybody else.
        deliver: Called on the loop's thread with the news of every step.
        fail: Called on the loop's thread, as the last thing it does, if the engine itself fails.
    """

    def __init__(
        self,
        engine: Engine,
        deliver: Callable[[Sequence[Update]], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._engine, self._deliver, self._fail = engine, deliver, fail
        self._commands: list[Callable[[], object]] = []
        self._wake = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="parspec-engine", daemon=True)
        self._thread.start()

    def submit(self, request: Request, request_id: int) -> None:
        """Queue a checked request under an id from `Engine.new_id`."""
        self._leave(lambda: self._engine.submit(request, request_id))

    def abort(self, request_id: int) -> None:
        """Drop a request before the next pass, and free its memory; one that has ended is ignored."""
        self._leave(lambda: self._engine.abort(request_id))

    def close(self) -> None:
        """Stop after the pass under way, drop all requests, and wait until that is done."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSING_SECONDS)

    def _leave(self, command: Callable[[], object]) -> None:
        with self._wake:
            self._commands.append(command)
            self._wake.notify()

    def _take(self) -> list[Callable[[], object]]:
        """The commands left, once there are any or the engine has work."""
        with self._wake:
            self._wake.wait_for(lambda: self._closing or self._commands or self._engine.has_work)
            commands, self._commands = self._commands, []
            return commands

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            self._step_until_closed()
        except BaseException as error:  # nobody may wait for a thread that has gone
            failure = error
        self._engine.abort_all()
        if failure is not None:
            self._fail(failure)

    def _step_until_closed(self) -> None:
        while True:
            for command in self._take():
                command()
            if self._closing:
                return
            updates = self._engine.step()
            if updates:
                self._deliver(updates)
