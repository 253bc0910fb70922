"""What a run did, as a table for people and as an object for programs."""

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.table import Table

if TYPE_CHECKING:
    from parspec.engine.outputs import RequestOutput


def statistics_table(output: "RequestOutput") -> Table:
    """The counts, times and diagnostics of one answer."""
    table = Table(title=f"{output.method}, seed {output.seed}", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in _rows(output):
        table.add_row(name, value)
    return table


def _rows(output: "RequestOutput") -> list[tuple[str, str]]:
    metrics, posterior = output.metrics, output.posterior
    first = metrics.first_token_seconds
    rows = [
        ("prompt tokens", str(metrics.num_prompt_tokens)),
        ("tokens", f"{metrics.num_tokens} ({output.finish_reason})"),
        ("seconds", f"{metrics.seconds:.2f}"),
        ("seconds to the first final token", "-" if first is None else f"{first:.2f}"),
        ("tokens/s", f"{metrics.tokens_per_second:.2f}"),
        ("cycles", str(metrics.cycles)),
        ("tokens per cycle", f"{metrics.tokens_per_cycle:.2f}"),
    ]
    if metrics.num_drafted:
        rows.append(("drafted tokens kept", f"{metrics.num_kept} of {metrics.num_drafted}"))
    if posterior.ess:
        size = len(posterior.particles)
        rows += [
            ("mean ESS", f"{sum(posterior.ess) / len(posterior.ess):.2f} of {size}"),
            ("least ESS", f"{min(posterior.ess):.2f} of {size}"),
            ("resamplings", str(metrics.resamplings)),
            ("log Z-hat", f"{posterior.log_evidence:.3f}"),
            ("first particles with descendants", f"{posterior.unique_ancestors} of {size}"),
        ]
    return rows


def as_json_object(output: "RequestOutput", target: str, draft: str | None) -> dict[str, Any]:
    """All of an output, in types JSON has; numbers that are not finite become null."""
    plain: dict[str, Any] = _finite({"target": target, "draft": draft, **asdict(output)})
    plain["metrics"]["tokens_per_second"] = _finite(output.metrics.tokens_per_second)
    plain["metrics"]["tokens_per_cycle"] = output.metrics.tokens_per_cycle
    return plain


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
