"""Bodies that are too large are refused before they are read."""

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parspec.server.errors import as_api_error


class BodyLimit:
    """Middleware that refuses bodies of more than so many bytes, in the official error shape.

    FastAPI's own limit answers in plain text.

    Args:
        app: The application behind it.
        max_bytes: Largest body let through.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app, self._max_bytes = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the ASGI specification."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = Headers(scope=scope).get("content-length", "0")
        if announced.isdecimal() and int(announced) > self._max_bytes:
            await as_api_error(HTTPException(413)).response()(scope, receive, send)
            return
        num_bytes = 0

        async def limited() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._max_bytes:
                raise HTTPException(413)
            return message

        await self._app(scope, limited, send)
