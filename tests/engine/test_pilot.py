"""The cost model, and what method="auto" makes of it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from parspec import LLM, SamplingParams
from parspec.decoding.task import CycleReport
from parspec.engine.cost import CostModel, PassCost, measure_costs
from parspec.engine.pilot import Pilot, Tempo
from parspec.sampling.params import MethodParams
from tests.support.models import Pair

FLAT = PassCost((1, 32), (1.0, 1.0))
"""A matrix unit far ahead of the memory: any number of tokens costs the same."""
STEEP = PassCost((1, 32), (1.0, 32.0))
"""No such thing: every token costs the same."""
CHEAP = PassCost((1, 32), (0.02, 0.02))
AUTO = MethodParams(method="auto")


def pilot(target: PassCost, draft: PassCost = CHEAP, load: int = 0) -> Pilot:
    return Pilot(lambda: CostModel(target, draft), lambda: load)


def test_cost_is_linear_between_and_beyond_what_was_measured() -> None:
    cost = PassCost((1, 8, 32), (1.0, 2.0, 8.0))
    assert [cost(1), cost(8), cost(32)] == [1.0, 2.0, 8.0]
    assert cost(20) == pytest.approx(5.0)
    assert cost(56) == pytest.approx(14.0)


@given(st.floats(0, 1), st.integers(1, 64))
def test_no_draft_tokens_is_plain_decoding(acceptance: float, requests: int) -> None:
    costs = CostModel(STEEP, CHEAP)
    assert costs.speculative(requests, 0, acceptance) == pytest.approx(1 / STEEP(requests))


def test_expected_tokens_of_a_lossless_cycle() -> None:
    costs = CostModel(FLAT, PassCost((1, 32), (0.0, 0.0)))
    assert costs.speculative(1, 3, 0.5) == pytest.approx(1 + 0.5 + 0.25 + 0.125)
    assert costs.speculative(1, 3, 1.0) == pytest.approx(4)


def test_smc_where_scoring_is_nearly_free() -> None:
    chosen = pilot(FLAT).choose(AUTO, 1, needs_smc=False)
    assert (chosen.method, chosen.num_particles) == ("smc", 8)


def test_lossless_where_every_token_costs() -> None:
    assert pilot(STEEP).choose(AUTO, 1, needs_smc=False).method == "speculative"


def test_particles_never_exceed_the_limit() -> None:
    limited = MethodParams(method="auto", num_particles=5)
    assert pilot(FLAT).choose(limited, 1, needs_smc=False).num_particles == 4
    assert pilot(STEEP).choose(limited, 1, needs_smc=True).method == "smc"


def test_drafting_stops_as_load_grows() -> None:
    knee = PassCost((1, 8, 32), (1.0, 1.1, 4.4))
    lengths = []
    for load in (1, 4, 16, 64):
        method = pilot(knee, load=load).choose(AUTO, 0, needs_smc=False)
        draft_length, _ = pilot(knee, load=load).steer(MethodParams(method="speculative"))
        lengths.append(draft_length())
        assert method.method == "speculative" or load < 16
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > 0
    assert lengths[-1] == 0


def test_a_poor_draft_is_left_alone_and_tried_again() -> None:
    draft_length, observe = pilot(PassCost((1, 32), (1.0, 8.0)), PassCost((1, 32), (0.4, 0.4))).steer(
        MethodParams(method="speculative")
    )
    assert draft_length() > 0
    for _ in range(20):
        observe(CycleReport([1], 1, drafted=4, kept=0))
    assert draft_length() == 0
    for _ in range(200):
        observe(CycleReport([1], 1))
    assert draft_length() > 0


def test_smc_drafts_only_as_far_as_the_population_lasts() -> None:
    draft_length, observe = pilot(FLAT).steer(MethodParams(method="smc", num_particles=8))
    for _ in range(60):
        observe(CycleReport([], 9, drafted=8, kept=8, ess=8.0, num_particles=8))
    assert draft_length() == 8
    for _ in range(60):
        observe(CycleReport([], 9, drafted=8, kept=8, ess=1.0, num_particles=8))
    assert 1 <= draft_length() < 4


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=50))
def test_estimates_stay_probabilities(cycles: list[tuple[int, int]]) -> None:
    tempo = Tempo()
    for drafted, kept in cycles:
        tempo.observe(CycleReport([], 1, drafted=drafted, kept=min(drafted, kept)))
        assert 0 <= tempo.acceptance <= 1


def test_measured_on_real_models(tiny_pair: Pair) -> None:
    engine = LLM(str(tiny_pair.target), str(tiny_pair.draft)).engine
    assert engine.draft is not None
    costs = measure_costs(engine.target.model, engine.draft.model)
    for cost in (costs.target, costs.draft):
        assert 0 < cost(1) <= cost(8) <= cost(32)


def test_a_request_left_to_the_engine(tiny_pair: Pair) -> None:
    llm = LLM(str(tiny_pair.target), str(tiny_pair.draft), method="auto", cache_memory=0.05)
    outputs = llm.generate(["Hello"] * 5, SamplingParams(seed=1, max_tokens=20))
    assert {output.method for output in outputs} <= {"speculative", "smc"}
    assert llm.engine.scheduler.reserved == 0


def test_powers_are_left_to_smc(tiny_pair: Pair) -> None:
    llm = LLM(str(tiny_pair.target), str(tiny_pair.draft), method="auto")
    assert llm.generate("Hello", SamplingParams(seed=1, max_tokens=5, power=2.0))[0].method == "smc"


def test_presets_limit_the_choice() -> None:
    for preset, method in (("lossless", "speculative"), ("balanced", "speculative"), ("fast", "smc"), (None, "smc")):
        chosen = pilot(FLAT).choose(MethodParams(method="auto", preset=preset), 1, needs_smc=False)
        assert chosen.method == method
        assert chosen.preset is None
    assert pilot(FLAT).choose(MethodParams(method="auto", preset="balanced"), 1, needs_smc=True).method == "smc"


def test_a_seed_gives_the_same_tokens_whatever_the_machine_does(tiny_pair: Pair) -> None:
    llm = LLM(str(tiny_pair.target), str(tiny_pair.draft), dtype="float32")
    assert (llm.engine.defaults.method, llm.engine.defaults.preset) == ("auto", "balanced")
    params = [SamplingParams(seed=4, max_tokens=20), SamplingParams(seed=4, max_tokens=20, power=2.0)]
    first = llm.generate(["Hello"] * 2, params)
    assert [output.method for output in first] == ["speculative", "smc"]
    for costs in (CostModel(FLAT, CHEAP), CostModel(STEEP, CHEAP)):
        llm.engine.pilot = Pilot(lambda costs=costs: costs, lambda: len(llm.engine.scheduler.running))
        again = llm.generate(["Hello"] * 2 + ["other"] * 3, params + [SamplingParams(max_tokens=9)] * 3)[:2]
        assert [output.token_ids for output in again] == [output.token_ids for output in first]


def test_parameters_of_smc_ask_for_smc(tiny_pair: Pair) -> None:
    llm = LLM(str(tiny_pair.target), str(tiny_pair.draft), cut_threshold=0.5)
    assert llm.engine.defaults.method == "smc"
    llm = LLM(str(tiny_pair.target), str(tiny_pair.draft), preset="lossless")
    assert llm.generate("Hello", SamplingParams(num_particles=3, max_tokens=4))[0].method == "smc"
    assert llm.generate("Hello", SamplingParams(max_tokens=4))[0].method == "speculative"


def test_without_a_draft_it_is_plain_decoding(tiny_pair: Pair) -> None:
    llm = LLM(str(tiny_pair.target), method="auto")
    assert llm.generate("Hello", SamplingParams(seed=1, max_tokens=5))[0].method == "autoregressive"


def test_greedy_answers_do_not_depend_on_the_choice(tiny_pair: Pair) -> None:
    llm = LLM(str(tiny_pair.target), str(tiny_pair.draft), method="autoregressive")
    plain = llm.generate("Hello", SamplingParams(temperature=0, max_tokens=30))[0].token_ids
    for costs in (CostModel(FLAT, CHEAP), CostModel(STEEP, CHEAP)):
        llm.engine.pilot = Pilot(lambda costs=costs: costs, lambda: len(llm.engine.scheduler.running))
        torch.manual_seed(0)
        steered = llm.generate("Hello", SamplingParams(temperature=0, max_tokens=30, method="auto"))[0]
        assert steered.token_ids == plain
