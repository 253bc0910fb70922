"""Answers on the wire: server-sent events, and what happens when a client goes away."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from parspec.server.errors import APIError, as_api_error

T = TypeVar("T")

_CLIENT_CLOSED = 499
"""The status for a client that is gone; nobody will read it."""


class EventStream(StreamingResponse):
    """A stream of server-sent events.

    Args:
        frames: The encoded events.
        on_end: Called when the response is over: complete, failed, or because the client has gone.
    """

    media_type = "text/event-stream"

    def __init__(self, frames: AsyncIterator[bytes], on_end: Callable[[], None]) -> None:
        # X-Accel-Buffering: proxies like nginx would otherwise hold pieces back.
        super().__init__(frames, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See StreamingResponse."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()


async def frames(events: AsyncIterator[dict[str, Any]], silent_seconds: float) -> AsyncIterator[bytes]:
    """Encode events, put a comment wherever nothing has come for a while, and end with ``[DONE]``.

    Args:
        events: Objects for JSON.
        silent_seconds: How long nobody should have to wait for a sign of life.

    Yields:
        Server-sent events. A fault after the first is an event of its own, since the status has gone out.

    Raises:
        Exception: A fault before the first event.
    """
    started = False
    upcoming = asyncio.ensure_future(anext(events))
    try:
        while True:
            done, _ = await asyncio.wait([upcoming], timeout=silent_seconds)
            if not done:
                started = True
                yield b": still working\n\n"
                continue
            try:
                event = upcoming.result()
            except StopAsyncIteration:
                yield b"data: [DONE]\n\n"
                return
            except Exception as error:
                if not started:
                    raise
                yield _encode(as_api_error(error).body)
                return
            started = True
            yield _encode(event)
            upcoming = asyncio.ensure_future(anext(events))
    finally:
        upcoming.cancel()


async def chain(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """One frame, then the others."""
    yield first
    async for frame in rest:
        yield frame


async def while_connected(request: Request, work: Awaitable[T]) -> T:
    """Wait for something as long as the client does.

    Raises:
        APIError: The client has gone; the work has been cancelled.
        Exception: What the work raises.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnection(request))
    try:
        await asyncio.wait([working, watching], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise APIError(_CLIENT_CLOSED, "the client has gone")
    finally:
        working.cancel()
        watching.cancel()


async def _disconnection(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _encode(content: dict[str, Any]) -> bytes:
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return b"data: " + text.encode() + b"\n\n"
