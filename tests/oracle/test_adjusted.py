"""Penalties, biases and the rest under every method: exact, or approached, against the enumerated truth."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from parspec.sampling.params import SamplingParams
from tests.oracle.test_smc import posterior_mean
from tests.support.exact import chi_square_p_value, enumerate_answers, table_logits, total_variation
from tests.support.reference import reference_adjustments
from tests.support.table_model import TableModel, loaded

LENGTH, PROMPT, SIGNIFICANCE = 4, [1], 1e-4
TARGET = TableModel.random(vocab_size=4, length=6, seed=10)
DRAFT = TableModel.random(4, 6, seed=12)


def again(answer: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
    """Likes to say a token twice."""
    if answer:
        logits[answer[-1]] += 1.0
    return logits


REQUESTS: dict[str, dict[str, Any]] = {
    "penalties": {"repetition_penalty": 1.6, "presence_penalty": 0.7, "frequency_penalty": -0.8},
    "biases": {"logit_bias": {0: -1.0, 2: 1.5}, "allowed_token_ids": [0, 1, 2]},
    "min_tokens": {"min_tokens": 2},
    "processor": {"logits_processors": [again]},
    "all": {
        "repetition_penalty": 1.6,
        "presence_penalty": 0.7,
        "frequency_penalty": -0.8,
        "logit_bias": {2: 1.5},
        "min_tokens": 2,
        "logits_processors": [again],
        "temperature": 0.8,
        "top_p": 0.9,
    },
}


def truth(asked: dict[str, Any]) -> dict[tuple[int, ...], float]:
    sampling = SamplingParams(**asked)
    adjust = reference_adjustments(sampling, PROMPT, [0])
    return enumerate_answers(table_logits(TARGET), sampling, LENGTH, [0], adjust)


@pytest.mark.parametrize("method", ["autoregressive", "speculative"])
@pytest.mark.parametrize("asked", REQUESTS)
def test_lossless_methods_are_exact(draw, asked: str, method: str, measured) -> None:
    outputs = draw(
        loaded(TARGET),
        loaded(DRAFT),
        8_000,
        method=method,
        num_particles=2,
        num_draft_tokens=3,
        max_tokens=LENGTH,
        **REQUESTS[asked],
    )
    p = chi_square_p_value([tuple(o.token_ids) for o in outputs], truth(REQUESTS[asked]))
    measured(f"{method}, {asked}: chi-square p = {p:.3f}")
    assert p > SIGNIFICANCE


@pytest.mark.parametrize("asked", REQUESTS)
def test_smc_approaches_the_adjusted_target(draw, asked: str, measured) -> None:
    # top_p would let the draft rule out what the target allows; no number of particles makes up for that.
    params = {name: value for name, value in REQUESTS[asked].items() if name != "top_p"}
    exact = truth(params)
    distances = []
    for particles, runs in ((2, 1500), (32, 300)):
        outputs = draw(
            loaded(TARGET),
            loaded(TARGET.perturbed(seed=5, size=0.8)),
            runs,
            method="smc",
            num_particles=particles,
            num_draft_tokens=2,
            max_tokens=LENGTH,
            **params,
        )
        distances.append(total_variation(posterior_mean(outputs), exact))
    measured(f"smc, {asked}: total variation {distances[0]:.3f} at N = 2, {distances[1]:.3f} at N = 32")
    assert distances[1] < 0.4 * distances[0]


@pytest.mark.parametrize("asked", REQUESTS)
def test_greedy_answers_are_the_same_by_every_method(draw, asked: str) -> None:
    """Token by token, from the tables alone; a badly matched draft proposes something else at every place."""
    asked_for = {**REQUESTS[asked], "temperature": 0.0}
    sampling = SamplingParams(**asked_for)
    adjust, answer = reference_adjustments(sampling, PROMPT, [0]), []
    while len(answer) < LENGTH + 1 and 0 not in answer:
        answer.append(int(adjust(answer, table_logits(TARGET)(tuple(answer))).argmax()))
    for method, chains, draft in (("autoregressive", 1, DRAFT), ("speculative", 2, DRAFT), ("smc", 3, TARGET)):
        (output,) = draw(
            loaded(TARGET),
            loaded(draft),
            1,
            method=method,
            num_particles=chains,
            num_draft_tokens=3,
            max_tokens=LENGTH + 1,
            **asked_for,
        )
        assert output.token_ids == answer
