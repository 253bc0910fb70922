"""``parspec bench``: how fast parspec is here, beside the machine's limits and other engines; how accurate."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from parspec.bench.records import Setting
from parspec.cli import quality
from parspec.cli.console import note
from parspec.cli.options import DEFAULT_TARGET, CacheDir, check_folders, names, numbers, paragraphs
from parspec.errors import InvalidRequestError

HELP = "Measure speed, beside the machine's limits and other engines, and accuracy."

SPEED_HELP = paragraphs(
    """
    Measure the speed of all three methods, of single passes, and of other engines that are installed.

    Every engine runs in a process of its own, one after the other, on the same prompts and lengths; loading
    and a short warm-up are not counted. Use a machine that does nothing else.
    """
)

SPEED_EPILOG = """\
[bold]Examples[/bold]
  parspec bench speed --short
  parspec bench speed --prompts spec_bench.jsonl --json speed.json --plots plots
  parspec bench speed --peers transformers,llama.cpp,openvino --peer-python peers/bin/python
  parspec bench speed --shape llama-70b:llama-1b --shape-only

Exit statuses are listed by parspec --help.
"""

SERVING_HELP = paragraphs(
    """
    Put load on a running server: so many streams at once, each sending one request after the other.

    Tells what users would see, the time to the first text and the gaps between pieces, and whether the
    server's memory and its open requests return to where they were.
    """
)

SERVING_EPILOG = """\
[bold]Examples[/bold]
  parspec bench serving --streams 64 --seconds 180
  parspec bench serving http://127.0.0.1:9000 --settings autoregressive,speculative:1:5,smc:4:8:48

Exit status 1 means that a request failed or stayed open.
"""

_SPECULATIVE = tuple(Setting("speculative", 1, k) for k in (3, 5))
_SHORT: tuple[Setting, ...] = (*_SPECULATIVE, *(Setting("smc", n, k) for n, k in ((4, 4), (4, 8), (8, 8))))
_SHORT_INT8: tuple[Setting, ...] = (_SPECULATIVE[1], Setting("smc", 4, 8))
"""What --short decodes with: the target as stored, and in int8."""

app = typer.Typer(help=HELP, no_args_is_help=True)
app.command(help=quality.HELP, epilog=quality.EPILOG)(quality.quality)
app.command(help=quality.QUANTIZATION_HELP)(quality.quantization)


def _work(help_text: str, **more: Any) -> Any:
    return typer.Option(help=help_text, rich_help_panel="Work", **more)


def _results(help_text: str) -> Any:
    return typer.Option(help=help_text, rich_help_panel="Results")


@app.command(help=SPEED_HELP, epilog=SPEED_EPILOG)
def speed(
    target: Annotated[str, typer.Option(help="The large model; a pair's name stands for both.")] = DEFAULT_TARGET,
    draft: Annotated[str | None, typer.Option(help="The small model. Default: the pair's.")] = None,
    prompts: Annotated[
        Path | None,
        _work("Prompts, JSON lines with category and turns. Default: a few of our own.", exists=True, dir_okay=False),
    ] = None,
    tasks: Annotated[str, _work("Categories of prompts, separated by commas.")] = "coding,writing",
    limit: Annotated[int, _work("Most prompts of a category.", min=1)] = 2,
    max_tokens: Annotated[int, _work("Length of every answer.", min=4)] = 256,
    temperature: Annotated[float, _work("Of the sampling.", min=0)] = 0.7,
    repeats: Annotated[int, _work("How often everything is run.", min=1)] = 3,
    num_particles: Annotated[str, _work("N of smc.")] = "4,8",
    num_chains: Annotated[str, _work("Draft chains of speculative.")] = "1,2",
    num_draft_tokens: Annotated[str, _work("K of smc and speculative.")] = "3,5,8,12",
    requests: Annotated[str, _work("Numbers of requests at once.")] = "1,4,8,16",
    int8: Annotated[bool, _work("Also measure the target in int8.")] = True,
    short: Annotated[bool, _work("A quarter of an hour: one prompt a task, 48 tokens, few settings.")] = False,
    shape: Annotated[
        str | None,
        _work("Also run random weights of these shapes, TARGET:DRAFT: names like llama-70b, or config folders."),
    ] = None,
    shape_only: Annotated[bool, _work("Run nothing but --shape.")] = False,
    peers: Annotated[str, _work("Other engines: transformers, llama.cpp, openvino, vllm; none.")] = "transformers",
    peer_python: Annotated[str, _work("Python interpreter that has them.")] = sys.executable,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write everything measured here.", rich_help_panel="Results")
    ] = None,
    markdown: Annotated[
        Path | None,
        _results("Put tables and plots into this Markdown file, between its marks if it has them."),
    ] = None,
    plots: Annotated[Path | None, _results("Write plots into this folder.")] = None,
    cache_dir: CacheDir = None,
) -> None:
    """Measure speed."""
    from parspec.bench.peers import PEERS
    from parspec.bench.plots import write_plots
    from parspec.bench.prompts import load_prompts
    from parspec.bench.report import insert_markdown, print_tables, write_json
    from parspec.bench.report import markdown as as_markdown
    from parspec.bench.shapes import parse_shapes
    from parspec.bench.speed import SpeedPlan, run_speed

    wanted = () if peers == "none" else names(peers)
    unknown = [name for name in wanted if name not in PEERS]
    if unknown:
        raise InvalidRequestError(f'peer "{unknown[0]}" is unknown: use {", ".join(PEERS)} or none')
    if shape_only and shape is None:
        raise InvalidRequestError("--shape-only needs --shape TARGET:DRAFT")
    check_folders(json_file, markdown)
    if short:
        settings, settings_int8 = _SHORT, _SHORT_INT8
    else:
        settings = _settings(num_draft_tokens, num_chains, "speculative")
        settings += _settings(num_draft_tokens, num_particles, "smc")
        settings_int8 = settings
    plan = SpeedPlan(
        target=target,
        draft=draft,
        prompts=load_prompts(prompts, names(tasks), 1 if short else limit),
        settings=() if shape_only else (Setting("autoregressive"), *settings, Setting("auto")),
        settings_int8=(Setting("autoregressive"), *settings_int8) if int8 else (),
        max_tokens=48 if short else max_tokens,
        temperature=temperature,
        repeats=2 if short else repeats,
        requests=(1, 8) if short else numbers("requests", requests),
        shape=None if shape is None else parse_shapes(shape),
        peers=wanted,
        peer_python=peer_python,
        cache_dir=cache_dir,
    )
    results = run_speed(plan, note)
    if json_file is not None:
        write_json(results, json_file)
    print_tables(results, Console())
    folder = plots if plots is not None else (markdown.parent / "images" if markdown is not None else None)
    images = [] if folder is None else write_plots(results, folder)
    if markdown is not None:
        insert_markdown(markdown, as_markdown(results, images, markdown.parent))


@app.command(help=SERVING_HELP, epilog=SERVING_EPILOG)
def serving(
    url: Annotated[str, typer.Argument(metavar="URL", help="Address of the server.")] = "http://127.0.0.1:8000",
    streams: Annotated[str, _work("Requests open at once, separated by commas.")] = "1,8,64",
    seconds: Annotated[float, _work("How long each load sends new requests.", min=0.1)] = 60,
    settings: Annotated[
        str, _work("Separated by commas: default, auto, autoregressive, speculative:CHAINS:K, smc:N:K; or with :LAG.")
    ] = "default",
    max_tokens: Annotated[int, _work("Length of every answer.", min=1)] = 64,
    temperature: Annotated[float, _work("Of the sampling.", min=0)] = 0.7,
    prompts: Annotated[
        Path | None,
        _work("Prompts, JSON lines with category and turns. Default: a few of our own.", exists=True, dir_okay=False),
    ] = None,
    tasks: Annotated[str, _work("Categories of prompts, separated by commas.")] = "coding,writing",
    api_key_file: Annotated[Path | None, _work("File with the server's key.", exists=True, dir_okay=False)] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write everything measured here.", rich_help_panel="Results")
    ] = None,
    markdown: Annotated[
        Path | None, _results("Put the table into this Markdown file, between its marks if it has them.")
    ] = None,
    mark: Annotated[str, _results("Name of those marks: the comments begin: NAME and end: NAME.")] = "bench serving",
) -> int:
    """Put load on a server; exit status 1 if a request failed or stayed open."""
    from parspec.bench import serving as bench
    from parspec.bench.prompts import load_prompts
    from parspec.bench.report import as_markdown_table, insert_markdown, print_table

    check_folders(json_file, markdown)
    loads = bench.parse_loads(settings, numbers("streams", streams), max_tokens, temperature)
    found = load_prompts(prompts, names(tasks), 80)
    key = None if api_key_file is None else api_key_file.read_text().strip()
    results = asyncio.run(bench.run_load(url, key, loads, found, seconds, note))
    tables = bench.tables(results, f"{max_tokens} tokens an answer, {seconds:g} s a row")
    if json_file is not None:
        json_file.write_text(json.dumps(bench.as_json(results), indent=2) + "\n")
    for table in tables:
        print_table(table, Console())
    if markdown is not None:
        insert_markdown(markdown, "\n\n".join(as_markdown_table(table) for table in tables), mark)
    for error in sorted({one.error for result in results for one in result.answered if one.error}):
        note(f"failed: {error}")
    return 1 if any(len(result.good) < len(result.answered) or result.left_open for result in results) else 0


def _settings(draft_tokens: str, rows: str, method: str) -> tuple[Setting, ...]:
    return tuple(
        Setting(method, n, k)
        for n in numbers("num_chains" if method == "speculative" else "num_particles", rows)
        for k in numbers("num_draft_tokens", draft_tokens)
    )
