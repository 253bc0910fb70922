"""Recorded log-probabilities are those of the table, for every particle, whatever it has been copied from."""

import pytest
import torch

from parspec.decoding.logprobs import TokenLogProb
from parspec.engine.engine import Engine
from parspec.sampling.params import MethodParams, SamplingParams
from parspec.sampling.processors import process
from tests.support.exact import table_logits
from tests.support.reference import reference_adjustments
from tests.support.table_model import TableModel, loaded

TARGET = TableModel.random(5, 6, seed=3, sharpness=1.2)
DRAFT = TARGET.perturbed(seed=5, size=1.0)
PROMPT = [1]
METHODS = {
    "autoregressive": {},
    "speculative": {"num_particles": 2, "num_draft_tokens": 2},
    "smc": {"num_particles": 6, "num_draft_tokens": 2, "resample_threshold": 1.0, "resampling": "multinomial"},
    "smc, forced commits": {"num_particles": 6, "num_draft_tokens": 1, "commit_lag": 1},
}


def expected(sampling: SamplingParams, answer: list[int]) -> list[torch.Tensor]:
    """Log-probabilities ``[V]`` the request samples from, at every place of an answer."""
    next_logits, adjust = table_logits(TARGET), reference_adjustments(sampling, PROMPT, [0])
    return [
        process(adjust(answer[:i], next_logits(tuple(answer[:i]))), sampling).squeeze(0) for i in range(len(answer))
    ]


def check(recorded: list[TokenLogProb], answer: list[int], rows: list[torch.Tensor]) -> None:
    assert [one.token_id for one in recorded] == answer
    for one, row in zip(recorded, rows, strict=True):
        assert one.log_prob == pytest.approx(float(row[one.token_id]), abs=1e-5)
        top = [(int(i), float(row[i])) for i in row.argsort(descending=True)[:3] if row[i] > -torch.inf]
        assert [token for token, _ in one.top] == [token for token, _ in top]
        assert [value for _, value in one.top] == pytest.approx([value for _, value in top], abs=1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_more_alternatives_than_tokens(name: str) -> None:
    engine = Engine(loaded(TARGET), loaded(DRAFT), MethodParams(), 1024**3)
    method = {"method": name.split(",")[0], **METHODS[name]}
    engine.submit(engine.check(PROMPT, SamplingParams(seed=1, max_tokens=6, logprobs=100, **method)))
    output = None
    while engine.has_work:
        for update in engine.step():
            output = update.output or output
    assert {len(one.top) for one in output.log_probs} == {5}


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
@pytest.mark.parametrize("name", METHODS)
def test_recorded_while_decoding(name: str, mode: str) -> None:
    method = {"method": name.split(",")[0], **METHODS[name]}
    controls = {"temperature": 0.8, "top_k": 4, "frequency_penalty": 0.7, "repetition_penalty": 1.3}
    engine = Engine(loaded(TARGET), loaded(DRAFT), MethodParams(), 1024**3)
    for seed in range(60):
        sampling = SamplingParams(
            seed=seed, max_tokens=6, logprobs=3, logprobs_mode=mode, prompt_logprobs=2, **controls, **method
        )
        engine.submit(engine.check(PROMPT, sampling))
        final, streamed, output = [], [], None
        while engine.has_work:
            for update in engine.step():
                assert update.error is None
                final += update.token_ids
                streamed += update.log_probs
                assert len(streamed) == len(final)
                output = update.output or output
        rows = expected(sampling, final)
        raw = [table_logits(TARGET)(tuple(final[:i])).log_softmax(-1) for i in range(len(final))]
        check(streamed, final, rows if mode == "processed_logprobs" else raw)
        assert output.log_probs == streamed
        assert output.prompt_log_probs == []
        for particle in output.posterior.particles:
            of_particle = expected(sampling, particle.token_ids)
            total = sum(float(row[token]) for row, token in zip(of_particle, particle.token_ids, strict=True))
            assert particle.log_prob == pytest.approx(total, abs=1e-4)
