"""The ratios parspec is held to, from the records of one run."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median

from parspec.bench.machine import Machine
from parspec.bench.peers import PeerAbsent, PeerRun
from parspec.bench.records import Record

TARGETS: dict[str, tuple[str, float]] = {
    "ar_vs_floor": (">=", 0.80),
    "draft8_vs_floor": (">=", 0.70),
    "score72_vs_ar": ("<=", 1.5),
    "smc_vs_ar_code": (">=", 3.5),
    "smc_vs_sd_code": (">=", 1.4),
    "smc_vs_sd_writing": (">=", 2.0),
    "sd_vs_ar_code": (">=", 2.3),
    "smc_vs_transformers": (">=", 3.5),
    "smc_vs_assisted": (">=", 2.5),
    "smc_vs_best_peer": (">=", 1.3),
    "overhead_share": ("<=", 0.03),
    "long_prompt_cycle": ("<=", 1.25),
    "cache_n16_vs_n1": ("<=", 1.4),
    "json_vs_free": (">=", 0.85),
    "throughput_8_vs_1": (">=", 2.5),
    "shape_smc_vs_ar": (">=", 5.2),
}
"""What each must reach on a machine whose matrix unit is far ahead of its memory (AMX, GPUs)."""

MIN_PARTICLES = 4
"""SMC settings with fewer do not count: they are hardly a population."""


@dataclass(frozen=True)
class Spread:
    """Tokens per second of one way to decode, over prompts and repeats."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Results:
    """All records of a run.

    Attributes:
        machine: Where it ran.
        own: parspec, target weights as stored.
        own_int8: parspec, target weights rounded to int8; its best setting stands against peers with small weights.
        shape: parspec on random weights.
        peers: Other engines.
    """

    machine: Machine
    own: list[Record]
    own_int8: list[Record]
    shape: list[Record]
    peers: list[PeerRun | PeerAbsent]


def speeds(records: Iterable[Record], task: str) -> dict[str, Spread]:
    """Tokens per second by label, of one task."""
    found: dict[str, list[float]] = defaultdict(list)
    for record in of_kind(records, "generation"):
        if record["task"] == task:
            found[record["label"]].append(record["num_tokens"] / record["seconds"])
    return {label: _spread(values) for label, values in found.items()}


def peer_speeds(peers: Iterable[PeerRun | PeerAbsent], task: str) -> dict[tuple[str, str], Spread]:
    """Tokens per second of the peers by engine and mode, of one task."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for run in peers:
        if isinstance(run, PeerRun) and run.task == task:
            found[run.engine, run.mode].append(run.num_tokens / run.seconds)
    return {key: _spread(values) for key, values in found.items()}


def of_kind(records: Iterable[Record], kind: str) -> list[Record]:
    """The records of one kind."""
    return [record for record in records if record["kind"] == kind]


def ratios(results: Results) -> dict[str, float | None]:
    """All ratios of `TARGETS`; None for what was not measured."""
    measured: dict[str, Callable[[Results], float | None]] = {
        "ar_vs_floor": _ar_vs_floor,
        "draft8_vs_floor": _draft8_vs_floor,
        "score72_vs_ar": lambda r: _quotient(_step(r.own, "target", 8, 9), _step(r.own, "target", 1, 1)),
        "smc_vs_ar_code": lambda r: _quotient(_best(r.own, "coding", "smc"), _best(r.own, "coding", "autoregressive")),
        "smc_vs_sd_code": lambda r: _quotient(_best(r.own, "coding", "smc"), _best(r.own, "coding", "speculative")),
        "smc_vs_sd_writing": lambda r: _quotient(
            _best(r.own, "writing", "smc"), _best(r.own, "writing", "speculative")
        ),
        "sd_vs_ar_code": lambda r: _quotient(
            _best(r.own, "coding", "speculative"), _best(r.own, "coding", "autoregressive")
        ),
        "smc_vs_transformers": lambda r: _quotient(
            _best(r.own, "coding", "smc"), _peer(r, "transformers", lambda mode: mode == "generate")
        ),
        "smc_vs_assisted": lambda r: _quotient(
            _best(r.own, "coding", "smc"), _peer(r, "transformers", lambda mode: mode == "assisted")
        ),
        "smc_vs_best_peer": _smc_vs_best_peer,
        "overhead_share": _overhead_share,
        "long_prompt_cycle": _long_prompt_cycle,
        "cache_n16_vs_n1": _cache,
        "json_vs_free": lambda r: _json_vs_free(r.own),
        "throughput_8_vs_1": _throughput,
        "shape_smc_vs_ar": lambda r: _quotient(
            _best(r.shape, "shape only", "smc"), _best(r.shape, "shape only", "autoregressive")
        ),
    }
    assert measured.keys() == TARGETS.keys()
    return {name: measure(results) for name, measure in measured.items()}


def reached(name: str, value: float | None) -> bool | None:
    """Whether a ratio reaches its target; None if it was not measured."""
    if value is None:
        return None
    relation, bound = TARGETS[name]
    return value >= bound if relation == ">=" else value <= bound


def _spread(values: list[float]) -> Spread:
    return Spread(median(values), min(values), max(values))


def _quotient(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None or b == 0 else a / b


def _counts(record: Record) -> bool:
    return bool(record["method"] != "smc" or record["num_particles"] >= MIN_PARTICLES)


def _best(records: list[Record], task: str, method: str) -> float | None:
    """Median tokens per second of a method's best setting."""
    labels = {r["label"] for r in of_kind(records, "generation") if r["method"] == method and _counts(r)}
    medians = [spread.median for label, spread in speeds(records, task).items() if label in labels]
    return max(medians, default=None)


def _peer(results: Results, engine: str, wanted: Callable[[str], bool]) -> float | None:
    found = peer_speeds(results.peers, "coding")
    return max((s.median for (name, mode), s in found.items() if name == engine and wanted(mode)), default=None)


def _smc_vs_best_peer(results: Results) -> float | None:
    peers = [_peer(results, engine, lambda _: True) for engine in ("llama.cpp", "openvino")]
    own = [_best(records, "coding", "smc") for records in (results.own, results.own_int8)]
    return _quotient(
        max((s for s in own if s is not None), default=None), max((s for s in peers if s is not None), default=None)
    )


def _step(records: list[Record], model: str, rows: int, tokens: int) -> float | None:
    """Seconds of one pass."""
    for record in of_kind(records, "step"):
        if (record["model"], record["rows"], record["tokens"]) == (model, rows, tokens):
            return float(record["seconds"])
    return None


def _ar_vs_floor(results: Results) -> float | None:
    """Speed of plain decoding, as a share of reading the target's weights once a token."""
    runs = [
        (r["seconds"] - r["prefill_seconds"]) / max(1, r["num_tokens"] - 1)
        for r in of_kind(results.own, "generation")
        if r["method"] == "autoregressive"
    ]
    loads = of_kind(results.own, "load")
    if not runs or not loads:
        return None
    return float(loads[0]["target"]["weight_bytes"] / results.machine.read_bandwidth / median(runs))


def _draft8_vs_floor(results: Results) -> float | None:
    """Speed of a draft step at 4 and at 8 rows, as a share of reading its weights once; the lower one."""
    loads = of_kind(results.own, "load")
    steps = [_step(results.own, "draft", rows, 1) for rows in (4, 8)]
    if not loads or None in steps:
        return None
    floor = float(loads[0]["draft"]["weight_bytes"]) / results.machine.read_bandwidth
    return min(floor / step for step in steps if step is not None)


def _overhead_share(results: Results) -> float | None:
    """Share of SMC's time outside the models' passes: sampling, weights, resampling, bookkeeping."""
    runs = [r for r in of_kind(results.own, "generation") if r["method"] == "smc" and _counts(r)]
    shares = [1 - (r["draft_seconds"] + r["target_seconds"]) / (r["seconds"] - r["prefill_seconds"]) for r in runs]
    return median(shares) if shares else None


def cycle_seconds(record: Record) -> float:
    """Seconds of a cycle, prompts aside; the first token is drawn from the prompt's pass."""
    return float((record["seconds"] - record["prefill_seconds"]) / max(1, record["cycles"] - 1))


def _long_prompt_cycle(results: Results) -> float | None:
    found = {r["prompt_tokens"]: cycle_seconds(r) for r in of_kind(results.own, "cycle")}
    return _quotient(found.get(2000), found.get(100))


def _cache(results: Results) -> float | None:
    found = {r["num_particles"]: float(r["bytes"]) for r in of_kind(results.own, "cache")}
    return _quotient(found.get(16), found.get(1))


def writing_speeds(records: list[Record]) -> dict[tuple[str, bool], Spread]:
    """Tokens per second, prompts aside, by label and whether a JSON schema had to be followed."""
    found: dict[tuple[str, bool], list[float]] = defaultdict(list)
    for r in of_kind(records, "structured"):
        found[r["label"], r["constrained"]].append(max(1, r["num_tokens"] - 1) / (r["seconds"] - r["prefill_seconds"]))
    return {key: _spread(values) for key, values in found.items()}


def _json_vs_free(records: list[Record]) -> float | None:
    """Speed of SMC under a JSON schema against the same prompt without."""
    labels = {r["label"] for r in of_kind(records, "structured") if r["method"] == "smc"}
    found = {key: spread.median for key, spread in writing_speeds(records).items() if key[0] in labels}
    return _quotient(
        max((s for (_, constrained), s in found.items() if constrained), default=None),
        max((s for (_, constrained), s in found.items() if not constrained), default=None),
    )


def _throughput(results: Results) -> float | None:
    """Total tokens per second of 8 requests against 1, with the method left to the engine where it was measured."""
    found: dict[int, dict[str, float]] = defaultdict(dict)
    for record in of_kind(results.own, "throughput"):
        found[record["requests"]][record["method"]] = record["num_tokens"] / record["seconds"]
    if 1 not in found or 8 not in found:
        return None
    if "auto" in found[8]:
        return _quotient(found[8]["auto"], found[1].get("auto"))
    return _quotient(max(found[8].values()), max(found[1].values()))
