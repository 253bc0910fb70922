"""What one request asks for, and how the engine is to run it. Frozen, and checked when made."""

import json
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import regex
from torch import Tensor

from parspec.errors import InvalidRequestError
from parspec.sampling.potentials import Potential
from parspec.smc.resampling import SCHEMES

METHOD_NAMES = ("autoregressive", "speculative", "smc", "auto")
PRESETS = ("lossless", "balanced", "fast")
"""What method "auto" may choose from, by what may be lost for speed; docs/quality.md has the measurements behind it."""
OF_SMC = ("num_particles", "cut_threshold", "resample_threshold", "resampling", "commit_lag", "select")
"""Parameters that mean SMC where no method is named: under a preset they would have no effect."""
SELECTIONS = ("sample", "best", "vote")
LOGPROBS_MODES = ("raw_logprobs", "processed_logprobs")
MOST_TOP = 100
"""How many alternatives a request may want to see for each token."""
CONSTRAINTS = ("json_schema", "regex", "choice", "grammar")
"""Parameters that say what an answer's text must look like; a request has one of them at most."""
CONSTRAINT_MODES = ("local", "global")
SEEDED_DRAFT_TOKENS = 5
"""K of a request with a seed under method "auto": near the best lossless one for most pairs, whatever the load."""
_LONGEST_SHOWN = 80

LogitsProcessor = Callable[[list[int], Tensor], Tensor]
"""The answer's tokens so far and the logits ``[V]`` after them, to the logits to be used instead."""

Extractor = str | Callable[[str], Hashable]
"""A pattern, or a function of an answer's text: what of it is counted in a vote."""


def _refusal(name: str, value: Any, advice: str) -> InvalidRequestError:
    """The error for a bad value; one line even where the value's own text is long or has several."""
    try:
        shown = " ".join(repr(value).split())
    except RecursionError:
        shown = f"a {type(value).__name__} nested too deeply"
    if len(shown) > _LONGEST_SHOWN:
        shown = f"{shown[:_LONGEST_SHOWN]}..."
    return InvalidRequestError(f"{name} is {shown}: use {advice}", name)


def _real(low: float, high: float, *, above: bool = False) -> Callable[[str, Any], float]:
    """A finite number from low (or above it) to high."""

    def check(name: str, value: Any) -> float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not low <= value <= high or (above and value == low):
            limit = f"above {low:g} and at most {high:g}" if above else f"from {low:g} to {high:g}"
            raise _refusal(name, value, f"a number {limit}")
        return float(value)

    return check


def _whole(low: int, high: int) -> Callable[[str, Any], int]:
    """An integer from low to high."""

    def check(name: str, value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise _refusal(name, value, f"a whole number from {low} to {high}")
        return value

    return check


def _one_of(*names: str) -> Callable[[str, Any], str]:
    def check(name: str, value: Any) -> str:
        if not isinstance(value, str) or value not in names:
            raise _refusal(name, value, f"{', '.join(names[:-1])} or {names[-1]}")
        return value

    return check


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _refusal(name, value, "True or False")
    return value


def _stop_strings(name: str, value: Any) -> tuple[str, ...]:
    strings = (value,) if isinstance(value, str) else value
    if strings is None:
        return ()
    if not isinstance(strings, Sequence) or not all(isinstance(s, str) and s for s in strings):
        raise _refusal(name, value, "a string or a list of strings, none of them empty")
    return tuple(strings)


def _token_ids(name: str, value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    valid = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    if not valid or not all(type(i) is int and i >= 0 for i in value):
        raise _refusal(name, value, "a list of token ids, whole numbers from 0")
    return tuple(value)


def _some_token_ids(name: str, value: Any) -> tuple[int, ...]:
    ids = _token_ids(name, value)
    if not ids:
        raise _refusal(name, value, "at least one token id, or None for all")
    return ids


def _bad_words(name: str, value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    valid = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    if not valid or not all(isinstance(word, str) and word.strip() for word in value):
        raise _refusal(name, value, "a list of strings, none of them blank")
    return tuple(value)


def _logit_bias(name: str, value: Any) -> Mapping[int, float]:
    """Keys may be strings, as JSON has them."""
    advice = "a mapping from token ids to numbers from -100 to 100"
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _refusal(name, value, advice)
    biases: dict[int, float] = {}
    for key, bias in value.items():
        number = isinstance(bias, int | float) and not isinstance(bias, bool) and -100 <= bias <= 100
        named = type(key) is int or (isinstance(key, str) and key.isascii() and key.isdigit())
        if not number or not named or int(key) < 0:
            raise _refusal(name, {key: bias}, advice)
        biases[int(key)] = float(bias)
    return biases


def _json_schema(name: str, value: Any) -> Mapping[str, Any]:
    """A mapping, JSON text, or a pydantic model."""
    if hasattr(value, "model_json_schema"):
        value = value.model_json_schema()
    try:
        schema = json.loads(value) if isinstance(value, str) else json.loads(json.dumps(value))
    except (TypeError, ValueError, RecursionError):
        schema = None
    if not isinstance(schema, dict):
        raise _refusal(name, value, "a JSON schema: a mapping, its JSON text, or a pydantic model")
    return schema


def _pattern(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _refusal(name, value, "text that is not blank")
    return value


def _choice(name: str, value: Any) -> tuple[str, ...]:
    valid = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    if not valid or not value or not all(isinstance(text, str) and text for text in value):
        raise _refusal(name, value, "a list of texts, none of them empty")
    return tuple(value)


def _vote(name: str, value: Any) -> Extractor:
    if isinstance(value, str):
        try:
            regex.compile(_pattern(name, value))
        except regex.error as error:
            raise _refusal(name, value, f"a valid pattern ({error})") from error
    elif not callable(value):
        raise _refusal(name, value, "a pattern, or a function from a text to what is counted")
    return cast(Extractor, value)


def _callables(name: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, Sequence) or not all(callable(f) for f in value):
        raise _refusal(name, value, "a list of callables")
    return tuple(value)


def _top_k(name: str, value: Any) -> int:
    """VLLM spells "off" as -1 and transformers as 0; both are taken."""
    return 0 if type(value) is int and value == -1 else _whole(0, 10**7)(name, value)


def _commit_lag(name: str, value: Any) -> float | int:
    """Infinity is how no limit is asked for: None means the engine's default."""
    return math.inf if isinstance(value, float) and value == math.inf else _whole(1, 10**7)(name, value)


_METHOD_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "method": _one_of(*METHOD_NAMES),
    "preset": _one_of(*PRESETS),
    "num_particles": _whole(1, 1024),
    "num_draft_tokens": _whole(0, 256),
    "cut_threshold": _real(0, 1),
    "resample_threshold": _real(0, 1),
    "resampling": _one_of(*SCHEMES),
    "commit_lag": _commit_lag,
    "select": _one_of(*SELECTIONS),
}

_SAMPLING_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "temperature": _real(0, 100),
    "top_p": _real(0, 1, above=True),
    "top_k": _top_k,
    "min_p": _real(0, 1),
    "power": _real(0, 100, above=True),
    "max_tokens": _whole(1, 10**7),
    "stop": _stop_strings,
    "stop_token_ids": _token_ids,
    "ignore_eos": _flag,
    "seed": _whole(0, 2**63 - 1),
    "potentials": _callables,
    "repetition_penalty": _real(0, 100, above=True),
    "presence_penalty": _real(-2, 2),
    "frequency_penalty": _real(-2, 2),
    "logit_bias": _logit_bias,
    "allowed_token_ids": _some_token_ids,
    "bad_words": _bad_words,
    "min_tokens": _whole(0, 10**7),
    "logits_processors": _callables,
    "include_stop_str_in_output": _flag,
    "skip_special_tokens": _flag,
    "json_schema": _json_schema,
    "regex": _pattern,
    "choice": _choice,
    "grammar": _pattern,
    "constraint_mode": _one_of(*CONSTRAINT_MODES),
    "n": _whole(1, 1024),
    "logprobs": _whole(0, MOST_TOP),
    "logprobs_mode": _one_of(*LOGPROBS_MODES),
    "prompt_logprobs": _whole(0, MOST_TOP),
    "vote": _vote,
}

_MAY_BE_NONE = frozenset(
    {
        "max_tokens",
        "seed",
        "allowed_token_ids",
        "logprobs",
        "prompt_logprobs",
        "vote",
        *CONSTRAINTS,
        *_METHOD_CHECKS,
    }
)


def _check_fields(params: Any, checks: dict[str, Callable[[str, Any], Any]]) -> None:
    """Replace every field by its checked and normalised value."""
    for name, check in checks.items():
        value = getattr(params, name)
        if value is not None or name not in _MAY_BE_NONE:
            object.__setattr__(params, name, check(name, value))


@dataclass(frozen=True)
class SamplingParams:
    """One request's parameters. Everything that changes the distribution applies to target and draft alike.

    Attributes:
        temperature: Divides the logits; 0 is greedy decoding.
        top_p: Keep the smallest set of most probable tokens with at least this mass; 1 keeps all.
        top_k: Keep this many most probable tokens; 0 or -1 keeps all.
        min_p: Drop tokens less probable than this times the most probable one.
        power: alpha: sample answers from p ** alpha, normalised over whole answers (SMC only).
        max_tokens: Most tokens of the answer; None for as many as the context allows.
        stop: Strings that end the answer and are not part of it.
        stop_token_ids: Further token ids that end the answer.
        ignore_eos: Go on after the model's own end-of-text tokens.
        seed: Fixes every draw of this request; None draws a fresh one, reported with the output.
        potentials: Factors on the distribution over answers (SMC only).
        repetition_penalty: Divides positive and multiplies negative logits of tokens that are in the prompt or the
            answer so far; above 1 discourages them.
        presence_penalty: Subtracted from the logits of tokens that are in the answer so far.
        frequency_penalty: Subtracted once for each time a token is in the answer so far.
        logit_bias: Added to the logits of token ids.
        allowed_token_ids: The only tokens that may be drawn; None for all.
        bad_words: Words whose tokens are never drawn one after the other.
        min_tokens: Tokens before which no stop token is drawn and no stop string heeded.
        logits_processors: Functions of the answer's tokens so far and the logits ``[V]`` after them that return the
            logits to be used; called for every particle and drafted position, for target and draft.
        include_stop_str_in_output: Whether the text keeps the stop string or token that ended it.
        skip_special_tokens: Whether special tokens are left out of the text.
        json_schema: The answer is JSON of this schema: a mapping, its JSON text, or a pydantic model.
        regex: The answer matches this regular expression (Rust's syntax) as a whole.
        choice: The answer is one of these texts.
        grammar: The answer follows this grammar, in Lark's form (as llguidance reads it) or GBNF.
        constraint_mode: "local" renormalises over what the constraint allows at every token; "global" (SMC only)
            follows the model's distribution given that the whole answer fits the constraint.
        n: Answers wanted, each by a run of its own with the seeds seed, seed + 1, ...
        logprobs: Record the target's log-probability of every token of the answer, and of this many most probable
            ones beside it; None for none.
        logprobs_mode: "raw_logprobs" are those of the model itself, "processed_logprobs" those of the distribution
            the request samples from, after everything but power and potentials.
        prompt_logprobs: The same for the prompt's tokens, always those of the model itself.
        vote: What ``select="vote"`` counts: a regular expression, whose last match in a text counts (its first
            group, where it has one), or a function from the text to a hashable result, None for no vote.
        method: These and the following, where given, replace the engine's `MethodParams` for this request.
        preset: See `MethodParams`; it chooses the method, so that none may be given beside it.
        num_particles: See `MethodParams`.
        num_draft_tokens: See `MethodParams`.
        cut_threshold: See `MethodParams`.
        resample_threshold: See `MethodParams`.
        resampling: See `MethodParams`.
        commit_lag: See `MethodParams`.
        select: See `MethodParams`.

    Raises:
        InvalidRequestError: A value is of the wrong type or out of range; says what is allowed.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    power: float = 1.0
    max_tokens: int | None = 256
    stop: str | Sequence[str] | None = ()
    stop_token_ids: Sequence[int] | None = ()
    ignore_eos: bool = False
    seed: int | None = None
    potentials: Sequence[Potential] = field(default=())
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = ()
    min_tokens: int = 0
    logits_processors: Sequence[LogitsProcessor] = field(default=())
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    json_schema: Mapping[str, Any] | str | type | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    constraint_mode: str = "local"
    n: int = 1
    logprobs: int | None = None
    logprobs_mode: str = "raw_logprobs"
    prompt_logprobs: int | None = None
    vote: Extractor | None = None
    method: str | None = None
    preset: str | None = None
    num_particles: int | None = None
    num_draft_tokens: int | None = None
    cut_threshold: float | None = None
    resample_threshold: float | None = None
    resampling: str | None = None
    commit_lag: float | int | None = None
    select: str | None = None

    def __post_init__(self) -> None:
        _check_fields(self, _SAMPLING_CHECKS)
        _check_fields(self, _METHOD_CHECKS)
        _check_preset(self)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequestError(
                f"min_tokens is {self.min_tokens}, but max_tokens only {self.max_tokens}: lower min_tokens",
                "min_tokens",
            )
        given = [name for name in CONSTRAINTS if getattr(self, name) is not None]
        if len(given) > 1:
            raise InvalidRequestError(f"{given[0]} and {given[1]} are both given: use one of them", given[1])
        for name in ("stop", "stop_token_ids", "ignore_eos", "min_tokens") if given else ():
            if getattr(self, name):
                raise InvalidRequestError(f"{name} contradicts {given[0]}, which says where answers end", name)
        if self.constraint_mode == "global":
            if not given:
                raise InvalidRequestError(
                    f'constraint_mode "global" needs a constraint: give {", ".join(CONSTRAINTS)}', "constraint_mode"
                )
            if self.temperature == 0:
                raise InvalidRequestError(
                    'constraint_mode "global" needs a temperature above 0: at 0 there is no distribution to keep',
                    "constraint_mode",
                )

    @property
    def needing_smc(self) -> list[str]:
        """Names of the parameters that only SMC can serve."""
        used = {
            "power": self.power != 1,
            "potentials": bool(self.potentials),
            "constraint_mode": self.constraint_mode == "global",
            "vote": self.vote is not None,
        }
        return [name for name, is_used in used.items() if is_used]

    @property
    def constrained(self) -> bool:
        """Whether the answer's text has to fit something."""
        return any(getattr(self, name) is not None for name in CONSTRAINTS)


def _check_preset(params: "SamplingParams | MethodParams") -> None:
    if params.preset is not None and params.method not in (None, "auto"):
        raise InvalidRequestError(
            f'preset "{params.preset}" chooses the method itself: leave out method "{params.method}"', "preset"
        )


@dataclass(frozen=True)
class MethodParams:
    """How answers are made.

    Attributes:
        method: "autoregressive", "speculative", "smc", or "auto": the fastest of them at the present load, lossless
            unless SMC is clearly faster. A request with a seed must not depend on the load: under "auto" it is decoded
            speculatively with `SEEDED_DRAFT_TOKENS`, or by SMC where only that will do.
        preset: What "auto" may choose from. "lossless": methods whose answers follow the target exactly. "balanced":
            besides, SMC settings whose accuracy was measured to be within 3 points of the target's, and SMC for what
            only SMC can do. "fast": all of them. None is the same as "fast".
        num_particles: Particles of SMC, or draft chains of speculative decoding. None: 8 particles, 1 chain. Under
            "auto" the most particles it may take.
        num_draft_tokens: Tokens drafted a cycle, K; under "auto" the most.
        cut_threshold: kappa: drop drafted tokens after the effective sample size falls below this share of
            the particles. 0 keeps all (fastest), higher follows the target more closely.
        resample_threshold: tau: resample when the effective sample size is below this share of the particles.
        resampling: "systematic", "stratified", "multinomial" or "residual".
        commit_lag: Most tokens that may stay open before agreement is forced; ``math.inf`` for any number.
        select: "sample" draws the answer by weight, so that it follows the target; "best" takes the heaviest; "vote"
            the heaviest of those that give the result with the largest total weight (see ``vote`` of `SamplingParams`).

    Raises:
        InvalidRequestError: A value is of the wrong type or out of range.
    """

    method: str = "smc"
    preset: str | None = None
    num_particles: int | None = None
    num_draft_tokens: int = 8
    cut_threshold: float = 0.0
    resample_threshold: float = 0.5
    resampling: str = "systematic"
    commit_lag: float | int = 48
    select: str = "sample"

    def __post_init__(self) -> None:
        _check_fields(self, _METHOD_CHECKS)
        for name in _METHOD_CHECKS:
            if getattr(self, name) is None and name not in ("preset", "num_particles"):
                raise InvalidRequestError(f"{name} is None: leave it out to use the default")
        _check_preset(self)

    @property
    def rows(self) -> int:
        """Particles or chains that run side by side."""
        if self.method == "autoregressive":
            return 1
        if self.num_particles is not None:
            return self.num_particles
        return 1 if self.method == "speculative" else 8

    @property
    def max_open_tokens(self) -> int | None:
        """commit_lag as a number of tokens; None for any number."""
        return None if self.commit_lag == math.inf else int(self.commit_lag)

    def override(self, sampling: SamplingParams) -> "MethodParams":
        """These parameters with those a request sets for itself; one of `OF_SMC` under a preset asks for SMC.

        Raises:
            InvalidRequestError: The request asks for something only SMC can do, of another method.
        """
        asked = {name: getattr(sampling, name) for name in _METHOD_CHECKS}
        changes = {name: value for name, value in asked.items() if value is not None}
        if "preset" in changes:
            changes["method"] = "auto"
        elif "method" in changes:
            changes["preset"] = None
        elif self.preset is not None and changes.keys() & set(OF_SMC):
            changes |= {"method": "smc", "preset": None}
        merged = replace(self, **changes)
        if merged.preset == "lossless":
            for name in sampling.needing_smc:
                raise InvalidRequestError(f'{name} needs method "smc", which preset "lossless" excludes', name)
        if merged.method not in ("smc", "auto"):
            for name in sampling.needing_smc:
                raise InvalidRequestError(f'{name} needs method "smc", not "{merged.method}"', name)
        if merged.method in ("smc", "auto") and merged.select == "vote" and sampling.vote is None:
            raise InvalidRequestError('select "vote" needs vote: give a pattern or a function', "vote")
        if sampling.vote is not None and merged.select != "vote":
            raise InvalidRequestError(f'vote needs select "vote", not "{merged.select}"', "select")
        return merged
