"""The degenerate cases, one by one, on a model whose every distribution is known."""

import math
from itertools import pairwise

import pytest
import torch

from parspec.engine.engine import Engine
from parspec.engine.outputs import RequestOutput
from parspec.errors import ParspecError
from parspec.sampling.params import MethodParams, SamplingParams
from tests.support.table_model import TableModel, loaded

VOCAB = 5
TARGET = TableModel.random(VOCAB, 9, seed=0, sharpness=1.5)
FAR = TableModel.random(VOCAB, 9, seed=1, sharpness=1.5)


def run(target: TableModel = TARGET, draft: TableModel = FAR, eos: tuple[int, ...] = (0,), **params) -> RequestOutput:
    engine = Engine(loaded(target, eos), loaded(draft, eos), MethodParams(), 1 << 30)
    engine.submit(engine.check([1], SamplingParams(**params)))
    while True:
        for update in engine.step():
            if update.error is not None:
                raise update.error
            if update.output is not None:
                assert not engine.scheduler.running, "a finished request must leave the engine"
                return update.output


def greedy_answer(max_tokens: int) -> list[int]:
    answer: list[int] = []
    while len(answer) < max_tokens:
        code = sum(token * VOCAB**i for i, token in enumerate(answer))
        answer.append(int(TARGET.tables[len(answer)][code].argmax()))
    return answer


@pytest.mark.parametrize("num_draft_tokens", [0, 1, 3, 20])
@pytest.mark.parametrize("particles", [1, 2, 7])
@pytest.mark.parametrize("method", ["autoregressive", "speculative", "smc"])
@pytest.mark.parametrize("draft", [TARGET, FAR, TARGET.perturbed(3, 0.5)])
def test_temperature_zero_is_greedy(method: str, particles: int, num_draft_tokens: int, draft: TableModel) -> None:
    output = run(
        draft=draft,
        temperature=0,
        method=method,
        num_particles=particles,
        num_draft_tokens=num_draft_tokens,
        max_tokens=8,
        ignore_eos=True,
        seed=5,
    )
    greedy = greedy_answer(8)
    assert output.token_ids == greedy
    assert all(particle.token_ids == greedy for particle in output.posterior.particles)
    assert output.posterior.log_evidence == pytest.approx(0.0)


def test_every_particle_dead_at_once_still_moves_on() -> None:
    """Greedy with a draft that is always wrong: every cut is 0, every cycle gives the bonus token."""
    wrong = TableModel([-table for table in TARGET.tables])
    output = run(draft=wrong, temperature=0, method="smc", num_particles=4, max_tokens=6, ignore_eos=True, seed=0)
    assert output.metrics.num_kept == 0
    assert output.metrics.cycles == 6
    assert output.metrics.resamplings == 0


@pytest.mark.parametrize("max_tokens", range(1, 9))
@pytest.mark.parametrize("num_draft_tokens", [1, 3, 8])
@pytest.mark.parametrize("method", ["speculative", "smc"])
def test_the_length_limit_is_never_overrun(method: str, num_draft_tokens: int, max_tokens: int) -> None:
    output = run(
        method=method,
        num_particles=3,
        num_draft_tokens=num_draft_tokens,
        max_tokens=max_tokens,
        ignore_eos=True,
        seed=2,
    )
    assert len(output.token_ids) == max_tokens
    assert output.finish_reason == "length"
    assert all(len(particle.token_ids) == max_tokens for particle in output.posterior.particles)


@pytest.mark.parametrize("method", ["autoregressive", "speculative", "smc"])
def test_nothing_follows_the_end_of_text(method: str) -> None:
    reasons = set()
    for seed in range(60):
        output = run(method=method, num_particles=4, num_draft_tokens=5, max_tokens=7, seed=seed)
        for particle in output.posterior.particles:
            assert 0 not in particle.token_ids[:-1]
            assert particle.finish_reason == ("stop" if particle.token_ids[-1] == 0 else "length")
            assert particle.finish_reason == "stop" or len(particle.token_ids) == 7
        assert output.metrics.num_tokens == len(output.token_ids)
        reasons.add(output.finish_reason)
    assert "stop" in reasons


def test_what_the_draft_says_behind_an_end_weighs_nothing() -> None:
    """A draft that is the target except after an end of text: no weight may ever change."""
    tables = []
    for depth, table in enumerate(TARGET.tables):
        codes = torch.arange(len(table))
        ended = torch.stack([codes // VOCAB**i % VOCAB == 0 for i in range(depth)]).any(0) if depth else codes < 0
        tables.append(torch.where(ended[:, None], -3 * table, table))
    for seed in range(30):
        output = run(
            draft=TableModel(tables), method="smc", num_particles=6, num_draft_tokens=5, max_tokens=8, seed=seed
        )
        assert output.metrics.resamplings == 0
        assert all(p.weight == pytest.approx(1 / 6) for p in output.posterior.particles)


def test_stop_at_the_very_last_token_is_a_stop() -> None:
    always_ends = TableModel([table + 50 * (torch.arange(VOCAB) == 0) for table in TARGET.tables])
    output = run(target=always_ends, draft=always_ends, method="smc", num_particles=3, max_tokens=1, seed=0)
    assert (output.token_ids, output.finish_reason) == ([0], "stop")


def test_all_particles_finish_in_one_block() -> None:
    tables = [table.clone() for table in TARGET.tables]
    for depth, table in enumerate(tables):
        table[:, 0] = 60.0 if depth == 2 else -60.0
    model = TableModel(tables)
    output = run(target=model, draft=model, method="smc", num_particles=6, num_draft_tokens=6, max_tokens=8, seed=1)
    assert all(len(p.token_ids) == 3 and p.finish_reason == "stop" for p in output.posterior.particles)
    assert output.metrics.cycles == 2


def test_finished_particles_are_replaced_and_copied_but_never_revived() -> None:
    """Some particles end early: whole answers only, and their weights stay in the population's balance."""
    for seed in range(40):
        output = run(method="smc", num_particles=6, num_draft_tokens=2, max_tokens=8, seed=seed, resample_threshold=1.0)
        assert sum(p.weight for p in output.posterior.particles) == pytest.approx(1.0)
        for particle in output.posterior.particles:
            assert 0 not in particle.token_ids[:-1]


@pytest.mark.parametrize("method", ["speculative", "smc"])
def test_a_shorter_draft_context_bounds_drafting(method: str) -> None:
    """The draft sees 5 positions: drafting stops there and the target goes on alone."""
    short = TableModel(FAR.tables, max_positions=5)
    output = run(draft=short, method=method, num_particles=3, num_draft_tokens=4, max_tokens=8, ignore_eos=True, seed=4)
    assert len(output.token_ids) == 8
    assert output.metrics.num_drafted < 4 * output.metrics.cycles


def test_the_context_limits_the_answer() -> None:
    small = TableModel(TARGET.tables, max_positions=6)
    output = run(target=small, method="smc", num_particles=3, max_tokens=None, ignore_eos=True, seed=0)
    assert len(output.token_ids) == 5
    assert output.finish_reason == "length"


def test_padded_vocabularies_are_masked() -> None:
    """A draft with more rows than the target: ids above the smaller vocabulary are never drawn."""
    padding = 3
    wide = TableModel([torch.cat([t, torch.full((len(t), padding), 90.0)], 1) for t in FAR.tables[:1]])
    # Only the first table has the right index base, which is all a one-token draft needs.
    engine = Engine(loaded(TARGET), loaded(FAR), MethodParams(), 1 << 30)
    engine.draft = loaded(wide)
    engine.submit(engine.check([1], SamplingParams(method="smc", num_particles=8, max_tokens=1, seed=0)))
    tokens = set()
    while engine.has_work:
        for update in engine.step():
            if update.output:
                tokens |= {i for p in update.output.posterior.particles for i in p.token_ids}
    assert tokens <= set(range(VOCAB))


def test_impossible_potential_is_one_clear_error() -> None:
    with pytest.raises(ParspecError, match="every particle has potential 0"):
        run(method="smc", num_particles=3, max_tokens=5, seed=0, potentials=[lambda ps: [-math.inf] * len(ps)])


def test_a_hard_constraint_is_kept_by_every_weighted_particle() -> None:
    """Potential 0 on any answer with token 2: particles that have it weigh nothing."""

    def no_twos(prefixes):
        return [-math.inf if 2 in p.token_ids else 0.0 for p in prefixes]

    for seed in range(30):
        output = run(method="smc", num_particles=16, num_draft_tokens=3, max_tokens=6, seed=seed, potentials=[no_twos])
        assert all(2 not in p.token_ids for p in output.posterior.particles if p.weight > 0)
        assert 2 not in output.token_ids


@pytest.mark.parametrize("lag", [1, 2, 4, math.inf])
def test_final_tokens_are_a_prefix_of_the_answer(lag: float) -> None:
    for seed in range(30):
        engine = Engine(loaded(TARGET), loaded(FAR), MethodParams(), 1 << 30)
        sampling = SamplingParams(
            method="smc",
            num_particles=5,
            num_draft_tokens=3,
            max_tokens=8,
            seed=seed,
            commit_lag=lag,
            ignore_eos=True,
        )
        engine.submit(engine.check([1], sampling))
        final: list[int] = []
        lengths = [0]
        output = None
        while engine.has_work:
            for update in engine.step():
                final += update.token_ids
                lengths.append(len(final))
                output = update.output or output
        assert output is not None
        assert final == output.token_ids
        if lag == 1:
            # All but one token is final after every cycle, so no step can add more than a block and its bonus.
            assert max(b - a for a, b in pairwise(lengths)) <= 5


def test_best_takes_the_heaviest_particle() -> None:
    for seed in range(20):
        output = run(method="smc", num_particles=6, max_tokens=5, seed=seed, select="best", resample_threshold=0.0)
        heaviest = max(output.posterior.particles, key=lambda p: p.weight)
        assert output.token_ids == heaviest.token_ids
