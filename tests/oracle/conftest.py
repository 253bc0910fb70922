"""Run many small requests through the real engine."""

from collections.abc import Callable

import pytest

from parspec.engine.cost import CostModel
from parspec.engine.engine import Engine
from parspec.engine.outputs import RequestOutput
from parspec.engine.pilot import Pilot
from parspec.models.loader import LoadedModel
from parspec.sampling.params import MethodParams, SamplingParams

GIB = 1024**3
Draw = Callable[..., list[RequestOutput]]


@pytest.fixture(scope="session")
def draw() -> Draw:
    """``draw(target, draft, count, first_seed=0, prompt=[1], **params)``: outputs of ``count`` seeded requests.

    ``costs`` is what ``method="auto"`` is to believe of the machine.
    """

    def run(
        target: LoadedModel,
        draft: LoadedModel | None,
        count: int,
        first_seed: int = 0,
        prompt: list[int] | None = None,
        costs: CostModel | None = None,
        **params: object,
    ) -> list[RequestOutput]:
        engine = Engine(target, draft, MethodParams(), GIB)
        if costs is not None:
            engine.pilot = Pilot(lambda: costs, lambda: len(engine.scheduler.running))
        outputs: dict[int, RequestOutput] = {}
        # In lots, so that the engine never holds more than a few hundred groups.
        for lot in range(0, count, 250):
            for seed in range(lot, min(lot + 250, count)):
                sampling = SamplingParams(seed=first_seed + seed, **params)  # type: ignore[arg-type]
                engine.submit(engine.check(prompt or [1], sampling))
            while engine.has_work:
                for update in engine.step():
                    assert update.error is None, update.error
                    if update.output is not None:
                        outputs[update.request_id] = update.output
        return [outputs[i] for i in range(count)]

    return run
