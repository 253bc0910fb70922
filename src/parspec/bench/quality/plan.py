"""What is to be answered, and how."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from parspec.bench.records import Setting
from parspec.errors import InvalidRequestError
from parspec.sampling.params import METHOD_NAMES, SELECTIONS

DRAFT_ALONE = "draft"
"""The method of a variant that answers with the draft and no target."""


@dataclass(frozen=True)
class Item:
    """One question of a task.

    Attributes:
        task: The task's name.
        number: Which of the task's questions.
        prompt: The text to be continued, the chat template applied.
        stop: Strings that end an answer.
        score: From an answer's text to its score, from 0 to 1.
        vote: What of an answer counts in a vote; None where answers cannot be counted.
        max_tokens: Most tokens of an answer, below what other items may have; None for as many as those.
    """

    task: str
    number: int
    prompt: str
    stop: tuple[str, ...]
    score: Callable[[str], float] = field(compare=False)
    vote: str | None = None
    max_tokens: int | None = None


@dataclass(frozen=True)
class Variant:
    """A way to answer: a decoding setting, and what it aims at.

    Attributes:
        setting: The method and its parameters.
        temperature: Of the sampling.
        power: alpha.
        select: Which particle becomes the answer.
    """

    setting: Setting
    temperature: float
    power: float = 1.0
    select: str = "sample"

    @property
    def label(self) -> str:
        """How a table names it; the same label is the same variant."""
        changes = [f"T={self.temperature:g}"]
        changes += [f"power={self.power:g}"] if self.power != 1 else []
        changes += [self.select] if self.select != "sample" else []
        return " ".join([self.setting.label, *changes])

    def sampling(self, item: Item) -> dict[str, Any]:
        """Keywords of `SamplingParams` for an item."""
        method = {"method": "autoregressive"} if self.setting.method == DRAFT_ALONE else self.setting.sampling()
        if self.select != "sample":
            method |= {"select": self.select}
        if self.select == "vote":
            method |= {"vote": item.vote}
        return {**method, "temperature": self.temperature, "power": self.power, "stop": item.stop}


def cross(
    methods: Sequence[str],
    *,
    num_particles: Sequence[int],
    num_chains: Sequence[int],
    num_draft_tokens: Sequence[int],
    cut_thresholds: Sequence[float],
    temperatures: Sequence[float],
    powers: Sequence[float],
    selections: Sequence[str],
) -> list[Variant]:
    """Every combination that is one: only smc has particles, a cut, a power and a choice.

    Raises:
        InvalidRequestError: A method or a selection is unknown.
    """
    variants: list[Variant] = []
    for method, temperature in product(methods, temperatures):
        if method == "smc":
            for n, k, cut, power, select in product(
                num_particles, num_draft_tokens, cut_thresholds, powers, selections
            ):
                variants.append(Variant(Setting(method, n, k, cut), temperature, power, select))
        elif method == "speculative":
            variants += [Variant(Setting(method, n, k), temperature) for n, k in product(num_chains, num_draft_tokens)]
        elif method in (*METHOD_NAMES, DRAFT_ALONE):
            variants.append(Variant(Setting(method), temperature))
        else:
            raise InvalidRequestError(f'method "{method}" is unknown: use {", ".join((*METHOD_NAMES, DRAFT_ALONE))}')
    unknown = next((select for select in selections if select not in SELECTIONS), None)
    if unknown is not None:
        raise InvalidRequestError(f'select "{unknown}" is unknown: use {", ".join(SELECTIONS)}')
    return variants


@dataclass(frozen=True)
class Work:
    """One answer to be had.

    Attributes:
        item: The question.
        variant: How to answer it.
        seed: Which of the answers to it by this variant, from 0.
        alone: Whether nothing else may run meanwhile, so that its time means something.
    """

    item: Item
    variant: Variant
    seed: int
    alone: bool = False

    @property
    def key(self) -> tuple[str, int, str, int]:
        """What its record is found by."""
        return self.item.task, self.item.number, self.variant.label, self.seed

    @property
    def request_seed(self) -> int:
        """The seed of its draws: its own, and the same in every run."""
        return int.from_bytes(hashlib.sha256(repr(self.key).encode()).digest()[:7])


def works(items: Sequence[Item], variants: Sequence[Variant], num_seeds: int, num_timed: int) -> Iterator[Work]:
    """All answers to be had, those with a time first.

    Args:
        items: The questions.
        variants: How to answer each; one that votes leaves out items whose answers cannot be counted.
        num_seeds: Answers to an item by each variant.
        num_timed: Items of every task whose first answer is timed.
    """
    for alone in (True, False):
        for seed in range(num_seeds):
            for variant in variants:
                for item in items:
                    timed = seed == 0 and item.number < num_timed
                    if timed == alone and (variant.select != "vote" or item.vote is not None):
                        yield Work(item, variant, seed, alone)
