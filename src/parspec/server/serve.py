"""The life of the server process: bind, serve, report, stop in order."""

import asyncio
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from parspec.errors import InvalidRequestError
from parspec.server.app import create_app
from parspec.server.service import Service

_REPORT_SECONDS = 10.0
_LOOK_SECONDS = 0.2
_FLUSH_SECONDS = 5.0
"""How long clients that are being told of the end have to take it in."""


def bind(host: str, port: int) -> socket.socket:
    """Take an address, without answering on it yet: one that is taken should be known before models are loaded.

    Raises:
        InvalidRequestError: The address cannot be had.
    """
    taken = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        # Connections of a server that has just ended must not keep its address from the next one.
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((host, port))
    except (OSError, OverflowError) as error:
        taken.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidRequestError(f"cannot serve on {host} port {port} ({reason}): choose another") from error
    return taken


def serve(service: Service, sock: socket.socket, grace_seconds: float, note: Callable[[str], None]) -> int:
    """Serve until a signal comes or the engine fails.

    SIGTERM and SIGINT let running requests finish, for at most ``grace_seconds``; a second one ends at once.

    Args:
        service: What to serve.
        sock: From `bind`.
        grace_seconds: See above.
        note: Takes the lines of the log.

    Returns:
        The exit status: 0 after a signal, 1 after the engine has failed.
    """
    with sock:
        return asyncio.run(_run(service, sock, grace_seconds, note))


async def _run(service: Service, sock: socket.socket, grace_seconds: float, note: Callable[[str], None]) -> int:
    config = uvicorn.Config(
        create_app(service),
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=int(_FLUSH_SECONDS),
    )
    server = _Server(config)
    host, port = sock.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    note(f'serving "{service.config.model_name}" on http://{shown}:{port}')
    reporting = asyncio.create_task(_report(service, note))
    ending = asyncio.create_task(_end_in_order(service, server, grace_seconds, note))
    try:
        await server.serve([sock])
    finally:
        reporting.cancel()
        ending.cancel()
        await asyncio.to_thread(service.llm.close)
    return 0 if service.llm.failure is None else 1


class _Server(uvicorn.Server):
    """Uvicorn, but a first signal is only taken note of."""

    stop_asked = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called on SIGINT and SIGTERM."""
        if self.stop_asked:
            self.should_exit = self.force_exit = True
        self.stop_asked = True


async def _end_in_order(service: Service, server: _Server, grace_seconds: float, note: Callable[[str], None]) -> None:
    """Wait for a reason to stop, then for the open requests, then stop the server."""
    while not server.stop_asked and service.llm.failure is None:
        await asyncio.sleep(_LOOK_SECONDS)
    if service.llm.failure is not None:
        note(f"the engine has failed: {type(service.llm.failure).__name__}: {service.llm.failure}")
        await service.drain(_FLUSH_SECONDS)
    else:
        num_open = service.llm.num_open
        note(f"stopping, {num_open} open requests have {grace_seconds:g} s" if num_open else "stopping")
        await service.drain(grace_seconds)
        if service.llm.num_open:
            note(f"{service.llm.num_open} requests did not finish in time")
    # Ends what is still open with an error of its own.
    await asyncio.to_thread(service.llm.close)
    server.should_exit = True


async def _report(service: Service, note: Callable[[str], None]) -> None:
    """One line of throughput at a time, while there is any."""
    metrics, llm = service.metrics, service.llm
    counters = (metrics.generation_tokens, metrics.prompt_tokens, metrics.cycles)
    before = [metrics.total(counter) for counter in counters]
    while True:
        await asyncio.sleep(_REPORT_SECONDS)
        now = [metrics.total(counter) for counter in counters]
        answer, prompt, cycles = (b - a for a, b in zip(before, now, strict=True))
        before = now
        if not (cycles or llm.num_open):
            continue
        scheduler = llm.llm.engine.scheduler
        note(
            f"{llm.num_running} running, {llm.num_waiting} waiting, {answer / _REPORT_SECONDS:.1f} tokens/s"
            f" (prompts {prompt / _REPORT_SECONDS:.1f}), {cycles / _REPORT_SECONDS:.1f} cycles/s,"
            f" cache {scheduler.reserved / max(1, scheduler.budget):.0%}"
        )
