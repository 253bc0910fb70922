"""The plots of a quality benchmark."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from parspec.bench.plots import figures
from parspec.bench.quality.summary import Summary


def write_plots(found: Sequence[Summary], folder: Path) -> list[Path]:
    """Draw what the summaries hold data for.

    Args:
        found: The summaries.
        folder: Where the SVG files go; made if need be.

    Returns:
        The files written.

    Raises:
        ParspecError: matplotlib is not installed.
    """
    tasks = list(dict.fromkeys(summary.task for summary in found))
    drawings: dict[str, Any] = {}
    for task in tasks:
        rows = [summary for summary in found if summary.task == task]
        drawings[f"{task}-accuracy-against-speed"] = lambda axes, rows=rows: _frontier(rows, axes)
    drawings["tokens-a-cycle-against-ess"] = lambda axes: _cycles(found, axes)
    drawings["where-the-cuts-fall"] = lambda axes: _cuts(found, axes)
    return figures(drawings, folder)


def _family(summary: Summary) -> str:
    return summary.variant.split()[0]


def _frontier(rows: Sequence[Summary], axes: Any) -> bool:
    """Accuracy with its interval against tokens/s, one curve a method."""
    families: dict[str, list[Summary]] = defaultdict(list)
    for row in rows:
        if row.tokens_per_second is not None:
            families[_family(row)].append(row)
    for family, members in families.items():
        members.sort(key=lambda row: row.tokens_per_second or 0)
        means = [100 * row.accuracy.mean for row in members]
        errors = [
            [100 * (row.accuracy.mean - row.accuracy.low) for row in members],
            [100 * (row.accuracy.high - row.accuracy.mean) for row in members],
        ]
        speeds = [row.tokens_per_second for row in members]
        axes.errorbar(speeds, means, yerr=errors, marker="o", capsize=3, label=family)
        for row, speed, mean in zip(members, speeds, means, strict=True):
            axes.annotate(
                row.variant.removeprefix(family).strip(),
                (speed, mean),
                fontsize=7,
                xytext=(4, 4),
                textcoords="offset points",
            )
    axes.set(xlabel="tokens/s, one request at a time", ylabel="accuracy, %", title=rows[0].task, xlim=(0, None))
    if families:
        axes.legend(frameon=False)
    return bool(families)


def _cycles(found: Sequence[Summary], axes: Any) -> bool:
    """Tokens a cycle against the effective sample size, one mark a variant of smc."""
    tasks: dict[str, list[Summary]] = defaultdict(list)
    for row in found:
        if row.ess is not None and row.tokens_per_cycle is not None:
            tasks[row.task].append(row)
    for task, rows in tasks.items():
        axes.scatter([row.ess for row in rows], [row.tokens_per_cycle for row in rows], label=task)
        for row in rows:
            axes.annotate(
                row.variant.removeprefix("smc "),
                (row.ess, row.tokens_per_cycle),
                fontsize=7,
                xytext=(4, 4),
                textcoords="offset points",
            )
    axes.set(xlabel="ESS at the cut / N", ylabel="tokens a cycle", title="What a cut costs and saves", ylim=(0, None))
    if tasks:
        axes.legend(frameon=False)
    return bool(tasks)


def _cuts(found: Sequence[Summary], axes: Any) -> bool:
    """Share of cycles by drafted tokens kept, one line a variant."""
    drawn = False
    for row in found:
        cycles = sum(row.kept.values())
        if cycles and len(row.kept) > 1:
            positions = range(max(row.kept) + 1)
            label = f"{row.task}, {row.variant}"
            axes.plot(positions, [row.kept.get(p, 0) / cycles for p in positions], marker="o", label=label)
            drawn = True
    axes.set(xlabel="drafted tokens kept", ylabel="share of cycles", title="Where the cuts fall", ylim=(0, None))
    if drawn:
        axes.legend(frameon=False, fontsize=7)
    return drawn
