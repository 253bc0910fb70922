"""Calling what the user gave: processors, potentials, extractors."""

from collections.abc import Callable
from typing import Any

from parspec.errors import ParspecError


def call(function: Callable[..., Any], what: str, *arguments: Any) -> Any:
    """What a user's function returns.

    Its own exceptions are the user's to see. Those with a meaning for whoever runs the engine (an exit, the end of
    an iteration) would stop more than the one request, and become an error of that request.

    Args:
        function: The function.
        what: How to name it in an error.
        arguments: Its arguments.

    Raises:
        ParspecError: The function raised such an exception.
    """
    try:
        return function(*arguments)
    except BaseException as error:
        own = isinstance(error, Exception) and not isinstance(error, StopIteration)
        if own or isinstance(error, KeyboardInterrupt):
            raise
        raise ParspecError(f"{what} raised {type(error).__name__}: return a value, or raise another error") from error
