"""Constraints against the enumerated truth: local masks, and the model's distribution given a valid answer."""

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

from parspec.engine.outputs import RequestOutput
from parspec.models.loader import LoadedModel
from parspec.sampling.params import SamplingParams
from tests.oracle.test_smc import evidence, noise, posterior_mean
from tests.support.exact import chi_square_p_value, enumerate_answers, table_logits, total_variation
from tests.support.table_model import TableModel, loaded
from tests.support.tokenizers import letters_tokenizer

LETTERS, LENGTH, SIGNIFICANCE = "abc", 5, 1e-4
TOKENIZER = letters_tokenizer(LETTERS)
REGEX = "a(b|bc)|ba{0,2}c|c{2,3}|b"
TARGET = TableModel.random(4, LENGTH + 1, seed=20)
DRAFT = TARGET.perturbed(seed=21, size=0.6)

Answer = tuple[int, ...]


def with_tokenizer(model: TableModel) -> LoadedModel:
    return replace(loaded(model), tokenizer=TOKENIZER)


def valid_answers(regex: str, length: int = LENGTH) -> set[Answer]:
    """Every answer that fits, its end included."""
    return {
        (*tokens, 0)
        for size in range(length)
        for tokens in itertools.product(range(1, 4), repeat=size)
        if re.fullmatch(regex, "".join(LETTERS[token - 1] for token in tokens))
    }


def local_truth(model: TableModel, valid: set[Answer], sampling: SamplingParams) -> dict[Answer, float]:
    """What masking and renormalising at every token gives."""

    def mask(prefix: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        allowed = {answer[len(prefix)] for answer in valid if answer[: len(prefix)] == tuple(prefix)}
        return torch.where(torch.tensor([token in allowed for token in range(4)]), logits, -torch.inf)

    return enumerate_answers(table_logits(model), sampling, LENGTH + 1, [0], mask)


def global_truth(model: TableModel, valid: set[Answer], sampling: SamplingParams) -> tuple[dict[Answer, float], float]:
    """The model's distribution given a valid answer, and the probability of one."""
    plain = enumerate_answers(table_logits(model), sampling, LENGTH + 1, [0])
    mass = sum(plain[answer] for answer in valid)
    return {answer: plain[answer] / mass for answer in valid}, mass


@pytest.fixture
def run(draw: Callable[..., list[RequestOutput]]) -> Callable[..., list[RequestOutput]]:
    """``run(target, draft, runs, **params)`` for one of the models above."""

    def run(target: TableModel, draft: TableModel, runs: int, **params: object) -> list[RequestOutput]:
        defaults = {"method": "smc", "num_draft_tokens": 2, "max_tokens": LENGTH + 1}
        return draw(with_tokenizer(target), with_tokenizer(draft), runs, **{**defaults, **params})

    return run


@pytest.mark.parametrize("method", ["autoregressive", "speculative"])
def test_lossless_methods_follow_the_local_distribution(run, method: str, measured) -> None:
    sampling = {"regex": REGEX, "temperature": 0.8, "top_p": 0.9}
    truth = local_truth(TARGET, valid_answers(REGEX), SamplingParams(**sampling))
    for chains in (1, 2) if method == "speculative" else (1,):
        outputs = run(TARGET, DRAFT, 8_000, method=method, num_particles=chains, num_draft_tokens=3, **sampling)
        p = chi_square_p_value([tuple(o.token_ids) for o in outputs], truth)
        measured(f"{method}, {chains} chains, regex: chi-square p = {p:.3f} over {len(truth)} answers")
        assert p > SIGNIFICANCE
        assert all(re.fullmatch(REGEX, o.text) and o.finish_reason == "stop" for o in outputs)


@pytest.mark.parametrize("mode", ["local", "global"])
@pytest.mark.parametrize("kappa", [0.0, 0.5])
def test_smc_approaches_the_distribution_of_its_mode(run, mode: str, kappa: float, measured) -> None:
    sampling = SamplingParams(regex=REGEX, constraint_mode=mode, temperature=0.8)
    valid = valid_answers(REGEX)
    truth, mass = global_truth(TARGET, valid, sampling)
    if mode == "local":
        truth, mass = local_truth(TARGET, valid, sampling), 1.0
    distances = []
    for particles, runs in ((2, 1500), (8, 800), (32, 300)):
        outputs = run(
            TARGET,
            DRAFT,
            runs,
            regex=REGEX,
            constraint_mode=mode,
            temperature=0.8,
            num_particles=particles,
            cut_threshold=kappa,
        )
        assert all(tuple(p.token_ids) in valid for o in outputs for p in o.posterior.particles)
        distances.append(total_variation(posterior_mean(outputs), truth))
        error = noise(outputs)
    z, z_error = evidence(outputs)
    measured(
        f"smc, {mode} constraint, kappa={kappa}: total variation {distances[0]:.3f}, {distances[1]:.3f}, "
        f"{distances[2]:.3f} (+-{error:.3f}) at N = 2, 8, 32; E[Z-hat] {z:.4f} +- {z_error:.4f}, exact {mass:.4f}"
    )
    assert distances[2] < distances[0] / 4 + error
    assert abs(z - mass) < 4 * z_error + 1e-3


def test_where_local_is_wrong_global_is_not(run, measured) -> None:
    """The classic case: the likely first letter leads where hardly anything is valid."""
    target = TableModel.random(4, LENGTH + 1, seed=22)
    target.tables[0][0] = torch.tensor([-20.0, 3.0, 0.0, -20.0])  # "a" twenty times as likely as "b"
    target.tables[1][:] = 0.0
    target.tables[1][1] = torch.tensor([3.0, 3.0, -4.0, 3.0])  # behind "a" hardly ever the "b" it takes
    regex = "ab|b[abc]"
    valid, sampling = valid_answers(regex), SamplingParams()
    truth, _ = global_truth(target, valid, sampling)
    local_distance = total_variation(local_truth(target, valid, sampling), truth)
    distances = []
    for particles, runs in ((4, 1500), (16, 600), (64, 200)):
        outputs = run(
            target, target.perturbed(23, 0.3), runs, regex=regex, constraint_mode="global", num_particles=particles
        )
        distances.append(total_variation(posterior_mean(outputs), truth))
    measured(
        f"counter-example: local is {local_distance:.3f} off; global at N = 4, 16, 64: "
        + ", ".join(f"{distance:.3f}" for distance in distances)
    )
    assert local_distance > 0.5
    assert distances[0] > distances[1] > distances[2]
    assert distances[2] < local_distance / 5


def test_forced_tokens_cost_no_pass_of_the_draft(run) -> None:
    """All but the first letter are forced: the draft is asked about nothing."""
    for method in ("smc", "speculative"):
        target, draft = TableModel.random(4, LENGTH + 2, seed=20), TableModel.random(4, LENGTH + 2, seed=21)
        outputs = run(
            target, draft, 1, method=method, num_particles=2, num_draft_tokens=4, choice=["abcba"], max_tokens=6
        )
        assert outputs[0].text == "abcba"
        assert outputs[0].posterior.log_evidence == pytest.approx(0.0, abs=1e-5)
        assert draft.num_passes <= 1  # of smc, the prompt


@pytest.mark.parametrize("method", ["smc", "speculative"])
def test_a_draft_that_skipped_forced_tokens_catches_up(run, method: str, measured) -> None:
    """Free and forced letters take turns; the draft's cache must hold all of them, in place."""
    regex = "(ab|ba)c[abc]b?"
    sampling = SamplingParams(regex=regex)
    truth = local_truth(TARGET, valid_answers(regex, LENGTH + 1), sampling)
    outputs = run(TARGET, TARGET, 6_000, method=method, num_particles=2, num_draft_tokens=3, regex=regex)
    # With the target for a draft every weight is 1 and every token accepted, if both see the same text.
    assert all(o.posterior.log_evidence == pytest.approx(0.0, abs=1e-4) for o in outputs)
    if method == "speculative":
        assert all(o.metrics.num_kept == o.metrics.num_drafted for o in outputs if o.finish_reason == "length")
    p = chi_square_p_value([tuple(o.token_ids) for o in outputs], truth)
    measured(f"{method}, forced and free tokens in turn: chi-square p = {p:.3f}")
    assert p > SIGNIFICANCE
