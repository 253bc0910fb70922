"""The results of a speed benchmark for people: tables on the terminal and in Markdown, and as JSON."""

import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from parspec.bench.peers import PeerAbsent, PeerRun
from parspec.bench.ratios import (
    TARGETS,
    Results,
    Spread,
    cycle_seconds,
    of_kind,
    peer_speeds,
    ratios,
    reached,
    speeds,
    writing_speeds,
)
from parspec.bench.records import Record

_SHAPE_NOTE = "shape only: speed, not text"


def as_json(results: Results) -> dict[str, Any]:
    """Everything measured, with the ratios."""
    return {
        "ratios": ratios(results),
        "machine": asdict(results.machine),
        "own": results.own,
        "own_int8": results.own_int8,
        "shape": results.shape,
        "peers": [asdict(run) for run in results.peers if isinstance(run, PeerRun)],
        "absent": [asdict(run) for run in results.peers if isinstance(run, PeerAbsent)],
    }


def write_json(results: Results, file: Path) -> None:
    """Write a JSON file, whole or not at all."""
    scratch = file.with_name(file.name + ".part")
    scratch.write_text(json.dumps(as_json(results), indent=1) + "\n", encoding="utf-8")
    scratch.replace(file)


def print_tables(results: Results, console: Console) -> None:
    """All tables on a terminal."""
    for data in tables(results):
        print_table(data, console)


def print_table(data: "TableData", console: Console) -> None:
    """One table on a terminal."""
    title, header, rows = data
    table = Table(title=title, title_justify="left")
    for index, name in enumerate(header):
        table.add_column(name, justify="left" if index == 0 else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def markdown(results: Results, images: Sequence[Path], folder: Path) -> str:
    """All tables and plots as Markdown for a page in a folder; the plots may lie anywhere."""
    parts = [as_markdown_table(data) for data in tables(results)]
    links = [Path(os.path.relpath(image, folder)).as_posix() for image in images]
    parts += [f"![{Path(link).stem.replace('-', ' ')}]({link})" for link in links]
    return "\n\n".join(parts)


def as_markdown_table(data: "TableData") -> str:
    """One table with its title as Markdown."""
    title, header, rows = data
    lines = ["| " + " | ".join(header) + " |", "| --- |" + " ---: |" * (len(header) - 1)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return f"**{title}**\n\n" + "\n".join(lines)


def insert_markdown(file: Path, text: str, mark: str = "parspec bench speed") -> None:
    """Put a report between two marks of a Markdown file; a file without them is written anew.

    Args:
        file: The file.
        text: The report.
        mark: The marks are the comments ``begin: MARK`` and ``end: MARK``.
    """
    first, last = f"<!-- begin: {mark} -->", f"<!-- end: {mark} -->"
    block = f"{first}\n\n{text}\n\n{last}"
    old = file.read_text(encoding="utf-8") if file.exists() else ""
    before, begin, rest = old.partition(first)
    _, end, after = rest.partition(last)
    new = before + block + after if begin and end else block + "\n"
    file.write_text(new, encoding="utf-8")


TableData = tuple[str, list[str], list[list[str]]]


def tables(results: Results) -> list[TableData]:
    """Title, header and rows of every table that has rows."""
    found = [_machine(results), _ratios(results)]
    for records, what in (
        (results.own, "weights as stored"),
        (results.own_int8, "target in int8"),
        (results.shape, _SHAPE_NOTE),
    ):
        found += [_generations(records, what), _steps(records, what, results), _phases(records, what)]
    found += [_structured(results.own), _throughput(results.own), _peers(results), _absent(results)]
    return [table for table in found if table[2]]


def _machine(results: Results) -> TableData:
    machine = results.machine
    rates = ", ".join(f"{name} {rate / 1e9:.0f} G" for name, rate in machine.matrix_rate.items())
    rows = [
        ["processor", f"{machine.cpu}, {machine.threads} threads, {', '.join(machine.capabilities)}"],
        ["memory", f"{machine.memory_gib} GiB, read at {machine.read_bandwidth / 1e9:.1f} GB/s"],
        ["matrix product, operations/s", rates],
        ["versions", ", ".join(f"{name} {version}" for name, version in machine.versions.items())],
    ]
    for record in of_kind([*results.own, *results.shape], "load"):
        names = [record[which] for which in ("target", "draft")]
        sizes = ", ".join(f"{m['name']} {m['weight_bytes'] / 1e9:.2f} GB read a pass" for m in names)
        rows.append(["models", f"{sizes}; loaded in {record['seconds']:.1f} s"])
    rows += [["command to first token", f"{record['seconds']:.1f} s"] for record in of_kind(results.own, "start")]
    return "The machine", ["what", "measured"], rows


def _ratios(results: Results) -> TableData:
    rows = []
    for name, value in ratios(results).items():
        relation, bound = TARGETS[name]
        verdict = {True: "yes", False: "no", None: "-"}[reached(name, value)]
        rows.append([name, "-" if value is None else f"{value:.3g}", f"{relation} {bound:g}", verdict])
    return "Ratios", ["ratio", "measured", "aim on a matrix unit", "reached here"], rows


def _generations(records: list[Record], what: str) -> TableData:
    runs = of_kind(records, "generation")
    rows = []
    for task in dict.fromkeys(run["task"] for run in runs):
        for label, spread in speeds(records, task).items():
            mine = [run for run in runs if run["task"] == task and run["label"] == label]
            per_cycle = sum(run["advanced"] for run in mine) / sum(run["cycles"] for run in mine)
            ess = [run["mean_ess_share"] for run in mine if run["mean_ess_share"] is not None]
            share = f"{sum(ess) / len(ess):.0%}" if ess else "-"
            rows.append([f"{task}: {label}", *_show(spread), f"{per_cycle:.2f}", share])
    header = ["parspec", "tokens/s", "lowest", "highest", "tokens a cycle", "ESS / N"]
    return f"Tokens per second ({what})", header, rows


def _steps(records: list[Record], what: str, results: Results) -> TableData:
    rows = []
    bandwidth, rates = results.machine.read_bandwidth, results.machine.matrix_rate
    for record in of_kind(records, "step"):
        reading = record["weight_bytes"] / bandwidth
        operations = 2 * record["num_weights"] * record["rows"] * record["tokens"] / max(rates.values())
        rows.append(
            [
                f"{record['model']}, {record['rows']} x {record['tokens']} tokens",
                f"{record['seconds'] * 1e3:.1f}",
                f"{reading * 1e3:.1f}",
                f"{operations * 1e3:.1f}",
            ]
        )
    header = ["pass", "ms", "ms to read the weights", "ms to multiply, best format"]
    return f"Single passes behind 200 tokens, beside their floors ({what})", header, rows


def phases(records: Iterable[Record]) -> dict[str, dict[str, float]]:
    """Seconds of a cycle by phase, by label."""
    shares: dict[str, list[Record]] = {}
    for record in of_kind(records, "generation"):
        shares.setdefault(record["label"], []).append(record)
    found = {}
    for label, runs in shares.items():
        cycles = sum(max(1, run["cycles"] - 1) for run in runs)
        draft, target = (sum(run[f"{phase}_seconds"] for run in runs) / cycles for phase in ("draft", "target"))
        whole = sum(cycle_seconds(run) * max(1, run["cycles"] - 1) for run in runs) / cycles
        found[label] = {"draft": draft, "target": target, "rest": max(0.0, whole - draft - target)}
    return found


def _phases(records: list[Record], what: str) -> TableData:
    rows = []
    for label, parts in phases(records).items():
        whole = sum(parts.values())
        rows.append([label, f"{whole * 1e3:.0f}", *(f"{part / whole:.1%}" for part in parts.values())])
    return f"A cycle by phase ({what})", ["parspec", "ms", "draft", "target", "rest"], rows


def _structured(records: list[Record]) -> TableData:
    rows = [
        [f"{label}, {'JSON schema' if constrained else 'free'}", *_show(spread)]
        for (label, constrained), spread in writing_speeds(records).items()
    ]
    return "A prompt for JSON, prompts aside", ["parspec", "tokens/s", "lowest", "highest"], rows


def _throughput(records: list[Record]) -> TableData:
    rows = [
        [r["label"], str(r["requests"]), f"{r['num_tokens'] / r['seconds']:.2f}"]
        for r in of_kind(records, "throughput")
    ]
    return "Requests at once", ["parspec", "requests", "tokens/s in all"], sorted(rows, key=lambda row: row[0])


def _peers(results: Results) -> TableData:
    rows = []
    for task in dict.fromkeys(run.task for run in results.peers if isinstance(run, PeerRun)):
        for (engine, mode), spread in peer_speeds(results.peers, task).items():
            rows.append([f"{task}: {engine}, {mode}", *_show(spread)])
    return "Other engines, same prompts and lengths", ["engine", "tokens/s", "lowest", "highest"], rows


def _absent(results: Results) -> TableData:
    rows = [
        [run.engine if run.mode is None else f"{run.engine}, {run.mode}", run.reason]
        for run in results.peers
        if isinstance(run, PeerAbsent)
    ]
    return "Not measured", ["engine", "why"], rows


def _show(spread: Spread) -> list[str]:
    return [f"{value:.2f}" if math.isfinite(value) else "-" for value in (spread.median, spread.low, spread.high)]
