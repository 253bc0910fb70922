"""Options several commands share, each written once as a field of a dataclass.

Option names are those of `SamplingParams` and `LLM`, and so are the defaults: an option that is not given is
not passed on. What is given is checked by `SamplingParams`, in the same words as in the Python interface.
"""

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parspec.errors import InvalidRequestError

if TYPE_CHECKING:
    from parspec.sampling.params import SamplingParams

DEFAULT_TARGET = "qwen2.5-coder"

CacheDir = Annotated[
    Path | None,
    typer.Option(help="Where models are kept. Default: the user's cache folder.", rich_help_panel="Models"),
]


def paragraphs(text: str) -> str:
    """Help text as typer wants it: paragraphs of one line each, to be wrapped to the terminal's width."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n"))


def names(text: str) -> tuple[str, ...]:
    """The parts of a list separated by commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def numbers(name: str, text: str) -> tuple[int, ...]:
    """Whole numbers from 1, separated by commas."""
    return tuple(int(value) for value in _values(name, text, int, 1, "whole numbers from 1"))


def reals(name: str, text: str) -> tuple[float, ...]:
    """Numbers from 0, separated by commas."""
    return _values(name, text, float, 0, "numbers from 0")


def _values(name: str, text: str, kind: Callable[[str], float], least: float, what: str) -> tuple[float, ...]:
    try:
        values = tuple(kind(part) for part in text.split(","))
    except ValueError:
        values = ()
    if not values or not all(least <= value < math.inf for value in values):
        raise InvalidRequestError(f'{name} is "{text}": use {what}, separated by commas')
    return values


def check_folders(*written: Path | None) -> None:
    """Refuse files whose folder does not exist, before anything is measured."""
    for file in written:
        if file is not None and not file.absolute().parent.is_dir():
            raise InvalidRequestError(f"{file.absolute().parent} is not a folder: make it first")


def _commit_lag(text: str) -> float | int | str:
    """A number where it is one; anything else is left for `SamplingParams` to refuse."""
    if text == "off":
        return math.inf
    try:
        return int(text)
    except ValueError:
        return text


def _model(help_text: str, **more: Any) -> Any:
    return typer.Option(help=help_text, rich_help_panel="Models", **more)


def _method(help_text: str, **more: Any) -> Any:
    return typer.Option(help=help_text, rich_help_panel="Method", **more)


def _sampling(help_text: str, **more: Any) -> Any:
    return typer.Option(help=help_text, rich_help_panel="Sampling", **more)


@dataclass(frozen=True)
class ModelOptions:
    """Which models, and where they run."""

    target: Annotated[
        str,
        _model(
            "The large model: a local folder, a .gguf file, a hub id or a known name; "
            f'"{DEFAULT_TARGET}" names a pair.',
            show_default=True,
        ),
    ] = DEFAULT_TARGET
    draft: Annotated[
        str | None,
        _model("The small model, of the same tokenizer. Default: the pair's, if any."),
    ] = None
    dtype: Annotated[
        str,
        _model("auto, float32 or bfloat16; auto is the fastest for the device.", show_default=True),
    ] = "auto"
    quantization: Annotated[
        str,
        _model("int8 rounds the large model's weights: half the memory, faster; none keeps them.", show_default=True),
    ] = "none"
    draft_quantization: Annotated[
        str,
        _model("int8, none, or auto: int8 where that is faster, at no cost in accuracy.", show_default=True),
    ] = "auto"
    device: Annotated[str, _model("auto, cpu, cuda, cuda:N or mps.", show_default=True)] = "auto"
    cache_dir: CacheDir = None


@dataclass(frozen=True)
class MethodOptions:
    """How answers are made; None is "not given"."""

    method: Annotated[
        str | None,
        _method(
            "smc, speculative, autoregressive, or auto: the fastest of them.",
            metavar="NAME",
        ),
    ] = None
    preset: Annotated[
        str | None,
        _method(
            "What auto may choose from: lossless, balanced (accuracy within 3 points of the target) or fast. "
            "Default, without --method: balanced.",
            metavar="NAME",
        ),
    ] = None
    num_particles: Annotated[
        int | None,
        _method("N: particles of smc (default 8), draft chains of speculative (default 1).", metavar="N"),
    ] = None
    num_draft_tokens: Annotated[int | None, _method("K: tokens drafted in each cycle. Default 8.", metavar="K")] = None
    cut_threshold: Annotated[
        float | None,
        _method(
            "Drop drafted tokens once the effective sample size falls below this share of N. "
            "0 is fastest, higher follows the target more closely. Default 0.",
            metavar="SHARE",
        ),
    ] = None
    resample_threshold: Annotated[
        float | None,
        _method("Resample below this effective sample size, as a share of N. Default 0.5.", metavar="SHARE"),
    ] = None
    commit_lag: Annotated[
        str | None,
        _method(
            "Tokens that may stay open until the particles must agree; off: any number. Default 48.",
            metavar="TOKENS",
        ),
    ] = None
    select: Annotated[
        str | None,
        _method(
            "The particle that is the answer: sample (by weight), best (the heaviest) or vote. Default sample.",
            metavar="NAME",
        ),
    ] = None

    def params(self) -> "SamplingParams":
        """The options given, checked.

        Raises:
            InvalidRequestError: A value is out of range.
        """
        from parspec.sampling.params import SamplingParams

        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.commit_lag is not None:
            values["commit_lag"] = _commit_lag(self.commit_lag)
        if (schema := values.get("json_schema")) is not None and (file := Path(schema)).suffix == ".json":
            try:
                values["json_schema"] = file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise InvalidRequestError(f"json_schema: {file} cannot be read: {error}", "json_schema") from error
        return SamplingParams(**{name: value for name, value in values.items() if value not in (None, [])})


@dataclass(frozen=True)
class RequestOptions(MethodOptions):
    """What `SamplingParams` takes; None is "not given"."""

    temperature: Annotated[float | None, _sampling("Divides the logits; 0 is greedy. Default 1.", metavar="NUMBER")] = (
        None
    )
    top_p: Annotated[
        float | None,
        _sampling("Keep the most probable tokens of this total mass. Default 1.", metavar="MASS"),
    ] = None
    top_k: Annotated[int | None, _sampling("Keep this many most probable tokens. Default 0, all.", metavar="COUNT")] = (
        None
    )
    min_p: Annotated[
        float | None,
        _sampling("Drop tokens below this share of the largest probability. Default 0.", metavar="SHARE"),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        _sampling("Above 1: discourage tokens of the prompt and the answer so far. Default 1.", metavar="FACTOR"),
    ] = None
    presence_penalty: Annotated[
        float | None,
        _sampling("Subtracted from the logits of tokens in the answer so far. Default 0.", metavar="NUMBER"),
    ] = None
    frequency_penalty: Annotated[
        float | None,
        _sampling("Subtracted once for each time a token is in the answer so far. Default 0.", metavar="NUMBER"),
    ] = None
    json_schema: Annotated[
        str | None,
        _sampling("The answer is JSON of this schema: a file, or the schema itself.", metavar="SCHEMA"),
    ] = None
    regex: Annotated[
        str | None, _sampling("The answer as a whole matches this regular expression.", metavar="PATTERN")
    ] = None
    choice: Annotated[
        list[str] | None, _sampling("The answer is one of these texts; to be repeated.", metavar="TEXT")
    ] = None
    constraint_mode: Annotated[
        str | None,
        _sampling(
            "local masks token by token; global (smc) keeps the model's distribution over valid texts. Default local.",
            metavar="MODE",
        ),
    ] = None
    power: Annotated[
        float | None,
        _sampling("Sample whole answers from this power of the distribution (smc). Default 1.", metavar="NUMBER"),
    ] = None
    vote: Annotated[
        str | None,
        _sampling("With --select vote: the pattern whose last match in an answer is counted.", metavar="PATTERN"),
    ] = None
    max_tokens: Annotated[int | None, _sampling("Most tokens of an answer. Default 256.", metavar="COUNT")] = None
    stop: Annotated[
        list[str] | None,
        _sampling(
            "End the answer at this text and leave it out; may be repeated. In bash $'\\n' is a newline.",
            metavar="TEXT",
        ),
    ] = None
    seed: Annotated[
        int | None,
        _sampling("Fixes all random draws. Default: a fresh one, see --stats.", metavar="NUMBER"),
    ] = None


def expand_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give typer a command's dataclass parameters as one option a field.

    Args:
        command: A function some of whose parameters are annotated with a dataclass of options.

    Returns:
        The same command with the fields for parameters.
    """
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters: list[inspect.Parameter] = []
    groups: dict[str, Any] = {}
    for parameter in inspect.signature(command).parameters.values():
        if is_dataclass(parameter.annotation):
            groups[parameter.name] = parameter.annotation
            for field in fields(parameter.annotation):
                parameters.append(
                    inspect.Parameter(
                        field.name,
                        inspect.Parameter.KEYWORD_ONLY,
                        default=field.default,
                        annotation=field.type,
                    )
                )
        else:
            parameters.append(parameter.replace(kind=keyword))

    @functools.wraps(command)
    def run(**values: Any) -> Any:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        return command(**values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run
