"""The process that measures parspec itself: ``python -m parspec.bench.own``, spec on stdin, records on stdout."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from parspec.bench.peers.measure import record_stream
from parspec.bench.prompts import STRUCTURED_PROMPT, STRUCTURED_SCHEMA
from parspec.bench.records import OwnSpec, Record, Setting
from parspec.bench.shapes import shaped_pair
from parspec.bench.timed import Clock, TimedModel
from parspec.engine.engine import Engine
from parspec.engine.outputs import RequestOutput
from parspec.engine.reservation import Reservation
from parspec.errors import InvalidRequestError
from parspec.llm import LLM
from parspec.models.cache import GroupCache
from parspec.models.interface import Forward
from parspec.models.loader import LoadedModel
from parspec.sampling.params import MethodParams, SamplingParams

_CONTEXT = 200
"""Tokens before a timed step."""
_SHORT, _LONG = 100, 2000
"""Prompts compared for the cost of a cycle."""
_STEP_REPEATS = 9
_STEP_SECONDS = 3.0
_WARM_UP_TOKENS = 12
_SHAPE_PROMPT = 16


class Bench:
    """A loaded pair with clocks, and the measurements on it.

    Args:
        engine: Both models; they are wrapped to be timed.
        prompts: Task and token ids.
        spec: What to measure.
        structured: Token ids of the prompt whose answer has a form, if that is to be measured.
    """

    def __init__(
        self,
        engine: Engine,
        prompts: Sequence[tuple[str, list[int]]],
        spec: OwnSpec,
        structured: list[int] | None = None,
    ) -> None:
        assert engine.draft is not None
        self.target, self.draft = TimedModel(engine.target.model), TimedModel(engine.draft.model)
        engine.target = replace(engine.target, model=self.target)
        engine.draft = replace(engine.draft, model=self.draft)
        self.engine, self.prompts, self.spec = engine, prompts, spec
        self.structured_prompt = structured

    def records(self) -> Iterator[Record]:
        """Everything asked for, in turn."""
        yield from self.cache()
        yield from self.steps()
        yield from self.generations()
        if self.spec.long_prompt:
            yield from self.cycles()
        if self.structured_prompt is not None:
            yield from self.structured(self.structured_prompt)
        for count in self.spec.requests:
            yield from self.throughput(count)

    def steps(self) -> Iterator[Record]:
        """Single passes of both models: one token for several rows, and whole blocks to score."""
        cases = [(self.draft, rows, 1) for rows in (1, 4, 8)]
        cases += [(self.target, rows, tokens) for rows, tokens in ((1, 1), (1, 5), (1, 9), (4, 5), (4, 9), (8, 9))]
        for timed, rows, tokens in cases:
            model = timed.model
            cache = GroupCache(model.cache_shape, rows, _CONTEXT, tokens)
            model.forward([Forward(model, cache, torch.ones(1, _CONTEXT, dtype=torch.int64), 0, into_trunk=True)])
            request = Forward(model, cache, torch.ones(rows, tokens, dtype=torch.int64), tokens)

            def step(model=model, request=request, cache=cache) -> None:  # type: ignore[no-untyped-def]
                model.forward([request])
                cache.truncate(_CONTEXT)

            yield {
                "kind": "step",
                "model": "draft" if timed is self.draft else "target",
                "rows": rows,
                "tokens": tokens,
                "seconds": _median_seconds(step),
                "weight_bytes": getattr(model, "weight_bytes", None),
                "num_weights": getattr(model, "num_weights", None),
            }

    def generations(self) -> Iterator[Record]:
        """Every prompt by every setting; what runs first takes turns, so that no setting has the cooler machine."""
        for setting in self.spec.settings:
            self._run([self.prompts[0][1]], setting, _WARM_UP_TOKENS, 0)
        for repeat in range(self.spec.repeats):
            for index, (task, prompt) in enumerate(self.prompts):
                for setting in self.spec.settings:
                    seconds, outputs, clocks = self._run([prompt], setting, self.spec.max_tokens, repeat)
                    yield {
                        "kind": "generation",
                        "label": setting.label,
                        **asdict(setting),
                        "task": task,
                        "prompt": index,
                        "repeat": repeat,
                        **_measured(seconds, outputs, *clocks),
                    }

    def throughput(self, count: int) -> Iterator[Record]:
        """So many requests at once, by the fastest setting of each method."""
        for setting in _one_a_method(self.spec.settings):
            prompts = [self.prompts[i % len(self.prompts)][1] for i in range(count)]
            seconds, outputs, clocks = self._run(prompts, setting, self.spec.max_tokens, 0)
            yield {
                "kind": "throughput",
                "label": setting.label,
                **asdict(setting),
                "requests": count,
                **_measured(seconds, outputs, *clocks),
            }

    def cycles(self) -> Iterator[Record]:
        """The cost of a cycle of 8 particles behind a short and behind a long prompt."""
        setting = Setting("smc", 8, 8)
        generator = torch.Generator().manual_seed(0)
        for length in (_SHORT, _LONG):
            prompt = torch.randint(min(1000, self.engine.vocab_size), (length,), generator=generator).tolist()
            seconds, outputs, clocks = self._run([prompt], setting, 9 * 4, 0)
            yield {"kind": "cycle", "prompt_tokens": length, **_measured(seconds, outputs, *clocks)}

    def structured(self, prompt: list[int]) -> Iterator[Record]:
        """One prompt that asks for JSON, with a schema and without; answers end where they end.

        Nothing, if the model cannot follow a schema.
        """
        try:
            self.engine.check(prompt, SamplingParams(json_schema=STRUCTURED_SCHEMA))
        except InvalidRequestError:
            return
        for repeat in range(self.spec.repeats):
            for setting in _one_a_method(self.spec.settings):
                for schema in (None, STRUCTURED_SCHEMA):
                    form = {"ignore_eos": False, "json_schema": schema}
                    seconds, outputs, clocks = self._run([prompt], setting, self.spec.max_tokens, repeat, **form)
                    yield {
                        "kind": "structured",
                        "label": setting.label,
                        **asdict(setting),
                        "constrained": schema is not None,
                        "repeat": repeat,
                        **_measured(seconds, outputs, *clocks),
                    }

    def cache(self) -> Iterator[Record]:
        """Bytes reserved for the caches of one request, by number of particles."""
        for particles in (1, 16):
            method = MethodParams(num_particles=particles, num_draft_tokens=8)
            sizes = Reservation.of(_LONG, 256, method, self.target, self.draft)
            yield {"kind": "cache", "num_particles": particles, "bytes": sizes.cache_bytes}

    def _run(
        self, prompts: Sequence[list[int]], setting: Setting, max_tokens: int, seed: int, **changes: Any
    ) -> tuple[float, list[RequestOutput], tuple[Clock, Clock]]:
        """Answer prompts at once; seconds in all, outputs, and the clocks of target and draft."""
        self.target.clock, self.draft.clock = Clock(), Clock()
        engine = self.engine
        sampling = SamplingParams(
            temperature=self.spec.temperature,
            max_tokens=max_tokens,
            seed=seed,
            **{"ignore_eos": True, **setting.sampling(), **changes},
        )
        start = time.perf_counter()
        for prompt in prompts:
            engine.submit(engine.check(prompt, sampling))
        outputs = []
        while engine.has_work:
            for update in engine.step():
                if update.error is not None:
                    raise update.error
                if update.output is not None:
                    outputs.append(update.output)
        return time.perf_counter() - start, outputs, (self.target.clock, self.draft.clock)


def _measured(seconds: float, outputs: Sequence[RequestOutput], target: Clock, draft: Clock) -> Record:
    metrics = [output.metrics for output in outputs]
    ess = [value / len(o.posterior.particles) for o in outputs for value in o.posterior.ess]
    return {
        "num_tokens": sum(m.num_tokens for m in metrics),
        "seconds": seconds,
        "cycles": sum(m.cycles for m in metrics),
        "advanced": sum(m.advanced for m in metrics),
        "prefill_seconds": target.prefill + draft.prefill,
        "draft_seconds": draft.seconds,
        "target_seconds": target.seconds,
        "target_passes": target.passes,
        "mean_ess_share": sum(ess) / len(ess) if ess else None,
    }


def _one_a_method(settings: Sequence[Setting]) -> list[Setting]:
    """For each method the setting with the fewest tokens to score: what pays longest as requests grow."""
    chosen: dict[str, Setting] = {}
    for setting in sorted(settings, key=lambda s: s.num_particles * (s.num_draft_tokens + 1)):
        chosen.setdefault(setting.method, setting)
    return list(chosen.values())


def _median_seconds(run: Callable[[], None]) -> float:
    """Median of several runs, of fewer where each takes long."""
    run()
    seconds: list[float] = []
    while len(seconds) < _STEP_REPEATS and (len(seconds) < 3 or sum(seconds) < _STEP_SECONDS):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return median(seconds)


def _load(spec: OwnSpec) -> tuple[Engine, list[tuple[str, list[int]]], list[int] | None]:
    if spec.shape:
        target, draft = shaped_pair(spec.target, spec.draft, spec.quantization, spec.draft_quantization)
        generator = torch.Generator().manual_seed(0)
        prompt = torch.randint(1000, (_SHAPE_PROMPT,), generator=generator).tolist()
        return Engine(target, draft, MethodParams(), 4 * 1024**3), [("shape only", prompt)], None
    llm = LLM(
        spec.target,
        spec.draft,
        quantization=spec.quantization,
        draft_quantization=spec.draft_quantization,
        cache_dir=None if spec.cache_dir is None else Path(spec.cache_dir),
    )
    structured = _prompt_ids(llm, STRUCTURED_PROMPT) if spec.structured else None
    return llm.engine, [(task, _prompt_ids(llm, text)) for task, text in spec.prompts], structured


def _prompt_ids(llm: LLM, text: str) -> list[int]:
    """A prompt's tokens, laid out by the chat template if there is one."""
    prompt = llm.chat_prompt([{"role": "user", "content": text}]) if llm.tokenizer.chat_template else text
    return list(prompt["prompt_token_ids"] if isinstance(prompt, Mapping) else llm.tokenizer(prompt)["input_ids"])


def _describe(engine: Engine) -> Record:
    def one(loaded: LoadedModel) -> Record:
        model = loaded.model
        return {
            "name": loaded.name,
            "dtype": str(model.cache_shape.dtype).removeprefix("torch."),
            "num_weights": getattr(model, "num_weights", None),
            "weight_bytes": getattr(model, "weight_bytes", None),
        }

    assert engine.draft is not None
    return {"target": one(engine.target), "draft": one(engine.draft)}


def main() -> None:
    """Measure what the spec asks for."""
    output = record_stream()
    spec = OwnSpec.from_json(sys.stdin.readline())
    start = time.perf_counter()
    engine, prompts, structured = _load(spec)
    loaded = {"kind": "load", "seconds": time.perf_counter() - start, **_describe(engine)}
    loaded["prompts"] = [{"task": task, "token_ids": ids} for task, ids in prompts]
    print(json.dumps(loaded), file=output, flush=True)
    for record in Bench(engine, prompts, spec, structured).records():
        print(json.dumps(record), file=output, flush=True)


if __name__ == "__main__":
    main()
