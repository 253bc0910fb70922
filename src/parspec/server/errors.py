"""Every fault as the official API shapes it: ``{"error": {"message", "type", "param", "code"}}``."""

import logging
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from parspec.errors import (
    EngineStoppedError,
    InvalidRequestError,
    OutOfMemoryError,
    ParspecError,
    PromptTooLongError,
    QueueFullError,
)
from parspec.models.device import is_out_of_memory

LOGGER = logging.getLogger("parspec.server")
_LONGEST_SHOWN = 200


class APIError(Exception):
    """A fault on its way to the client.

    Args:
        status: HTTP status.
        message: One line: what is wrong, then what to do.
        param: Name of the field at fault.
        code: The official API's name for the fault, where it has one.
        retry_after: Seconds after which a second try makes sense.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code, self.retry_after = status, param, code, retry_after

    @property
    def body(self) -> dict[str, Any]:
        """The error object."""
        if self.status == HTTPStatus.TOO_MANY_REQUESTS:
            kind = "rate_limit_error"
        else:
            kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """The error object with its status and headers."""
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        if self.status == HTTPStatus.UNAUTHORIZED:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse(self.body, self.status, headers)


def as_api_error(error: Exception) -> APIError:
    """What the client is told of an exception; unforeseen ones are logged here, with their traceback."""
    match error:
        case APIError():
            return error
        case PromptTooLongError():
            return APIError(400, str(error), param=error.parameter, code="context_length_exceeded")
        case InvalidRequestError():
            return APIError(400, str(error), param=error.parameter)
        case OutOfMemoryError() if error.__cause__ is None:
            return APIError(400, str(error), code="request_too_large")
        case QueueFullError():
            return APIError(429, str(error), code="queue_full")
        case EngineStoppedError():
            return APIError(500, str(error), code="engine_stopped")
        case HTTPException():
            return APIError(error.status_code, _advice(error))
    if isinstance(error, OutOfMemoryError) or is_out_of_memory(error):
        return APIError(503, f"memory ran out while the request was running: {error}", code="out_of_memory")
    LOGGER.error("a request failed", exc_info=error)
    return APIError(500, f"the request failed inside the server ({type(error).__name__}): see its log")


def install_handlers(app: FastAPI) -> None:
    """Answer every exception in the official shape."""

    async def answer(request: Request, error: Exception) -> JSONResponse:
        return as_api_error(error).response()

    async def answer_validation(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return _invalid_body(error).response()

    app.add_exception_handler(RequestValidationError, answer_validation)
    for kind in (Exception, APIError, HTTPException, ParspecError):
        app.add_exception_handler(kind, answer)


def _invalid_body(error: RequestValidationError) -> APIError:
    """The first thing wrong with a body, in words that say what to do."""
    first = error.errors()[0]
    path = ".".join(str(part) for part in first["loc"][1:] if not _is_type_name(part))
    path = _printable(path)
    match first["type"]:
        case "json_invalid":
            return APIError(400, f"the body is not JSON ({first['ctx']['error']}): send a JSON object")
        case "extra_forbidden":
            return APIError(400, f"{path} is not a known parameter: leave it out", param=path, code="unknown_parameter")
        case "missing" if path:
            return APIError(400, f"{path} is missing: give it", param=path, code="missing_required_parameter")
        case "missing":
            return APIError(400, "the body is missing: send a JSON object, with Content-Type application/json")
    message = first["msg"].removeprefix("Value error, ")
    where = path or "the body"
    return APIError(400, f"{where} is not valid: {_printable(message)}", param=path or None, code="invalid_type")


def _is_type_name(part: object) -> bool:
    """Pydantic names the member of a union it tried in the path; the client knows nothing of these."""
    return isinstance(part, str) and (part.endswith("]") or part in ("str", "int", "float", "list", "dict"))


def _printable(text: str) -> str:
    """On one line, not too long, and encodable whatever the client sent."""
    shown = " ".join(text.encode("utf-8", "replace").decode().split())
    return shown if len(shown) <= _LONGEST_SHOWN else f"{shown[:_LONGEST_SHOWN]}..."


def _advice(error: HTTPException) -> str:
    match error.status_code:
        case 404:
            return "there is nothing at this address: see /openapi.json for what there is"
        case 405:
            return "this address does not take this method: see /openapi.json"
        case 413:
            return "the body is too large: send less text at once"
        case 400:
            return "the body cannot be read: send a JSON object in UTF-8, not nested deeply"
    return str(error.detail)
