import json
import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parspec.errors import InvalidRequestError
from parspec.sampling import constraint as module
from parspec.sampling.constraint import Constraint
from parspec.sampling.params import SamplingParams
from tests.support.tokenizers import IM_END, byte_bpe_tokenizer, metaspace_tokenizer

TOKENIZER = byte_bpe_tokenizer()
EOS = TOKENIZER.convert_tokens_to_ids(IM_END)
VOCAB = len(TOKENIZER) + 5  # models have more ids than their tokenizers
SCHEMA = {
    "type": "object",
    "properties": {"ab": {"type": "integer"}, "hello": {"enum": ["STOP", "é", 'a"b']}},
    "required": ["ab", "hello"],
    "additionalProperties": False,
}


def constraint(**params: Any) -> Constraint:
    return Constraint(SamplingParams(**params), [EOS], TOKENIZER, VOCAB)


def walk(rule: Constraint, seed: int, most: int = 200, tokenizer: Any = TOKENIZER) -> tuple[str, bool]:
    """An answer drawn evenly from what is allowed, and whether it came to its end."""
    generator, answer = torch.Generator().manual_seed(seed), []
    while len(answer) < most:
        allowed = rule.masks(torch.tensor([answer], dtype=torch.int64).reshape(1, -1), 1)[0, 0]
        token = int(torch.multinomial(allowed.double(), 1, generator=generator))
        if token == tokenizer.eos_token_id:
            return tokenizer.decode(answer, skip_special_tokens=True), True
        answer.append(token)
    return tokenizer.decode(answer, skip_special_tokens=True), False


@settings(max_examples=60)
@given(st.integers(0, 10**6))
def test_whatever_is_drawn_fits_the_schema(seed: int) -> None:
    text, ended = walk(constraint(json_schema=SCHEMA), seed)
    if ended:
        parsed = json.loads(text)
        assert list(parsed) == ["ab", "hello"]
        assert type(parsed["ab"]) is int
        assert parsed["hello"] in ("STOP", "é", 'a"b')


@pytest.mark.parametrize(
    ("params", "pattern"),
    [
        ({"regex": "[a-c]{2,4}|hello [0-9]"}, "[a-c]{2,4}|hello [0-9]"),
        ({"grammar": 'start: "a" (WORD | "!")\nWORD: /[bc]{1,3}/'}, r"a([bc]{1,3}|!)"),
        ({"grammar": 'root ::= "a" [bc]+ "d"'}, r"a[bc]+d"),
    ],
)
def test_whatever_is_drawn_fits_the_pattern(params: dict[str, Any], pattern: str) -> None:
    rule = constraint(**params)
    for seed in range(30):
        text, ended = walk(rule, seed)
        assert not ended or re.fullmatch(pattern, text)


def test_choices_are_literal() -> None:
    choices = ["a.c", 'say "hi"\\n', "new\nline", "é€😀", "[", "a|b", "a"]
    rule = constraint(choice=choices)
    assert {walk(rule, seed) for seed in range(150)} == {(text, True) for text in choices}


@pytest.mark.parametrize("tokenizer", [TOKENIZER, metaspace_tokenizer()])
def test_text_that_reads_like_a_special_token_is_text(tokenizer: Any) -> None:
    """Forced tokens are had by encoding text, and no encoding may make a special token of it."""
    eos = tokenizer.eos_token_id
    added = [str(token) for token in tokenizer.added_tokens_decoder.values()]
    texts = [*added, f"x{added[0]}y{added[-1]}", *(json.dumps(f"{tag} z") for tag in added)]
    rule = Constraint(SamplingParams(choice=texts), [eos], tokenizer, len(tokenizer))
    found = {walk(rule, seed, tokenizer=tokenizer) for seed in range(60)}
    assert found <= {(text, True) for text in texts}
    assert len(found) > 3


def test_special_tokens_can_be_asked_for_by_id() -> None:
    rule = constraint(grammar=f'start: <[{EOS - 1}]> "a"')
    assert rule.forced(torch.empty(1, 0, dtype=torch.int64)).tolist() == [[EOS - 1]]
    assert rule.forced(torch.tensor([[EOS - 1]])).tolist() == [[ord("a")]]


def test_a_constraint_too_large_to_follow_is_the_request_s_fault() -> None:
    rule = constraint(regex="((a{100}){100}){100}")
    with pytest.raises(InvalidRequestError, match="regex cannot be followed: it is too large, make it simpler"):
        rule.masks(torch.full((1, 3), ord("a")), 1)


def test_masks_of_a_block_are_those_of_its_prefixes() -> None:
    rule, again = constraint(regex="(ab|ba)*c"), constraint(regex="(ab|ba)*c")
    answers = torch.tensor([list(b"abba"), list(b"baab"), [*list(b"abc"), EOS]])
    masks = rule.masks(answers, 3)
    assert masks.shape == (3, 3, VOCAB)
    for t in range(3):
        prefixes = answers[:, : 2 + t]
        assert torch.equal(masks[:, t], again.masks(prefixes, 1)[:, 0])
    assert masks[0, 0, ord("a")]
    assert not masks[0, 1, ord("c")]
    assert masks[2, 1].nonzero()[:, 0].tolist() == [EOS]
    assert masks[2, 2].all()  # behind the end


def test_the_end_is_allowed_only_where_the_text_is_complete() -> None:
    masks = constraint(regex="ab?").masks(torch.tensor([list(b"ab")]), 3)[0]
    assert [bool(mask[EOS]) for mask in masks] == [False, True, True]


def test_forced_tokens() -> None:
    rule = constraint(regex="x[ab]c|x")
    nothing = torch.empty(2, 0, dtype=torch.int64)
    assert rule.forced(nothing).tolist() == [[ord("x")]] * 2
    assert rule.forced(torch.tensor([[ord("x")]] * 2)) is None
    # One complete, one with a single way on; what follows an end does not matter.
    rows = torch.tensor([list(b"xac"), [*b"x", EOS, 7]])
    assert rule.forced(rows[:, :2]).tolist() == [[ord("c")], [0]]
    assert rule.forced(rows).tolist() == [[EOS], [0]]


def test_states_are_forgotten_and_had_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STATES_KEPT", 5)
    rule, whole = constraint(regex="[ab]*c"), constraint(regex="[ab]*c")
    for length in (3, 20, 1, 20, 7):
        answers = torch.randint(97, 99, (2, length), generator=torch.Generator().manual_seed(length))
        assert torch.equal(rule.masks(answers, 2), whole.masks(answers, 2))
        assert len(rule._states) <= 5


def test_a_token_that_is_not_allowed_is_noticed() -> None:
    with pytest.raises(InvalidRequestError, match="regex cannot be followed"):
        constraint(regex="ab").masks(torch.tensor([[ord("z")]]), 1)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"json_schema": {"type": "strin"}}, "json_schema cannot be used: .*strin"),
        ({"json_schema": {"$ref": "#/nope"}}, "json_schema cannot be used: .*nope"),
        ({"json_schema": {"type": "object", "unevaluatedProperties": {"a": 1}}}, "json_schema cannot be used"),
        ({"regex": "(a"}, "regex cannot be used: .*unclosed group"),
        ({"regex": "a(?=b)"}, "regex cannot be used"),
        ({"grammar": "start: foo"}, "grammar cannot be used: .*foo"),
        ({"grammar": "nonsense ((("}, "grammar cannot be used"),
        ({"regex": r"[^\s\S]"}, "regex cannot be followed: no token may come next"),
        ({"grammar": "start: start"}, "grammar cannot be followed: no token may come next"),
        ({"json_schema": {"$ref": "#"}}, "json_schema cannot be followed: no token may come next"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(params: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as caught:
        constraint(**params)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(("tokenizer", "eos"), [(None, [EOS]), (TOKENIZER, []), (TOKENIZER, [VOCAB - 1])])
def test_a_model_that_cannot_be_constrained(tokenizer: Any, eos: list[int]) -> None:
    with pytest.raises(InvalidRequestError, match="regex needs a model with a fast tokenizer and an end-of-text token"):
        Constraint(SamplingParams(regex="a"), eos, tokenizer, VOCAB)
