"""Has everything answered that is not answered yet, and scores it."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from parspec.bench.quality.plan import DRAFT_ALONE, Work
from parspec.bench.quality.store import Record, Store
from parspec.decoding.task import CycleReport
from parspec.engine.engine import Engine
from parspec.engine.outputs import RequestOutput
from parspec.errors import InvalidRequestError
from parspec.llm import LLM
from parspec.sampling.params import MethodParams, SamplingParams


def about(llm: LLM, max_tokens: int) -> dict[str, Any]:
    """What answers depend on beside item, variant and seed."""
    engine = llm.engine
    return {
        "target": engine.target.name,
        "draft": None if engine.draft is None else engine.draft.name,
        "dtype": str(engine.target.model.cache_shape.dtype),
        "max_tokens": max_tokens,
    }


class _Running(NamedTuple):
    work: Work
    reports: list[CycleReport]


def run(
    llm: LLM, todo: Iterable[Work], store: Store, max_tokens: int, concurrent: int, done: Callable[[Record], None]
) -> None:
    """Answer what is not in the store.

    Args:
        llm: The pair.
        todo: What is to be answered; works that are to run alone first.
        store: Where the answers go.
        max_tokens: Most tokens of an answer.
        concurrent: Requests that run at once.
        done: Told of every new record.

    Raises:
        ParspecError: A request cannot be served; what has been answered is in the store.
    """
    missing = [work for work in todo if work.key not in store]
    by_draft = [work for work in missing if work.variant.setting.method == DRAFT_ALONE]
    by_pair = [work for work in missing if work.variant.setting.method != DRAFT_ALONE]
    if llm.engine.draft is None and any(work.variant.setting.method != "autoregressive" for work in missing):
        raise InvalidRequestError("these methods need a draft model: give --draft, or use autoregressive alone")
    for works, scorer in ((by_pair, None), (by_draft, llm)):
        engine = llm.engine
        if scorer is not None and works:
            draft = engine.draft
            assert draft is not None
            engine = Engine(draft, None, MethodParams(method="autoregressive"), engine.scheduler.budget)
        for alone, limit in ((True, 1), (False, concurrent)):
            chosen = [work for work in works if work.alone == alone]
            for record in _answers(LLM.of(engine), chosen, max_tokens, limit, scorer):
                store.add(record)
                done(record)


def _answers(llm: LLM, works: list[Work], max_tokens: int, concurrent: int, scorer: LLM | None) -> Iterator[Record]:
    """Records as they are complete."""
    engine, waiting = llm.engine, iter(works)
    running: dict[int, _Running] = {}
    try:
        while True:
            for work in islice(waiting, concurrent - len(running)):
                # What needs an extra pass over the logits has no place in what is timed.
                params = SamplingParams(
                    **work.variant.sampling(work.item),
                    logprobs=None if work.alone or scorer is not None else 0,
                    max_tokens=max_tokens if work.item.max_tokens is None else work.item.max_tokens,
                    seed=work.request_seed,
                )
                request = llm.check({"prompt_token_ids": _encoded(llm, work)}, params)
                running[engine.submit(request)] = _Running(work, [])
            if not running:
                return
            for update in engine.step():
                if update.error is not None:
                    raise update.error
                work, reports = running[update.request_id]
                reports += update.reports
                if update.output is not None:
                    del running[update.request_id]
                    yield _record(work, update.output, reports, scorer)
    finally:
        for request_id in running:
            engine.abort(request_id)


def _encoded(llm: LLM, work: Work) -> list[int]:
    """The prompt's tokens; its template has written the special ones."""
    return list(llm.tokenizer(work.item.prompt, add_special_tokens=False)["input_ids"])


def _record(work: Work, output: RequestOutput, reports: list[CycleReport], scorer: LLM | None) -> Record:
    task, item, variant, seed = work.key
    drafted = [report for report in reports if report.drafted]
    shares = [report.ess / report.num_particles for report in drafted if report.ess is not None]
    return {
        "task": task,
        "item": item,
        "variant": variant,
        "seed": seed,
        "score": float(work.item.score(output.text)),
        "num_tokens": output.metrics.num_tokens,
        "finish_reason": output.finish_reason,
        "log_prob": _log_prob(output, scorer),
        "seconds": output.metrics.seconds if work.alone else None,
        "advanced": sum(report.advanced for report in drafted),
        "cycles": len(drafted),
        "drafted": sum(report.drafted for report in drafted),
        "kept": dict(Counter(str(report.kept) for report in drafted)),
        "ess": sum(shares) / len(shares) if shares else None,
        "text": output.text,
        **({} if work.item.max_tokens is None else {"token_ids": output.token_ids}),
    }


def _log_prob(output: RequestOutput, scorer: LLM | None) -> float | None:
    """Of the answer under the target itself, all tokens together."""
    if scorer is not None:
        [entries] = scorer.score({"prompt_token_ids": output.prompt_token_ids + output.token_ids})
        return sum(entry.log_prob for entry in entries[-len(output.token_ids) :])
    return None if output.log_probs is None else sum(entry.log_prob for entry in output.log_probs)
