"""``parspec bench quality``: how well each way to decode answers, beside how fast."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parspec.cli.options import DEFAULT_TARGET, CacheDir, check_folders, names, numbers, paragraphs, reals
from parspec.errors import InvalidRequestError

if TYPE_CHECKING:
    from rich.progress import Progress

HELP = paragraphs(
    """
    Measure accuracy: the same questions answered by several methods and settings, several times each.

    Every answer is written to --json as it comes; a run that is given the same file goes on where the last one
    ended. Differences are over the questions both settings have answered. Code in answers is run, in a process
    with limits on time, memory and files, but as you: use a container for models you do not trust.
    """
)

QUANTIZATION_HELP = paragraphs(
    """
    Measure what int8 weights do to a model's distributions: the divergence from the model as it is stored.

    Over texts the target samples itself, at temperature 1.
    """
)

EPILOG = """\
[bold]Examples[/bold]
  parspec bench quality --data data --tasks gsm8k --limit 50 --json quality.jsonl
  parspec bench quality --data data --num-particles 4,8 --cut-threshold 0,0.25 --seeds 4 --json quality.jsonl
  parspec bench quality --tasks gsm8k --methods smc --num-particles 8 --select vote --json quality.jsonl

Exit statuses are listed by parspec --help.
"""


def _work(help_text: str, **more: Any) -> Any:
    return typer.Option(help=help_text, rich_help_panel="Work", **more)


def _results(help_text: str, *flags: str) -> Any:
    return typer.Option(*flags, help=help_text, rich_help_panel="Results")


def quality(
    target: Annotated[str, typer.Option(help="The large model; a pair's name stands for both.")] = DEFAULT_TARGET,
    draft: Annotated[str | None, typer.Option(help="The small model. Default: the pair's.")] = None,
    tasks: Annotated[
        str, _work("gsm8k, humaneval, ifeval, or other tasks of lm-eval that have answers generated.")
    ] = "gsm8k,humaneval,ifeval",
    data: Annotated[
        Path | None,
        _work("Folder with gsm8k.jsonl and so on. Default: fetched.", exists=True, file_okay=False),
    ] = None,
    methods: Annotated[
        str, _work("autoregressive, speculative, smc, auto; draft: the draft by itself.")
    ] = "autoregressive,speculative,smc",
    num_particles: Annotated[str, _work("N of smc.")] = "8",
    num_chains: Annotated[str, _work("Draft chains of speculative.")] = "1",
    num_draft_tokens: Annotated[str, _work("K of smc and speculative.")] = "4,8",
    cut_threshold: Annotated[str, _work("kappa of smc.")] = "0",
    temperature: Annotated[str, _work("Of the sampling.")] = "0.7",
    power: Annotated[str, _work("alpha of smc.")] = "1",
    select: Annotated[str, _work("sample, best, vote: how smc chooses among its particles.")] = "sample",
    limit: Annotated[int | None, _work("Most questions of a task. Default: all.", min=1)] = None,
    seeds: Annotated[int, _work("Answers to each question by each setting.", min=1)] = 1,
    timed: Annotated[int, _work("Questions of a task whose first answer is timed, alone on the machine.", min=0)] = 4,
    max_tokens: Annotated[int, _work("Most tokens of an answer.", min=1)] = 512,
    concurrent: Annotated[int, _work("Answers in progress at once, those that are not timed.", min=1)] = 16,
    json_file: Annotated[Path | None, _results("Write every answer here, one JSON line each.", "--json")] = None,
    markdown: Annotated[
        Path | None, _results("Put tables and plots into this Markdown file, between its marks if it has them.")
    ] = None,
    plots: Annotated[Path | None, _results("Write plots into this folder.")] = None,
    report_only: Annotated[bool, _results("Answer nothing: report what --json has.")] = False,
    cache_dir: CacheDir = None,
) -> None:
    """Measure accuracy."""
    from rich.console import Console

    from parspec.bench.quality.plan import cross, works
    from parspec.bench.quality.plots import write_plots
    from parspec.bench.quality.report import markdown as as_markdown
    from parspec.bench.quality.report import tables
    from parspec.bench.quality.run import about, run
    from parspec.bench.quality.store import Store, read
    from parspec.bench.quality.summary import summaries
    from parspec.bench.quality.tasks import load_items
    from parspec.bench.report import insert_markdown, print_table
    from parspec.llm import LLM

    check_folders(json_file, markdown)
    if report_only:
        if json_file is None or not json_file.exists():
            raise InvalidRequestError("--report-only needs --json with a file that exists")
        common, records, _ = read(json_file)
    else:
        variants = cross(
            names(methods),
            num_particles=numbers("num_particles", num_particles),
            num_chains=numbers("num_chains", num_chains),
            num_draft_tokens=numbers("num_draft_tokens", num_draft_tokens),
            cut_thresholds=reals("cut_threshold", cut_threshold),
            temperatures=reals("temperature", temperature),
            powers=reals("power", power),
            selections=names(select),
        )
        llm = LLM(target, draft, cache_dir=cache_dir)
        common = about(llm, max_tokens)
        items = load_items(names(tasks), data, limit, llm.tokenizer)
        with contextlib.closing(Store(json_file, common)) as store, _progress() as progress:
            todo = [work for work in works(items, variants, seeds, timed) if work.key not in store]
            bar = progress.add_task("answers", total=len(todo))
            run(llm, todo, store, max_tokens, concurrent, lambda record: progress.advance(bar))
        records = store.records
    found = summaries(records.values())
    described = f"{common['target']}, {common['dtype'].removeprefix('torch.')}, at most {common['max_tokens']} tokens"
    for table in tables(found, described):
        print_table(table, Console())
    folder = plots if plots is not None else (markdown.parent / "images" if markdown is not None else None)
    images = [] if folder is None else write_plots(found, folder)
    if markdown is not None:
        insert_markdown(markdown, as_markdown(found, described, images, markdown.parent), "parspec bench quality")


def quantization(
    target: Annotated[str, typer.Option(help="The large model; a pair's name stands for both.")] = DEFAULT_TARGET,
    draft: Annotated[str | None, typer.Option(help="The small model. Default: the pair's, if any.")] = None,
    limit: Annotated[int, _work("Most prompts.", min=1)] = 6,
    max_tokens: Annotated[int, _work("Length of a text.", min=2)] = 128,
    markdown: Annotated[
        Path | None, _results("Put the table into this Markdown file, between its marks if it has them.")
    ] = None,
    cache_dir: CacheDir = None,
) -> None:
    """Measure what rounding weights does."""
    from rich.console import Console

    from parspec.bench.prompts import TASKS, load_prompts
    from parspec.bench.quality.report import roundings_table
    from parspec.bench.quality.rounding import roundings
    from parspec.bench.report import as_markdown_table, insert_markdown, print_table
    from parspec.models.locate import resolve_pair

    check_folders(markdown)
    models = [name for name in resolve_pair(target, draft) if name is not None]
    prompts = [prompt.text for prompt in load_prompts(None, TASKS, limit)][:limit]
    table = roundings_table(list(roundings(models, prompts, max_tokens, cache_dir)))
    print_table(table, Console())
    if markdown is not None:
        insert_markdown(markdown, as_markdown_table(table), "parspec bench quantization")


def _progress() -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    return Progress("{task.description}", *columns, console=Console(stderr=True))
