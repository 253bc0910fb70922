"""``parspec chat``: a conversation on the terminal."""

import contextlib
import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from parspec.cli.console import end_line, note, write
from parspec.cli.loading import load
from parspec.cli.options import ModelOptions, RequestOptions, expand_options, paragraphs
from parspec.cli.report import statistics_table
from parspec.errors import InvalidRequestError, OutOfMemoryError

if TYPE_CHECKING:
    from parspec.llm import LLM
    from parspec.sampling.params import SamplingParams

HELP = paragraphs(
    """
    Talk with a model.

    One line is one message; the whole conversation is the context of the next answer.

    /reset forgets the conversation, /quit or Ctrl-D leaves, Ctrl-C stops the answer that is being written
    (what has been shown of it stays in the conversation). Messages can also come from a pipe, one a line.
    """
)

EPILOG = """\
[bold]Examples[/bold]
  parspec chat --temperature 0.7
  parspec chat --system "You review Python code." --method speculative --stats

Exit statuses are listed by parspec --help.
"""


@expand_options
def chat(
    models: ModelOptions,
    request: RequestOptions,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="System message at the conversation's start.")
    ] = None,
    stats: Annotated[
        bool,
        typer.Option("--stats", help="Print a table of statistics after each answer."),
    ] = False,
) -> None:
    """Talk with a model."""
    sampling = request.params()
    llm = load(models, sampling)
    start = [] if system is None else [{"role": "system", "content": system}]
    llm.chat_prompt([*start, {"role": "user", "content": "Hello"}])  # without a chat template, say so now
    interactive = sys.stdin.isatty()
    if interactive:
        _enable_line_editing()
        note("/reset forgets the conversation, /quit or Ctrl-D leaves, Ctrl-C stops an answer")
    messages = list(start)
    while True:
        try:
            line = input("> " if interactive else "").strip()
        except EOFError:
            if interactive:
                write("\n")
            return
        except KeyboardInterrupt:
            if not interactive:
                raise
            write("\n")
            continue
        if line == "/quit":
            return
        if line == "/reset":
            messages = list(start)
            note("the conversation is forgotten")
        elif line.startswith("/"):
            note(f"{line.split()[0]} is unknown: use /reset or /quit")
        elif line:
            asked = [*messages, {"role": "user", "content": line}]
            try:
                answer = _answer(llm, asked, sampling, stats, interactive)
            except (InvalidRequestError, OutOfMemoryError) as error:
                if not interactive:
                    raise
                note(f"error: {error} (or /reset)")
                continue
            if answer:
                messages = [*asked, {"role": "assistant", "content": answer}]


def _answer(
    llm: "LLM", messages: list[dict[str, str]], sampling: "SamplingParams", stats: bool, interactive: bool
) -> str:
    """Show an answer as it becomes final, and return what was shown of it."""
    answer, output = "", None
    try:
        for chunk in llm.stream(llm.chat_prompt(messages), sampling):
            write(chunk.text)
            answer += chunk.text
            output = chunk.output
    except KeyboardInterrupt:
        if not interactive:
            raise
    end_line()
    if stats and output is not None:
        Console(stderr=True).print(statistics_table(output))
    return answer


def _enable_line_editing() -> None:
    """History and editing keys for `input`, where the platform has them."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401
