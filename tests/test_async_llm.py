"""The asyncio interface: many requests, leaving early, limits, and an engine that fails."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import NoReturn

import pytest

from parspec import (
    LLM,
    AsyncLLM,
    EngineStoppedError,
    InvalidRequestError,
    OutOfMemoryError,
    ParspecError,
    QueueFullError,
    RequestOutput,
    SamplingParams,
)
from parspec.engine.engine import Engine
from parspec.sampling.params import MethodParams
from tests.support.table_model import TableModel, TightModel, loaded

TARGET = TableModel.random(5, 9, seed=0)
DRAFT = TARGET.perturbed(1, 0.5)
PROMPT = {"prompt_token_ids": [1]}


def table_llm(target: TableModel = TARGET, budget: int = 1 << 30, **defaults: object) -> LLM:
    return LLM.of(Engine(loaded(target), loaded(DRAFT), MethodParams(**defaults), budget))  # type: ignore[arg-type]


def run(body: Callable[[AsyncLLM], Awaitable[None]], llm: LLM, **limits: int) -> None:
    async def main() -> None:
        async with AsyncLLM.of(llm, **limits) as served:  # type: ignore[arg-type]
            await body(served)

    asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.002)


class Gate(TableModel):
    """A model whose passes wait until they are let through."""

    def __init__(self) -> None:
        super().__init__(TARGET.tables)
        self.open = False

    def forward(self, requests):
        while not self.open:
            pass
        return super().forward(requests)


def test_answers_equal_those_of_the_plain_interface() -> None:
    params = [SamplingParams(seed=seed, max_tokens=1 + seed % 8) for seed in range(24)]
    alone = [table_llm().generate(PROMPT, one)[0].token_ids for one in params]

    async def body(llm: AsyncLLM) -> None:
        outputs = await asyncio.gather(*(llm.generate(PROMPT, one) for one in params))
        assert [output.token_ids for output in outputs] == alone
        assert llm.num_open == 0

    run(body, table_llm(), max_concurrent=5)


def test_pieces_join_to_the_answer_and_report_every_cycle() -> None:
    async def body(llm: AsyncLLM) -> None:
        for seed in range(20):
            sampling = SamplingParams(seed=seed, max_tokens=8, ignore_eos=True, commit_lag=2, num_draft_tokens=2)
            chunks = [chunk async for chunk in llm.stream(PROMPT, sampling)]
            output = chunks[-1].output
            assert output is not None
            assert [token for chunk in chunks for token in chunk.token_ids] == output.token_ids
            assert sum(len(chunk.cycles) for chunk in chunks) == output.metrics.cycles

    run(body, table_llm())


@pytest.mark.parametrize("method", ["smc", "speculative", "autoregressive"])
def test_traces_tell_the_whole_run(method: str) -> None:
    """Followed from ancestor to copy, the tokens a watched request reports are its final population."""

    async def body(llm: AsyncLLM) -> None:
        for seed in range(30):
            sampling = SamplingParams(
                seed=seed, max_tokens=8, method=method, num_particles=4, num_draft_tokens=3, commit_lag=3
            )
            request = replace(await llm.check(PROMPT, sampling), watched=True)
            rows: list[list[int]] = []
            final: list[int] = []
            async for chunk in llm.open(request):
                for cycle in chunk.cycles:
                    trace = cycle.trace
                    assert trace is not None
                    before = rows or [[]] * len(trace.drafted)
                    # Draft chains all continue the one sequence there is.
                    before = before * len(trace.drafted) if len(before) == 1 else before
                    rows = [before[a] + new for a, new in zip(trace.ancestors, trace.appended, strict=True)]
                    final += cycle.final
                    assert all(row[: len(final)] == final for row in rows)
                    assert sum(trace.weights) == pytest.approx(1)
                    assert sum(trace.cut_weights) == pytest.approx(1)
                    for ancestor, new in zip(trace.ancestors, trace.appended, strict=True):
                        kept = trace.drafted[ancestor][: cycle.kept]
                        assert new[: len(kept)] == kept
                output = chunk.output
            assert output is not None
            assert rows == [particle.token_ids for particle in output.posterior.particles]
            assert trace.weights == pytest.approx([p.weight for p in output.posterior.particles])
            assert all(trace.finished)

    run(body, table_llm())


def test_leaving_early_frees_the_memory() -> None:
    llm = table_llm()

    async def body(served: AsyncLLM) -> None:
        stream = served.stream(PROMPT, SamplingParams(max_tokens=8, ignore_eos=True, method="autoregressive"))
        await anext(stream)
        await stream.aclose()
        assert served.num_open == 0
        await until(lambda: not llm.engine.has_work)
        assert llm.engine.scheduler.reserved == 0

    run(body, llm)


def test_cancelling_ends_waiting_and_running_requests() -> None:
    gate = Gate()
    llm = table_llm(gate)

    async def body(served: AsyncLLM) -> None:
        tasks = [asyncio.create_task(served.generate(PROMPT, SamplingParams(max_tokens=8))) for _ in range(3)]
        await until(lambda: served.num_open == 3)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        gate.open = True
        assert served.num_open == 0
        await until(lambda: not llm.engine.has_work)
        assert (await served.generate(PROMPT, SamplingParams(seed=0, max_tokens=4))).token_ids

    run(body, llm, max_concurrent=1)


def test_a_full_queue_refuses() -> None:
    gate = Gate()

    async def body(served: AsyncLLM) -> None:
        request = await served.check(PROMPT, SamplingParams(max_tokens=4))
        streams = [served.open(request) for _ in range(2 + 3)]
        with pytest.raises(QueueFullError, match="try again later"):
            served.open(request)
        gate.open = True
        for stream in streams:
            assert [chunk async for chunk in stream][-1].output is not None
        assert (await served.generate(PROMPT, SamplingParams(max_tokens=4))).token_ids
        with pytest.raises(InvalidRequestError, match="at most 5"):
            served.check_room(6)

    run(body, table_llm(gate), max_concurrent=2, max_queue=3)


def test_memory_limits_the_queue_too() -> None:
    """Fewer may run than max_concurrent: once memory has held a request back, only max_queue may wait."""
    gate = Gate()
    probe = table_llm().check(PROMPT, SamplingParams(max_tokens=4)).reservation.num_bytes
    llm = table_llm(gate, budget=probe)

    async def body(served: AsyncLLM) -> None:
        request = await served.check(PROMPT, SamplingParams(max_tokens=4))
        streams = [served.open(request), served.open(request)]
        await until(lambda: served.num_running == 1)
        llm.engine.scheduler.next_admissible()  # what the next step will find
        assert llm.engine.scheduler.blocked == bool(llm.engine.scheduler.waiting)
        llm.engine.scheduler.blocked = True
        with pytest.raises(QueueFullError):
            served.open(request)
        gate.open = True
        for stream in streams:
            assert [chunk async for chunk in stream][-1].output is not None
        assert (await served.generate(PROMPT, SamplingParams(max_tokens=4))).token_ids
        assert not llm.engine.scheduler.blocked

    run(body, llm, max_concurrent=8, max_queue=1)


def test_an_engine_that_fails_tells_everybody() -> None:
    class Broken(TableModel):
        broken = False

        def forward(self, requests):
            if self.broken:
                raise AssertionError("an impossible thing")
            return super().forward(requests)

    model = Broken(TARGET.tables)
    llm = table_llm(model)

    async def body(served: AsyncLLM) -> None:
        assert (await served.generate(PROMPT, SamplingParams(max_tokens=4))).token_ids
        model.broken = True
        results = await asyncio.gather(
            *(served.generate(PROMPT, SamplingParams(max_tokens=4)) for _ in range(5)), return_exceptions=True
        )
        assert all(isinstance(result, EngineStoppedError) for result in results)
        assert isinstance(served.failure, AssertionError)
        with pytest.raises(EngineStoppedError, match="an impossible thing"):
            await served.generate(PROMPT)
        assert llm.engine.scheduler.reserved == 0

    run(body, llm, max_concurrent=2)


@pytest.mark.parametrize("kind", [SystemExit, GeneratorExit, StopIteration, asyncio.CancelledError])
def test_a_function_that_raises_ends_its_own_request_only(kind: type[BaseException]) -> None:
    def leave(*arguments: object) -> NoReturn:
        raise kind

    async def body(served: AsyncLLM) -> None:
        own = [
            SamplingParams(max_tokens=4, potentials=[leave]),
            SamplingParams(max_tokens=4, logits_processors=[leave]),
            SamplingParams(max_tokens=4, select="vote", vote=leave),
        ]
        others = [SamplingParams(max_tokens=4)] * 3
        results = await asyncio.gather(
            *(served.generate(PROMPT, params) for params in own + others), return_exceptions=True
        )
        for result, name in zip(results, ["potential leave", "logits processor leave", "vote"], strict=False):
            assert type(result) is ParspecError
            assert f"{name} raised {kind.__name__}" in str(result)
        assert all(isinstance(result, RequestOutput) for result in results[3:])

    run(body, table_llm())


def test_memory_that_runs_out_ends_one_request_only() -> None:
    async def body(served: AsyncLLM) -> None:
        sizes = [4, 8, 4, 4]
        results = await asyncio.gather(
            *(served.generate(PROMPT, SamplingParams(max_tokens=size, seed=size)) for size in sizes),
            return_exceptions=True,
        )
        assert [isinstance(result, OutOfMemoryError) for result in results] == [False, True, False, False]
        assert served.failure is None

    run(body, table_llm(TightModel(TARGET.tables)))


def test_closing_ends_open_requests() -> None:
    gate = Gate()

    async def main() -> None:
        served = AsyncLLM.of(table_llm(gate))
        task = asyncio.create_task(served.generate(PROMPT))
        await until(lambda: served.num_running == 1)
        gate.open = True
        await asyncio.to_thread(served.close)
        results = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(results[0], EngineStoppedError) or results[0].token_ids
        with pytest.raises(EngineStoppedError, match="closed"):
            await served.generate(PROMPT)

    asyncio.run(main())


def test_bad_requests_and_limits_are_refused() -> None:
    async def body(served: AsyncLLM) -> None:
        with pytest.raises(InvalidRequestError, match="outside the vocabulary"):
            await served.generate({"prompt_token_ids": [99]})
        assert served.num_open == 0

    run(body, table_llm())
    for limits in ({"max_concurrent": 0}, {"max_queue": -1}):
        with pytest.raises(InvalidRequestError, match=next(iter(limits))):
            AsyncLLM("never-loaded", **limits)  # type: ignore[arg-type]
