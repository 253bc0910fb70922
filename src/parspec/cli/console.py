"""The two streams: answers on standard output, everything else on standard error."""

import os
import sys
from pathlib import Path
from typing import TextIO

_PACKAGE = str(Path(__file__).parents[1])


class OutputClosedError(Exception):
    """Whoever read our standard output has gone (``parspec ... | head -1``)."""


class _Line:
    """Whether the last text written to standard output left its line open."""

    is_open = False


def write(text: str) -> None:
    """Write a piece of an answer and show it at once.

    Raises:
        OutputClosedError: Nobody reads any more.
    """
    if not text:
        return
    _Line.is_open = True  # should Ctrl-C come before the write is done
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError as error:
        raise OutputClosedError from error
    _Line.is_open = not text.endswith("\n")


def end_line() -> None:
    """Finish the line on standard output if one is open."""
    if _Line.is_open:
        _Line.is_open = False
        write("\n")


def forget_output() -> None:
    """Let the interpreter's last flush go nowhere instead of failing at a closed pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def note(text: str) -> None:
    """Write one line to standard error."""
    print(f"parspec: {text}", file=sys.stderr, flush=True)


def show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Show a warning of parspec's own as one line; those of libraries are for their developers.

    Has the signature of `warnings.showwarning`, which it replaces.
    """
    if filename.startswith(_PACKAGE) and not issubclass(category, DeprecationWarning):
        note("warning: " + " ".join(str(message).split()))
