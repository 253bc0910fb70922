"""``parspec generate``: answer one prompt."""

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from parspec.cli.console import end_line, note, write
from parspec.cli.loading import load
from parspec.cli.options import ModelOptions, RequestOptions, expand_options, paragraphs
from parspec.cli.report import as_json_object, statistics_table
from parspec.errors import InvalidRequestError

if TYPE_CHECKING:
    from parspec.engine.outputs import RequestOutput
    from parspec.llm import LLM, Prompt

HELP = paragraphs(
    """
    Answer one prompt.

    The prompt is the argument or, without one, standard input. It is laid out by the model's chat
    template if the model has one; --raw lets the model continue the prompt as it stands. The answer
    appears on standard output as it becomes final: with smc a token is final once all particles agree on
    it.
    """
)

EPILOG = """\
[bold]Examples[/bold]
  parspec generate --temperature 0.7 --seed 1 "Sort a dict by value"
  parspec generate --num-particles 16 --cut-threshold 0.5 < question.txt
  parspec generate --raw --stop $'\\n\\n' "def quicksort(values):"
  parspec generate --json "Name a prime" | jq '.posterior.particles[].weight'

Exit statuses are listed by parspec --help.
"""


@expand_options
def generate(
    models: ModelOptions,
    request: RequestOptions,
    prompt: Annotated[str | None, typer.Argument(metavar="PROMPT", help="The prompt. Default: standard input.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Use no chat template.")] = False,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="System message before the prompt.")] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON object: answer, particles, weights, metrics."),
    ] = False,
    stats: Annotated[bool, typer.Option("--stats", help="Print a table of statistics to standard error.")] = False,
) -> None:
    """Answer one prompt."""
    sampling = request.params()
    if raw and system is not None:
        raise InvalidRequestError("--system needs the chat template: leave out --raw")
    text = _checked(_read_prompt(raw) if prompt is None else prompt)
    llm = load(models, sampling)
    laid_out = _lay_out(llm, text, raw, None if system is None else _checked(system))
    output: RequestOutput | None = None
    if as_json:
        output = llm.generate(laid_out, sampling)[0]
        draft = llm.engine.draft
        plain = as_json_object(output, llm.engine.target.name, None if draft is None else draft.name)
        write(json.dumps(plain, ensure_ascii=False, allow_nan=False) + "\n")
    else:
        for chunk in llm.stream(laid_out, sampling):
            write(chunk.text)
            output = chunk.output
        end_line()
    if stats and output is not None:
        Console(stderr=True).print(statistics_table(output))


def _read_prompt(raw: bool) -> str:
    if sys.stdin.isatty():
        note("reading the prompt from the terminal; Ctrl-D on an empty line ends it")
    try:
        text = sys.stdin.read()
    except UnicodeDecodeError as error:
        raise InvalidRequestError("standard input is not UTF-8 text: convert it first") from error
    # As with the shell's $(...), the newline that ends a text file is not part of a question.
    return text if raw else text.removesuffix("\n")


def _checked(text: str) -> str:
    """Refuse what no tokenizer can take, before any model is loaded."""
    if not text:
        raise InvalidRequestError("the prompt is empty: give it as an argument or on standard input")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError("the prompt is not UTF-8 text: convert it first") from error
    return text


def _lay_out(llm: "LLM", text: str, raw: bool, system: str | None) -> "Prompt":
    if raw or (system is None and not llm.tokenizer.chat_template):
        return text
    messages = [] if system is None else [{"role": "system", "content": system}]
    return llm.chat_prompt([*messages, {"role": "user", "content": text}])
