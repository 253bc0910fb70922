from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parspec.errors import InvalidRequestError
from parspec.sampling.adjustments import Adjustments
from parspec.sampling.params import SamplingParams
from tests.support.reference import reference_adjustments
from tests.support.tokenizers import byte_bpe_tokenizer

VOCAB, STOP = 8, (0, 3)
TOKENIZER = byte_bpe_tokenizer()


def adjustments(prompt: tuple[int, ...] = (), **params: Any) -> Adjustments:
    return Adjustments(SamplingParams(**params), prompt, STOP, None, VOCAB, torch.device("cpu"))


def odd_after_even(answer: list[int], logits: torch.Tensor) -> torch.Tensor:
    if answer and answer[-1] % 2 == 0:
        logits[1::2] += 1.5
    return logits


TOKENS = st.integers(0, VOCAB - 1)
PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "repetition_penalty": st.sampled_from([0.5, 1.0, 1.3]),
        "presence_penalty": st.sampled_from([-1.5, 0.0, 0.7]),
        "frequency_penalty": st.sampled_from([-0.5, 0.0, 0.4]),
        "logit_bias": st.dictionaries(TOKENS, st.sampled_from([-100.0, -1.5, 0.0, 2.0]), max_size=3),
        "allowed_token_ids": st.sets(TOKENS, min_size=1).map(lambda ids: sorted(ids | {1, 2})),
        "min_tokens": st.integers(0, 6),
        "logits_processors": st.sampled_from([(), (odd_after_even,)]),
    },
)


@settings(max_examples=300)
@given(PARAMS, st.lists(TOKENS, max_size=5), st.integers(1, 3), st.integers(0, 6), st.integers(1, 4), st.data())
def test_every_position_agrees_with_its_own_history(
    params: dict[str, Any], prompt: list[int], rows: int, known: int, block: int, data: st.DataObject
) -> None:
    """A block of T positions is T prefixes of each row's answer, each adjusted as if it stood alone."""
    length = known + block - 1
    answers = [data.draw(st.lists(TOKENS, min_size=length, max_size=length)) for _ in range(rows)]
    logits = torch.randn(rows, block, VOCAB, generator=torch.Generator().manual_seed(length))
    before = logits.clone()
    adjusted = adjustments(tuple(prompt), **params)(logits, torch.tensor(answers, dtype=torch.int64).reshape(rows, -1))
    reference = reference_adjustments(SamplingParams(**params), prompt, STOP)
    for row in range(rows):
        for t in range(block):
            torch.testing.assert_close(adjusted[row, t], reference(answers[row][: known + t], logits[row, t]))
    assert torch.equal(logits, before)


def test_nothing_asked_for_changes_nothing() -> None:
    logits = torch.randn(2, 3, VOCAB)
    none = adjustments((1, 2))
    assert not none.active
    assert none(logits, torch.zeros(2, 5, dtype=torch.int64)) is logits


def test_bfloat16_logits_are_adjusted_in_float32() -> None:
    adjusted = adjustments(presence_penalty=0.3)(torch.ones(1, 1, VOCAB, dtype=torch.bfloat16), torch.tensor([[2]]))
    assert adjusted.dtype == torch.float32
    assert adjusted[0, 0, 2].item() == pytest.approx(0.7)


def bad(*words: str) -> Adjustments:
    params = SamplingParams(bad_words=words)
    return Adjustments(params, [], [], TOKENIZER, len(TOKENIZER), torch.device("cpu"))


def forbidden_after(rule: Adjustments, *answers: list[int]) -> list[list[int]]:
    """Which tokens are ruled out after each answer; answers of equal length."""
    logits = torch.zeros(len(answers), 1, len(TOKENIZER))
    adjusted = rule(logits, torch.tensor(answers, dtype=torch.int64).reshape(len(answers), -1))
    return [(row[0] == -torch.inf).nonzero()[:, 0].tolist() for row in adjusted]


def ids(text: str) -> list[int]:
    return list(TOKENIZER(text, add_special_tokens=False)["input_ids"])


def test_a_bad_word_of_one_token_is_never_drawn() -> None:
    assert forbidden_after(bad("hello"), [5], ids("hello")) == [ids("hello")] * 2


def test_a_bad_word_of_several_tokens_lacks_its_last_after_the_others() -> None:
    word = ids("Zug")
    assert len(word) == 3
    assert forbidden_after(bad("Zug"), [9, *word[:2]], [9, word[0], 9], [*word[:2], 9]) == [word[2:], [], []]
    assert forbidden_after(bad("Zug"), []) == [[]]  # too early for the word to end
    assert forbidden_after(bad("Zug"), [word[0]]) == [[]]


def test_many_bad_words_are_each_forbidden() -> None:
    words = [f"{first}{second}{third}" for first in "qx" for second in "yz" for third in "jkv"] + ["ju", "jukv"]
    rule = bad(*words)
    for word in words:
        *before, last = ids(word)
        assert last in forbidden_after(rule, [9, *before])[0]
        assert last not in forbidden_after(rule, [*before, 9])[0]


def test_a_bad_word_counts_behind_a_space_too() -> None:
    bare, spaced = ids("world"), ids(" world")
    assert len(spaced) == 1
    assert len(bare) > 1
    # " world" is one token and "world" several: as in vLLM, only spellings of equal length count as the same word.
    assert forbidden_after(bad("world"), bare[:-1])[0] == [bare[-1]]
    assert forbidden_after(bad(" world"), bare[:-1])[0] == [bare[-1]]


def test_inside_a_block_the_drafted_tokens_are_history() -> None:
    word = ids("Zug")
    answers = torch.tensor([[9, *word[:2]]])
    adjusted = bad("Zug")(torch.zeros(1, 3, len(TOKENIZER)), answers)
    assert torch.isinf(adjusted).nonzero().tolist() == [[0, 2, word[2]]]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"allowed_token_ids": [1, VOCAB]}, "allowed_token_ids has 8"),
        ({"logit_bias": {VOCAB + 3: 1.0}}, "logit_bias has 11"),
        ({"allowed_token_ids": list(STOP), "min_tokens": 2}, "leave no token"),
        ({"bad_words": ["x"]}, "need a tokenizer"),
    ],
)
def test_what_cannot_be_served_is_refused_at_once(params: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        adjustments(**params)


@pytest.mark.parametrize(
    ("processor", "message"),
    [
        (lambda answer, logits: logits[:2], r"shape \(2,\).* return a dense tensor of 8 real numbers"),
        (lambda answer, logits: logits.to("meta"), "on meta"),
        (lambda answer, logits: logits.to_sparse(), "sparse"),
        (lambda answer, logits: logits.to(torch.complex64), "complex64"),
        (lambda answer, logits: logits.tolist(), "returned a list"),
        (lambda answer, logits: logits - torch.inf, "nothing is left"),
        (lambda answer, logits: logits * torch.nan, "nothing is left"),
    ],
)
def test_a_processor_that_returns_no_distribution(processor: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        adjustments(logits_processors=[processor])(torch.zeros(1, 1, VOCAB), torch.zeros(1, 0, dtype=torch.int64))


def test_a_processor_cannot_change_what_others_see() -> None:
    def greedy(answer: list[int], logits: torch.Tensor) -> torch.Tensor:
        answer.append(7)
        return logits.fill_(0.0)

    logits = torch.randn(1, 2, VOCAB)
    before, answers = logits.clone(), torch.tensor([[1]])
    adjustments(logits_processors=[greedy, odd_after_even])(logits, answers)
    assert torch.equal(logits, before)
    assert answers.tolist() == [[1]]
