import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import BaseModel

from parspec.errors import InvalidRequestError, ParspecError
from parspec.sampling.params import MethodParams, SamplingParams

NAN, INF = math.nan, math.inf

NOT_NUMBERS = ["1", None, True, [1], 1j, np.array([1, 2]), torch.ones(2)]
SAMPLING_CASES: dict[str, list[Any]] = {
    "temperature": [*NOT_NUMBERS, -1, -1e-9, 100.5, NAN, INF, -INF],
    "top_p": [*NOT_NUMBERS, 0, 0.0, -0.1, 1.01, NAN, INF],
    "top_k": [*NOT_NUMBERS, -2, 1.5, 50.0, NAN, 10**9],
    "min_p": [*NOT_NUMBERS, -0.1, 1.01, NAN, INF],
    "power": [*NOT_NUMBERS, 0, -1, 101, NAN, INF],
    "max_tokens": ["1", True, [1], 0, -1, 1.0, NAN, INF, 10**9],
    "stop": ["", ["a", ""], [1], 1, True, b"a", {"a"}, ["a", None]],
    "stop_token_ids": [1, "1", b"1", [-1], [1.0], ["1"], [True], {1}, torch.tensor([1])],
    "ignore_eos": [None, 0, 1, "yes"],
    "seed": ["1", True, -1, 1.0, NAN, 2**63],
    "potentials": [None, 1, [1], len, ["len"]],
    "repetition_penalty": [*NOT_NUMBERS, 0, -1, 101, NAN, INF],
    "presence_penalty": [*NOT_NUMBERS, -2.1, 2.1, NAN, INF],
    "frequency_penalty": [*NOT_NUMBERS, -2.1, 2.1, NAN, INF],
    "logit_bias": [[1], 1, {-1: 1.0}, {"a": 1.0}, {1.0: 1.0}, {True: 1.0}, {1: "1"}, {1: True}, {1: 101}, {1: NAN}],
    "allowed_token_ids": [[], 1, "1", [-1], [1.0], [True], {1}],
    "bad_words": ["word", [1], [""], [" "], 1, {"a"}],
    "min_tokens": [None, "1", True, -1, 1.0, NAN, 10**9],
    "logits_processors": [None, 1, [1], len, ["len"]],
    "include_stop_str_in_output": [None, 0, 1, "yes"],
    "skip_special_tokens": [None, 0, 1, "yes"],
    "json_schema": [1, [1], "{", "[]", "nope", True, {"a": len}, {1}],
    "regex": ["", " ", 1, ["a"], b"a"],
    "choice": [[], "ab", [""], [1], 1, {"a"}],
    "grammar": ["", "\n", 1, ["start: /a/"]],
    "constraint_mode": ["both", 1, None, True],
    "n": ["1", None, True, 0, -1, 1.0, NAN, 10**9],
    "logprobs": ["1", True, -1, 1.0, NAN, 101],
    "logprobs_mode": ["raw", 1, None, True],
    "prompt_logprobs": ["1", True, -1, 1.0, NAN, 101],
    "vote": ["", " ", 1, ["a"], b"a", "(", True],
}
METHOD_CASES: dict[str, list[Any]] = {
    "method": ["SMC", "", 1, True, ["smc"], np.array(["smc", "smc"])],
    "preset": ["Lossless", "", 1, True, ["fast"]],
    "num_particles": ["1", True, 0, -1, 1025, 4.0, NAN, INF],
    "num_draft_tokens": ["1", True, -1, 257, 4.0, NAN],
    "cut_threshold": ["1", True, -0.1, 1.1, NAN, INF],
    "resample_threshold": ["1", True, -0.1, 1.1, NAN, INF],
    "resampling": ["sys", "", 1, ["systematic"]],
    "commit_lag": ["1", True, 0, -1, 1.5, NAN, -INF, torch.ones(2)],
    "select": ["worst", "", 1, True],
}


def _cases(table: dict[str, list[Any]]) -> list[Any]:
    return [
        pytest.param(name, value, id=f"{name}-{' '.join(repr(value).split())}")
        for name, values in table.items()
        for value in values
    ]


@pytest.mark.parametrize(("name", "value"), _cases(SAMPLING_CASES | METHOD_CASES))
def test_bad_request_parameter_is_named(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**{name: value})
    message = str(caught.value)
    assert message.startswith(f"{name} is ")
    assert ": use " in message
    assert "\n" not in message
    assert len(message) < 250


@pytest.mark.parametrize(("name", "value"), _cases(METHOD_CASES))
def test_bad_engine_parameter_is_named(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{name} is .*: use "):
        MethodParams(**{name: value})


NEEDED = [f.name for f in dataclasses.fields(MethodParams) if f.name not in ("preset", "num_particles")]


@pytest.mark.parametrize("name", NEEDED)
def test_what_is_needed_is_not_none(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{name} is None"):
        MethodParams(**{name: None})


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"regex": "a", "choice": ["a"]}, "regex and choice are both given"),
        ({"json_schema": {}, "grammar": "start: /a/"}, "json_schema and grammar are both given"),
        ({"regex": "a", "stop": "b"}, "stop contradicts regex"),
        ({"choice": ["a"], "stop_token_ids": [1]}, "stop_token_ids contradicts choice"),
        ({"regex": "a", "ignore_eos": True}, "ignore_eos contradicts regex"),
        ({"regex": "a", "min_tokens": 2}, "min_tokens contradicts regex"),
        ({"constraint_mode": "global"}, 'constraint_mode "global" needs a constraint'),
        ({"constraint_mode": "global", "regex": "a", "temperature": 0}, "needs a temperature above 0"),
    ],
)
def test_contradictions_are_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        SamplingParams(**params)


def test_a_schema_comes_in_several_forms() -> None:
    class Model(BaseModel):
        name: str

    assert SamplingParams(json_schema='{"type": "object"}').json_schema == {"type": "object"}
    assert SamplingParams(json_schema=Model).json_schema["required"] == ["name"]


def test_min_tokens_fit_into_max_tokens() -> None:
    with pytest.raises(InvalidRequestError, match=r"^min_tokens is 9, but max_tokens only 8"):
        SamplingParams(min_tokens=9, max_tokens=8)
    assert SamplingParams(min_tokens=9, max_tokens=None).min_tokens == 9


def test_logit_bias_takes_the_keys_of_json() -> None:
    assert SamplingParams(logit_bias={"7": 1, 8: -2.5}).logit_bias == {7: 1.0, 8: -2.5}
    assert SamplingParams(logit_bias=None).logit_bias == {}


def test_message_shows_value_and_range() -> None:
    with pytest.raises(InvalidRequestError, match=r"^temperature is -1: use a number from 0 to 100$"):
        SamplingParams(temperature=-1)
    with pytest.raises(InvalidRequestError, match=r"^top_p is 0: use a number above 0 and at most 1$"):
        SamplingParams(top_p=0)
    with pytest.raises(InvalidRequestError, match=r"^num_particles is 0: use a whole number from 1 to 1024$"):
        SamplingParams(num_particles=0)
    with pytest.raises(InvalidRequestError, match=r"^select is 'worst': use sample, best or vote$"):
        SamplingParams(select="worst")


def test_message_stays_short_for_a_long_value() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(stop=["a\nb" * 1000, ""])
    assert len(str(caught.value)) < 250
    assert "\n" not in str(caught.value)


def test_every_parameter_has_bad_values_above() -> None:
    assert {f.name for f in dataclasses.fields(SamplingParams)} == set(SAMPLING_CASES | METHOD_CASES)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"temperature": 0}, {"temperature": 0.0}),
        ({"temperature": 100}, {"temperature": 100.0}),
        ({"top_p": 1}, {"top_p": 1.0}),
        ({"top_k": -1}, {"top_k": 0}),
        ({"top_k": 0}, {"top_k": 0}),
        ({"min_p": 1}, {"min_p": 1.0}),
        ({"power": 100}, {"power": 100.0}),
        ({"max_tokens": None}, {"max_tokens": None}),
        ({"max_tokens": 1}, {"max_tokens": 1}),
        ({"stop": None}, {"stop": ()}),
        ({"stop": "END"}, {"stop": ("END",)}),
        ({"stop": ["a", "b"]}, {"stop": ("a", "b")}),
        ({"stop": []}, {"stop": ()}),
        ({"stop_token_ids": None}, {"stop_token_ids": ()}),
        ({"stop_token_ids": [0, 2]}, {"stop_token_ids": (0, 2)}),
        ({"seed": 2**63 - 1}, {"seed": 2**63 - 1}),
        ({"potentials": [len]}, {"potentials": (len,)}),
        ({"num_particles": 1024}, {"num_particles": 1024}),
        ({"num_draft_tokens": 0}, {"num_draft_tokens": 0}),
        ({"cut_threshold": 1}, {"cut_threshold": 1.0}),
        ({"commit_lag": INF}, {"commit_lag": INF}),
    ],
)
def test_accepted_and_normalised(given: dict[str, Any], kept: dict[str, Any]) -> None:
    params = SamplingParams(**given)
    for name, value in kept.items():
        assert getattr(params, name) == value
        assert type(getattr(params, name)) is type(value)


def test_parameters_are_frozen() -> None:
    for params in (SamplingParams(), MethodParams()):
        with pytest.raises(dataclasses.FrozenInstanceError):
            params.select = "best"  # type: ignore[misc,union-attr]


def test_override_replaces_only_what_the_request_gives() -> None:
    engine = MethodParams(num_particles=16, cut_threshold=0.25, commit_lag=10)
    assert engine.override(SamplingParams(temperature=0.5)) == engine
    merged = engine.override(SamplingParams(num_draft_tokens=0, cut_threshold=0.0, commit_lag=INF, select="best"))
    assert merged == MethodParams(
        num_particles=16, num_draft_tokens=0, cut_threshold=0.0, commit_lag=INF, select="best"
    )


@pytest.mark.parametrize("method", ["autoregressive", "speculative"])
@pytest.mark.parametrize("given", [{"power": 2.0}, {"potentials": [lambda prefixes: [0.0] * len(prefixes)]}])
def test_what_only_smc_can_do_is_refused_elsewhere(method: str, given: dict[str, Any]) -> None:
    name = next(iter(given))
    assert MethodParams().override(SamplingParams(**given)).method == "smc"
    assert MethodParams(method=method).override(SamplingParams(method="smc", **given)).method == "smc"
    for engine, request in ((method, None), ("smc", method)):
        with pytest.raises(InvalidRequestError, match=f"^{name} needs method"):
            MethodParams(method=engine).override(SamplingParams(method=request, **given))


def test_rows_and_open_tokens() -> None:
    assert [MethodParams(method=m).rows for m in ("autoregressive", "speculative", "smc")] == [1, 1, 8]
    assert [MethodParams(method=m, num_particles=4).rows for m in ("autoregressive", "speculative", "smc")] == [1, 4, 4]
    assert MethodParams().max_open_tokens == 48
    assert MethodParams(commit_lag=INF).max_open_tokens is None


def test_errors_are_both_parspec_and_value_errors() -> None:
    for kind in (ParspecError, ValueError):
        with pytest.raises(kind):
            SamplingParams(max_tokens=0)


def test_a_preset_chooses_the_method_itself() -> None:
    for make in (SamplingParams, MethodParams):
        with pytest.raises(
            InvalidRequestError, match='preset "fast" chooses the method itself: leave out method "smc"'
        ):
            make(preset="fast", method="smc")
    balanced = MethodParams(method="auto", preset="balanced")
    for asked, method, preset in (
        ({}, "auto", "balanced"),
        ({"preset": "fast"}, "auto", "fast"),
        ({"method": "auto"}, "auto", None),
        ({"method": "speculative"}, "speculative", None),
        ({"num_draft_tokens": 3}, "auto", "balanced"),
        ({"num_particles": 4}, "smc", None),
        ({"select": "best"}, "smc", None),
        ({"num_particles": 4, "preset": "fast"}, "auto", "fast"),
    ):
        merged = balanced.override(SamplingParams(**asked))
        assert (merged.method, merged.preset) == (method, preset)
    assert MethodParams(method="smc").override(SamplingParams(preset="lossless")).method == "auto"


def test_lossless_excludes_what_needs_smc() -> None:
    for default in (MethodParams(), MethodParams(method="auto", preset="fast")):
        with pytest.raises(InvalidRequestError, match='power needs method "smc", which preset "lossless" excludes'):
            default.override(SamplingParams(power=2.0, preset="lossless"))
    assert MethodParams(method="auto", preset="balanced").override(SamplingParams(power=2.0)).method == "auto"
