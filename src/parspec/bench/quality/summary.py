"""What answers in a store say: accuracy, fidelity and speed of every variant, beside one they are compared with."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from parspec.bench.quality.compare import (
    Difference,
    Distance,
    Estimate,
    Scores,
    Sequences,
    average,
    difference,
    same_distribution,
    sequence_distance,
)
from parspec.bench.quality.store import Record


class Summary(NamedTuple):
    """A variant on a task.

    Attributes:
        task: The task.
        variant: The variant's label.
        num_answers: Answers it rests on.
        accuracy: Mean score.
        accuracy_gain: Accuracy less that of the baseline; None for the baseline itself, or without common questions.
        log_prob: Target log-probability per token of an answer, mean over questions.
        log_prob_gain: The same less that of the baseline: below 0 where answers are less like the target's.
        log_prob_p: Of the two distributions of it being the same.
        length: Tokens of an answer, mean over questions.
        length_gain: The same less that of the baseline.
        length_p: Of the two distributions of lengths being the same.
        tokens_per_second: Of answers that ran alone, prefill included.
        tokens_per_cycle: Tokens an answer grows by in a cycle.
        kept_share: Share of drafted positions that are kept.
        ess: Mean effective sample size at the cut, as a share of the particles.
        kept: How often a cycle kept so many drafted positions.
        distance: Between its sequences and the baseline's, where token ids are kept.
    """

    task: str
    variant: str
    num_answers: int
    accuracy: Estimate
    accuracy_gain: Difference | None
    log_prob: Estimate | None
    log_prob_gain: Difference | None
    log_prob_p: float | None
    length: Estimate
    length_gain: Difference | None
    length_p: float | None
    tokens_per_second: float | None
    tokens_per_cycle: float | None
    kept_share: float | None
    ess: float | None
    kept: dict[int, int]
    distance: Distance | None


def summaries(records: Iterable[Record], baseline: str | None = None) -> list[Summary]:
    """Summaries by task and variant, in the order they first occur.

    Args:
        records: Answers.
        baseline: Label of the variant the others are compared with; by default the first plain decoding there is.
    """
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        groups[record["task"], record["variant"]].append(record)
    if baseline is None:
        baseline = next((label for _, label in groups if label.startswith("autoregressive")), None)
    return [
        _summary(task, label, answers, groups.get((task, baseline or "")) if label != baseline else None)
        for (task, label), answers in groups.items()
    ]


def scores(records: Iterable[Record], value: Callable[[Record], float | None]) -> Scores:
    """A number of every answer that has it, by question."""
    found: dict[str, list[float]] = defaultdict(list)
    for record in records:
        number = value(record)
        if number is not None:
            found[str(record["item"])].append(number)
    return found


def _score(record: Record) -> float:
    return float(record["score"])


def _length(record: Record) -> float:
    return float(record["num_tokens"])


def _log_prob(record: Record) -> float | None:
    total = record["log_prob"]
    return None if total is None or not record["num_tokens"] else float(total) / record["num_tokens"]


def _summary(task: str, label: str, answers: list[Record], base: list[Record] | None) -> Summary:
    timed = [record for record in answers if record["seconds"] is not None]
    seconds = sum(record["seconds"] for record in timed)
    cycles = sum(record["cycles"] for record in answers)
    kept: dict[int, int] = defaultdict(int)
    for record in answers:
        for position, times in record["kept"].items():
            kept[int(position)] += times
    shares = [record["ess"] for record in answers if record["ess"] is not None]
    log_probs, lengths = scores(answers, _log_prob), scores(answers, _length)
    base_log_probs, base_lengths = scores(base or [], _log_prob), scores(base or [], _length)
    drafted = sum(record["drafted"] for record in answers)
    return Summary(
        task=task,
        variant=label,
        num_answers=len(answers),
        accuracy=average(scores(answers, _score)),
        accuracy_gain=_gain(scores(answers, _score), scores(base or [], _score)),
        log_prob=average(log_probs) if log_probs else None,
        log_prob_gain=_gain(log_probs, base_log_probs),
        log_prob_p=_same(log_probs, base_log_probs),
        length=average(lengths),
        length_gain=_gain(lengths, base_lengths),
        length_p=_same(lengths, base_lengths),
        tokens_per_second=sum(record["num_tokens"] for record in timed) / seconds if seconds else None,
        tokens_per_cycle=sum(record["advanced"] for record in answers) / cycles if cycles else None,
        kept_share=sum(position * times for position, times in kept.items()) / drafted if drafted else None,
        ess=sum(shares) / len(shares) if shares else None,
        kept=dict(sorted(kept.items())),
        distance=_distance(_sequences(answers), _sequences(base or [])),
    )


def _gain(first: Scores, second: Scores) -> Difference | None:
    return difference(first, second) if first.keys() & second.keys() else None


def _sequences(records: Iterable[Record]) -> Sequences:
    found: dict[str, list[list[int]]] = defaultdict(list)
    for record in records:
        if "token_ids" in record:
            found[str(record["item"])].append(record["token_ids"])
    return found


def _distance(first: Sequences, second: Sequences) -> Distance | None:
    several = any(len(first[item]) > 1 and len(second.get(item, ())) > 1 for item in first)
    return sequence_distance(first, second) if several else None


def _same(first: Scores, second: Scores) -> float | None:
    return same_distribution(first, second) if first.keys() & second.keys() else None
