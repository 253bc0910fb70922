"""The application: its commands, and the one place where a fault becomes a line and an exit status."""

import sys
import warnings
from collections.abc import Sequence
from typing import Annotated

import typer

from parspec._version import __version__
from parspec.cli import bench, chat, generate, pull, serve
from parspec.cli.console import OutputClosedError, end_line, forget_output, note, show_warning
from parspec.cli.options import paragraphs
from parspec.errors import ParspecError

ERROR, INTERRUPTED, CLOSED = 2, 130, 141

_HELP = paragraphs(
    """
    Answer with a large language model, faster: a small model drafts, the large one corrects.

    The drafts of a whole population of particles are scored by the large model in one pass, then
    reweighted and resampled (sequential Monte Carlo speculative decoding, method smc). Rejection sampling
    (speculative) and plain decoding (autoregressive) are there to compare with.

    Text goes to standard output as it becomes final, everything else to standard error.
    """
)

_EPILOG = """\
[bold]Examples[/bold]
  parspec pull
  parspec generate --temperature 0.7 --stats "Write a binary search in Python"
  git diff | parspec generate --system "Write a commit message."
  parspec generate --target ./large --draft ./small --json "Hello"
  parspec chat --temperature 0.7
  parspec serve --port 8000
  parspec bench speed --short

[bold]Exit status[/bold]
  0    done
  1    a fault of parspec itself: please report it with the traceback
  2    bad input, or a model that cannot be had or served: one line says why
  130  interrupted (Ctrl-C)
  141  the reader of standard output went away

[bold]Files[/bold]
  Models are kept in the user's cache directory (~/.cache/parspec on Linux);
  --cache-dir names another.
"""

app = typer.Typer(
    help=_HELP,
    epilog=_EPILOG,
    rich_markup_mode="rich",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(help=pull.HELP, epilog=pull.EPILOG)(pull.pull)
app.command(help=generate.HELP, epilog=generate.EPILOG)(generate.generate)
app.command(help=chat.HELP, epilog=chat.EPILOG)(chat.chat)
app.command(help=serve.HELP, epilog=serve.EPILOG)(serve.serve)
app.add_typer(bench.app, name="bench")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"parspec {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave."),
    ] = False,
) -> None:
    """Holds the options that come before the command."""


def main(args: Sequence[str] | None = None) -> int:
    """Run a command line.

    Args:
        args: Arguments without the program's name; those of the process if left out.

    Returns:
        The exit status; ``parspec --help`` lists them.
    """
    arguments = list(sys.argv[1:] if args is None else args)
    with warnings.catch_warnings():
        warnings.showwarning = show_warning
        try:
            # Outside standalone mode typer leaves errors to us and returns the status of an early exit.
            status = app(arguments or ["--help"], prog_name="parspec", standalone_mode=False)
        except (ParspecError, typer.TyperException, OSError) as error:
            return _fail(error)
        except (KeyboardInterrupt, typer.Abort):
            status = INTERRUPTED
        except OutputClosedError:
            forget_output()
            return CLOSED
    if status == INTERRUPTED:
        end_line()
    return int(status or 0)


def _fail(error: Exception) -> int:
    """Say in one line what went wrong."""
    end_line()
    if isinstance(error, typer.TyperException):
        message = f"{error.format_message().rstrip('.')}: see parspec --help"
    elif isinstance(error, OSError) and error.strerror:
        message = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    else:
        message = str(error)
    note("error: " + " ".join(message.split()))
    return ERROR
