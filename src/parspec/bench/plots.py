"""The plots of a speed benchmark."""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from parspec.bench.ratios import Results, of_kind, speeds
from parspec.bench.records import Record
from parspec.bench.report import phases
from parspec.errors import ParspecError

_PHASE_COLOURS = {"draft": "#4c78a8", "target": "#f58518", "rest": "#9d9da1"}


def write_plots(results: Results, folder: Path) -> list[Path]:
    """Draw what the results hold data for.

    Args:
        results: Of a run.
        folder: Where the SVG files go; made if need be.

    Returns:
        The files written.

    Raises:
        ParspecError: matplotlib is not installed.
    """
    drawings = {
        "speed-against-draft-length": _draft_lengths,
        "cycle-by-phase": _cycle_phases,
        "speed-against-requests": _requests,
    }
    records = results.own or results.shape
    return figures({name: functools.partial(draw, records) for name, draw in drawings.items()}, folder)


def figures(drawings: Mapping[str, Callable[[Any], bool]], folder: Path) -> list[Path]:
    """Draw figures into SVG files.

    Args:
        drawings: By name of the file, a function that draws on axes and says whether there was anything to draw.
        folder: Where the files go; made if need be.

    Returns:
        The files written.

    Raises:
        ParspecError: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise ParspecError("plots need matplotlib: pip install 'parspec[bench]'") from error
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    # Text stays text, and the same results give the same file.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "parspec", "axes.spines.top": False})
    mpl.rcParams.update({"axes.spines.right": False, "font.size": 10, "figure.figsize": (7, 4)})
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, draw in drawings.items():
        figure, axes = plt.subplots(layout="constrained")
        if draw(axes):
            file = folder / f"{name}.svg"
            figure.savefig(file, metadata={"Date": None})
            written.append(file)
        plt.close(figure)
    return written


def _draft_lengths(records: list[Record], axes: Any) -> bool:
    runs = of_kind(records, "generation")
    tasks = list(dict.fromkeys(run["task"] for run in runs))
    if not tasks:
        return False
    task = tasks[0]
    medians = speeds(records, task)
    lines: dict[str, list[tuple[int, float]]] = {}
    for run in runs:
        if run["task"] == task and run["num_draft_tokens"]:
            name = f"{run['method']}, N = {run['num_particles']}"
            lines.setdefault(name, []).append((run["num_draft_tokens"], medians[run["label"]].median))
    for name, points in sorted(lines.items()):
        xs, ys = zip(*sorted(set(points)), strict=True)
        axes.plot(xs, ys, marker="o", label=name, linestyle="--" if name.startswith("speculative") else "-")
    if "autoregressive" in medians:
        axes.axhline(medians["autoregressive"].median, color="black", linewidth=1, label="autoregressive")
    axes.set(xlabel="draft tokens a cycle, K", ylabel="tokens/s", title=f"Speed on {task}", ylim=(0, None))
    axes.legend(frameon=False)
    return bool(lines)


def _cycle_phases(records: list[Record], axes: Any) -> bool:
    found = phases(records)
    labels = list(found)
    left = [0.0] * len(labels)
    for phase, colour in _PHASE_COLOURS.items():
        widths = [found[label][phase] * 1e3 for label in labels]
        axes.barh(labels, widths, left=left, color=colour, label=phase)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set(xlabel="ms a cycle", title="A cycle by phase")
    axes.invert_yaxis()
    axes.legend(frameon=False)
    return bool(labels)


def _requests(records: list[Record], axes: Any) -> bool:
    lines: dict[str, list[tuple[int, float]]] = {}
    for record in of_kind(records, "throughput"):
        rate = record["num_tokens"] / record["seconds"]
        lines.setdefault(record["label"], []).append((record["requests"], rate))
    for label, points in lines.items():
        xs, ys = zip(*sorted(points), strict=True)
        axes.plot(xs, ys, marker="o", label=label)
    axes.set(xlabel="requests at once", ylabel="tokens/s in all", title="Throughput", ylim=(0, None))
    axes.set_xscale("log", base=2)
    counts = sorted({count for points in lines.values() for count, _ in points})
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.legend(frameon=False)
    return bool(lines)
