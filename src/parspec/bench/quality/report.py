"""Answers for people: tables, and a report in Markdown."""

import os
from collections.abc import Sequence
from pathlib import Path

from parspec.bench.quality.compare import Difference, Estimate
from parspec.bench.quality.rounding import Rounding
from parspec.bench.quality.summary import Summary
from parspec.bench.quality.tasks import SHORT
from parspec.bench.report import TableData, as_markdown_table


def tables(found: Sequence[Summary], about: str) -> list[TableData]:
    """Two tables for each task: how good and how fast, and how close to the target.

    Args:
        found: The summaries.
        about: What all answers have in common, for the titles.
    """
    made: list[TableData] = []
    for task in dict.fromkeys(summary.task for summary in found):
        rows = [summary for summary in found if summary.task == task]
        if task == SHORT:
            made.append(_distances("Beginnings of answers", rows))
        else:
            made += [_accuracy(f"{task}: {about}", rows), _fidelity(f"{task}: closeness to the target", rows)]
    return made


def markdown(found: Sequence[Summary], about: str, images: Sequence[Path], folder: Path) -> str:
    """All tables and plots, the images by their paths from a folder."""
    parts = [as_markdown_table(table) for table in tables(found, about)]
    parts += [
        f"![{image.stem.replace('-', ' ')}]({Path(os.path.relpath(image, folder)).as_posix()})" for image in images
    ]
    return "\n\n".join(parts)


def roundings_table(found: Sequence[Rounding]) -> TableData:
    """What rounding does to each model."""
    header = ["model", "format", "tokens", "KL(stored || rounded) a token", "same most probable token, %"]
    rows = [
        [
            one.model,
            one.quantization,
            f"{one.num_tokens}",
            _interval(one.divergence, 1, 5),
            f"{100 * one.same_choice:.1f}",
        ]
        for one in found
    ]
    return "Rounded weights", header, rows


def _accuracy(title: str, rows: Sequence[Summary]) -> TableData:
    header = ["method", "answers", "accuracy, %", "against plain, points", "p", "tokens/s", "tokens a cycle", "ESS/N"]
    return (
        title,
        header,
        [
            [
                row.variant,
                f"{row.num_answers}",
                _interval(row.accuracy, 100),
                _gain(row.accuracy_gain, 100),
                "-" if row.accuracy_gain is None else f"{row.accuracy_gain.p_value:.2g}",
                _number(row.tokens_per_second, "{:.1f}"),
                _number(row.tokens_per_cycle, "{:.2f}"),
                _number(row.ess, "{:.2f}"),
            ]
            for row in rows
        ],
    )


def _fidelity(title: str, rows: Sequence[Summary]) -> TableData:
    header = ["method", "log-prob. a token", "against plain", "p", "tokens", "against plain", "p", "kept of draft"]
    return (
        title,
        header,
        [
            [
                row.variant,
                "-" if row.log_prob is None else f"{row.log_prob.mean:.3f}",
                _gain(row.log_prob_gain, 1, 3),
                _number(row.log_prob_p, "{:.2g}"),
                f"{row.length.mean:.0f}",
                _gain(row.length_gain, 1, 0),
                _number(row.length_p, "{:.2g}"),
                _number(row.kept_share, "{:.2f}"),
            ]
            for row in rows
        ],
    )


def _distances(title: str, rows: Sequence[Summary]) -> TableData:
    header = ["method", "beginnings", "energy distance to plain", "p", "log-prob. a token", "against plain"]
    return (
        title,
        header,
        [
            [
                row.variant,
                f"{row.num_answers}",
                "-" if row.distance is None else f"{row.distance.energy:.3f}",
                "-" if row.distance is None else f"{row.distance.p_value:.2g}",
                "-" if row.log_prob is None else f"{row.log_prob.mean:.3f}",
                _gain(row.log_prob_gain, 1, 3),
            ]
            for row in rows
        ],
    )


def _interval(estimate: Estimate, scale: float, digits: int = 1) -> str:
    mean, low, high = (scale * value for value in estimate[:3])
    return f"{mean:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def _gain(gain: Difference | None, scale: float, digits: int = 1) -> str:
    if gain is None:
        return "-"
    mean, low, high = (scale * value for value in gain.estimate[:3])
    return f"{mean:+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
