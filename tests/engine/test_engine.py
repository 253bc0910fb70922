"""Many requests on one engine: order, isolation, memory, seeds, and leaving early."""

import pytest
import torch

from parspec.engine.engine import Engine
from parspec.errors import InvalidRequestError, OutOfMemoryError
from parspec.sampling.params import MethodParams, SamplingParams
from tests.support.table_model import TableModel, loaded

TARGET = TableModel.random(5, 9, seed=0)
DRAFT = TARGET.perturbed(1, 0.5)
GIB = 1 << 30


def engine_of(budget: int = GIB, **defaults: object) -> Engine:
    return Engine(loaded(TARGET), loaded(DRAFT), MethodParams(**defaults), budget)  # type: ignore[arg-type]


def finish(engine: Engine) -> dict[int, list[int]]:
    answers = {}
    while engine.has_work:
        for update in engine.step():
            assert update.error is None
            if update.output is not None:
                answers[update.request_id] = update.output.token_ids
    return answers


def mixed_requests() -> list[tuple[list[int], SamplingParams]]:
    methods = ["smc", "autoregressive", "speculative"]
    return [
        (
            [1 + i % 4] * (1 + i % 3),
            SamplingParams(
                method=methods[i % 3],
                num_particles=1 + i % 5 if methods[i % 3] == "speculative" else 2 + i % 5,
                num_draft_tokens=i % 4,
                temperature=0.5 + 0.1 * (i % 6),
                max_tokens=1 + i % 5,
                seed=i,
            ),
        )
        for i in range(30)
    ]


def test_a_request_gets_the_same_tokens_alone_and_in_company() -> None:
    """Different prompts, methods, sizes and temperatures together: no randomness or text crosses over."""
    together = engine_of()
    for prompt, sampling in mixed_requests():
        together.submit(together.check(prompt, sampling))
    answers = finish(together)
    for i, (prompt, sampling) in enumerate(mixed_requests()):
        alone = engine_of()
        alone.submit(alone.check(prompt, sampling))
        assert finish(alone)[0] == answers[i]


def test_passes_are_shared() -> None:
    """Eight equal requests cost as many target passes as one."""
    model = TableModel(TARGET.tables)
    passes = []
    for count in (1, 8):
        engine = Engine(loaded(model), loaded(DRAFT), MethodParams(num_particles=3, num_draft_tokens=2), GIB)
        for seed in range(count):
            engine.submit(engine.check([1], SamplingParams(max_tokens=6, ignore_eos=True, seed=seed)))
        model.num_passes = 0
        finish(engine)
        passes.append(model.num_passes)
    assert passes[0] == passes[1]


def test_memory_decides_how_many_run() -> None:
    probe = engine_of()
    needed = probe.check([1], SamplingParams(max_tokens=6)).reservation.num_bytes
    engine = engine_of(budget=2 * needed + needed // 2)
    for seed in range(5):
        engine.submit(engine.check([1], SamplingParams(max_tokens=6, seed=seed, ignore_eos=True)))
    most = 0
    while engine.has_work:
        engine.step()
        most = max(most, len(engine.scheduler.running))
        assert engine.scheduler.reserved <= engine.scheduler.budget
    assert most == 2


def test_a_waiting_request_enters_when_another_leaves() -> None:
    needed = engine_of().check([1], SamplingParams(max_tokens=8)).reservation.num_bytes
    engine = engine_of(budget=2 * needed)
    for i, length in enumerate((8, 2, 8)):
        engine.submit(engine.check([1], SamplingParams(max_tokens=length, seed=i, ignore_eos=True, num_draft_tokens=1)))
    seen_together = set()
    while engine.has_work:
        engine.step()
        seen_together.add(tuple(sorted(engine.scheduler.running)))
    assert (0, 2) in seen_together, "the third request must run beside the first once the second has left"


def test_a_request_too_large_for_the_budget_is_refused_with_advice() -> None:
    with pytest.raises(OutOfMemoryError, match=r"needs .* GiB.*lower max_tokens"):
        engine_of(budget=1000).check([1], SamplingParams(max_tokens=60))


def test_abort_frees_memory_at_once() -> None:
    engine = engine_of()
    ids = [engine.submit(engine.check([1], SamplingParams(max_tokens=50, seed=i))) for i in range(3)]
    engine.step()
    for request_id in ids:
        engine.abort(request_id)
    assert not engine.has_work
    assert engine.scheduler.reserved == 0


def test_a_failing_request_leaves_the_others_alone() -> None:
    def breaks(prefixes):
        raise RuntimeError("no")

    engine = engine_of()
    good = engine.submit(engine.check([1], SamplingParams(max_tokens=6, seed=0)))
    bad = engine.submit(engine.check([1], SamplingParams(max_tokens=6, seed=1, potentials=[breaks], ignore_eos=True)))
    results = {}
    while engine.has_work:
        for update in engine.step():
            if update.output or update.error:
                results[update.request_id] = update
    assert results[good].output is not None
    assert isinstance(results[bad].error, RuntimeError)


@pytest.mark.parametrize("method", ["autoregressive", "speculative", "smc"])
def test_seeds_fix_the_answer_and_nothing_else_does(method: str) -> None:
    def answers(seed: int | None) -> list[tuple[int, ...]]:
        engine = engine_of()
        for _ in range(12):
            sampling = SamplingParams(method=method, max_tokens=6, ignore_eos=True, seed=seed)
            engine.submit(engine.check([1], sampling))
        return [tuple(tokens) for tokens in finish(engine).values()]

    assert len(set(answers(7))) == 1
    assert answers(7) == answers(7)
    torch.manual_seed(0)
    assert len(set(answers(None))) > 1


def test_an_unseeded_answer_can_be_had_again_by_its_reported_seed() -> None:
    def answer(seed: int | None) -> tuple[list[int], int]:
        engine = engine_of()
        engine.submit(engine.check([1], SamplingParams(max_tokens=6, seed=seed)))
        while True:
            for update in engine.step():
                if update.output:
                    return update.output.token_ids, update.output.seed

    tokens, seed = answer(None)
    assert answer(seed)[0] == tokens


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([], {}, "prompt is empty"),
        ([5], {}, "outside the vocabulary"),
        ([-1], {}, "outside the vocabulary"),
        ([1] * 64, {}, "takes at most 63"),
        ([1], {"stop": "x"}, "stop strings need a tokenizer"),
        ([1], {"stop_token_ids": [99]}, "outside the vocabulary"),
        ([1], {"method": "speculative", "power": 2.0}, 'power needs method "smc"'),
        ([1], {"method": "autoregressive", "potentials": [len]}, 'potentials needs method "smc"'),
    ],
)
def test_bad_requests_are_refused_before_anything_runs(prompt, params, message: str) -> None:
    engine = engine_of()
    with pytest.raises(InvalidRequestError, match=message):
        engine.check(prompt, SamplingParams(**params))
    assert not engine.has_work


def test_drafting_methods_need_a_draft() -> None:
    engine = Engine(loaded(TARGET), None, MethodParams(method="autoregressive"), GIB)
    with pytest.raises(InvalidRequestError, match="needs a draft model"):
        engine.check([1], SamplingParams(method="smc"))


def test_prompt_longer_than_the_drafts_context_is_refused() -> None:
    short = TableModel(DRAFT.tables, max_positions=4)
    engine = Engine(loaded(TARGET), loaded(short), MethodParams(), GIB)
    with pytest.raises(InvalidRequestError, match="takes at most 4"):
        engine.check([1] * 5, SamplingParams())
    engine.check([1] * 5, SamplingParams(method="autoregressive"))
