from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from parspec.errors import InvalidRequestError
from parspec.sampling.detokenize import decode, find_stop
from parspec.sampling.params import SamplingParams
from parspec.sampling.stopping import StopCondition
from tests.support.tokenizers import END_OF_TEXT, IM_END, IM_START, byte_bpe_tokenizer, metaspace_tokenizer

TOKENIZER = byte_bpe_tokenizer()
METASPACE = metaspace_tokenizer()
EOS = TOKENIZER.convert_tokens_to_ids(IM_END)


def condition(tokenizer: PreTrainedTokenizerFast | None = TOKENIZER, **params: Any) -> StopCondition:
    return StopCondition(SamplingParams(**params), [EOS], tokenizer, len(TOKENIZER))


def no_histories() -> list[list[int]]:
    raise AssertionError("histories are for stop strings only")


def ids_of(*pieces: str) -> list[int]:
    """Ids of pieces spelled as tokens of the vocabulary, or else byte by byte."""
    vocabulary = TOKENIZER.get_vocab()
    return [i for piece in pieces for i in ([vocabulary[piece]] if piece in vocabulary else list(piece.encode()))]


def first_end(stop: StopCondition, tokens: list[int], block: int) -> int:
    """1-based position at which a sequence given in blocks ends; one past its length if it does not."""
    for start in range(0, len(tokens), block):
        new = tokens[start : start + block]
        end = int(stop.first_end(torch.tensor([new]), lambda start=start: [tokens[:start]]))
        if end <= len(new):
            return start + end
    return len(tokens) + 1


def naive_end(stop_ids: set[int], strings: list[str], tokens: list[int], tokenizer: PreTrainedTokenizerFast) -> int:
    for end in range(1, len(tokens) + 1):
        text = decode(tokenizer, tokens[:end])
        if tokens[end - 1] in stop_ids or any(s in text for s in strings):
            return end
    return len(tokens) + 1


def test_stop_ids_end_each_particle_at_its_first_hit() -> None:
    stop = condition(stop_token_ids=[7, 9])
    block = torch.tensor([[1, 7, 9], [9, 9, 9], [1, 2, 3], [1, 2, EOS]])
    ends = stop.first_end(block, no_histories)
    assert ends.dtype == torch.int64
    assert ends.tolist() == [2, 1, 4, 3]


@pytest.mark.parametrize("particles", [0, 1, 3])
@pytest.mark.parametrize("strings", [None, "END"])
def test_empty_block_ends_nothing(particles: int, strings: str | None) -> None:
    stop = condition(stop=strings)
    assert stop.first_end(torch.empty(particles, 0, dtype=torch.int64), no_histories).tolist() == [1] * particles


def test_ignore_eos_leaves_the_requests_own_stops() -> None:
    block = torch.tensor([[1, EOS, 7]])
    assert condition(ignore_eos=True).first_end(block, no_histories).tolist() == [4]
    assert condition(ignore_eos=True, stop_token_ids=[7]).first_end(block, no_histories).tolist() == [3]
    assert condition(ignore_eos=True, stop_token_ids=[EOS]).first_end(block, no_histories).tolist() == [2]


def test_no_stops_at_all() -> None:
    stop = StopCondition(SamplingParams(), [], None, 10)
    assert stop.first_end(torch.tensor([[1, 2]]), no_histories).tolist() == [3]


def test_the_last_token_of_a_block_can_be_the_end() -> None:
    # The caller bounds the block by max_tokens: T here means "stop", T + 1 means "length".
    assert condition(stop="END").first_end(torch.tensor([ids_of("a", "END")]), lambda: [[]]).tolist() == [2]
    assert condition(stop="END").first_end(torch.tensor([ids_of("a", "EN")]), lambda: [[]]).tolist() == [3]


def test_stop_string_inside_a_token() -> None:
    stop = condition(stop="ell")
    assert first_end(stop, ids_of("a", "hello", "Ġworld"), 3) == 2
    assert stop.text(ids_of("a", "hello")) == "ah"


@pytest.mark.parametrize("block", range(1, 8))
def test_stop_string_across_token_and_block_borders(block: int) -> None:
    tokens = ids_of("hello", "S", "T", "O", "P", "a", "END")
    assert first_end(condition(stop="STOP"), tokens, block) == 5
    assert first_end(condition(stop=["END", "STOP"]), tokens, block) == 5
    assert first_end(condition(stop=["STOPaE"]), tokens, block) == 7
    assert first_end(condition(stop=["STOPb"]), tokens, block) == 8


@pytest.mark.parametrize("block", [1, 2, 5, 30])
@pytest.mark.parametrize("text", ["é", "€", "😀", "👨‍👩‍👧", "a😀€", "日本"])
def test_stop_string_of_characters_split_over_tokens(block: int, text: str) -> None:
    tokens = [*b"xy", *text.encode(), *b"z"]
    end = 2 + len(text.encode())
    assert first_end(condition(stop=text), tokens, block) == end
    assert condition(stop=text).text(tokens[:end]) == "xy"
    assert condition(stop=text, include_stop_str_in_output=True).text(tokens[:end]) == f"xy{text}"


def test_token_ending_a_character_and_going_on() -> None:
    assert first_end(condition(stop="😀"), [*ids_of("ðŁ"), 0x98, *ids_of("Ģa")], 2) == 3


def test_particles_have_their_own_histories() -> None:
    histories = [ids_of("ST"), ids_of("S"), ids_of("hello"), []]
    block = torch.tensor([ids_of("OP", "a"), ids_of("T", "OP"), ids_of("OP", "a"), ids_of("STOP", "a")])
    assert condition(stop="STOP").first_end(block, lambda: histories).tolist() == [1, 2, 3, 1]


def test_the_earlier_of_id_and_string_wins() -> None:
    stop = condition(stop="STOP")
    assert first_end(stop, [*ids_of("a"), EOS, *ids_of("STOP")], 9) == 2
    assert first_end(stop, [*ids_of("a", "STOP"), EOS], 9) == 2
    # Both at once.
    assert first_end(condition(stop="STOP", stop_token_ids=ids_of("STOP")), ids_of("a", "STOP"), 9) == 2


@pytest.mark.parametrize("special", [END_OF_TEXT, IM_START, IM_END])
def test_stop_string_that_is_a_special_token(special: str) -> None:
    token = TOKENIZER.convert_tokens_to_ids(special)
    stop = condition(stop=[special], ignore_eos=True)
    assert first_end(stop, [*ids_of("a"), token, *ids_of("b")], 3) == 2
    # Spelled out by ordinary tokens it is text like any other.
    spelled = list(special.encode())
    assert first_end(stop, [*ids_of("a"), *spelled, *ids_of("b")], 4) == 1 + len(spelled)


def test_special_tokens_do_not_push_the_beginning_out_of_sight() -> None:
    tokens = [*ids_of("EN"), *[EOS] * 100, *ids_of("D")]
    assert first_end(condition(stop="END", ignore_eos=True), tokens, 1) == len(tokens)


def test_a_long_history_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []

    def counting(tokenizer: PreTrainedTokenizerFast, ids: list[int], skip_special: bool) -> str:
        decoded.append(len(ids))
        return decode(tokenizer, ids, skip_special)

    monkeypatch.setattr("parspec.sampling.stopping.decode", counting)
    condition(stop="END").first_end(torch.tensor([ids_of("a", "b")]), lambda: [ids_of("a") * 10_000])
    assert len(decoded) == 1
    assert decoded[0] < 50


def test_first_space_of_the_window_is_not_lost() -> None:
    tokens = METASPACE("hello hello hello hello hello world", add_special_tokens=False)["input_ids"]
    stop = StopCondition(SamplingParams(stop="o w"), [2], METASPACE, len(METASPACE))
    for block in (1, 3, 100):
        assert decode(METASPACE, tokens[: first_end(stop, tokens, block)]).endswith("o w")


@settings(deadline=None, max_examples=200)
@given(
    st.text(st.sampled_from("hello wrd,é日本😀"), max_size=14),
    st.lists(st.sampled_from(["o w", "本", "日本", "😀", "é,", "  "]), min_size=1, max_size=2),
    st.integers(1, 9),
)
@example("日日日日日日本日", ["本"], 1)
@example("日日日日日日本日", ["本"], 4)
@example("日本日", ["日本"], 8)
def test_characters_spelled_in_bytes(text: str, strings: list[str], block: int) -> None:
    tokens = METASPACE(text, add_special_tokens=False)["input_ids"]
    stop = StopCondition(SamplingParams(stop=strings), [2], METASPACE, len(METASPACE))
    assert first_end(stop, tokens, block) == naive_end({2}, strings, tokens, METASPACE)


TOKENS = st.sampled_from(
    [
        *ids_of("hello", "Ġworld", "STOP", "ST", "OP", "S", "T", "O", "P", "abc", "ab", "bc", "b", "c", "cd", "Ģa"),
        *"é€😀".encode(),
        *ids_of("ðŁ", "Ã©", "©x", "Ġ", "ĊĊ"),
        EOS,
    ]
)
STOPS = st.lists(
    st.sampled_from(["STOP", "abcd", "bc", "OS", "é", "😀", "€é", "o w", "\n\n", " ", "TOP\n", "aab", IM_END]),
    max_size=3,
)


@settings(deadline=None, max_examples=400)
@given(st.lists(TOKENS, max_size=30), STOPS, st.integers(1, 9), st.booleans())
def test_agrees_with_decoding_everything_at_every_token(
    tokens: list[int], strings: list[str], block: int, ignore_eos: bool
) -> None:
    stop = condition(stop=strings, ignore_eos=ignore_eos)
    ids = set() if ignore_eos and IM_END not in strings else {EOS}
    assert first_end(stop, tokens, block) == naive_end(ids, strings, tokens, TOKENIZER)


def test_text_ends_at_the_earliest_string() -> None:
    stop = condition(stop=["STOP", "END"])
    assert stop.text(list(b"a END b STOP")) == "a "
    assert stop.text(list(b"STOP")) == ""
    assert stop.text(list(b"no such thing: ST OP")) == "no such thing: ST OP"
    assert condition().text(list(b"STOP")) == "STOP"
    assert find_stop("abcd", ["bc", "abcd"]) == (0, 4)
    assert find_stop("abcd", ["bc", "ab"], 2) == (1, 3)
    assert find_stop("abcd", ["bc"], 3) is None


def test_text_of_the_token_that_ends_the_answer() -> None:
    tokens = ids_of("a", "END")
    stop = {"stop_token_ids": tokens[-1:]}
    assert condition(**stop).text(tokens) == "a"
    assert condition(**stop, include_stop_str_in_output=True).text(tokens) == "aEND"
    assert condition(skip_special_tokens=False).text([*tokens, EOS]) == "aEND"
    kept = condition(skip_special_tokens=False, include_stop_str_in_output=True)
    assert kept.text([*tokens, EOS]) == f"aEND{IM_END}"


@pytest.mark.parametrize("block", range(1, 8))
def test_stop_strings_do_not_count_within_the_first_tokens(block: int) -> None:
    tokens = ids_of("END", "a", "EN", "D", "b", "END")
    for min_tokens, end, text in ((0, 1, ""), (1, 4, "ENDa"), (3, 4, "ENDa"), (4, 6, "ENDaENDb"), (5, 6, "ENDaENDb")):
        stop = condition(stop="END", min_tokens=min_tokens)
        assert first_end(stop, tokens, block) == end
        assert stop.text(tokens[:end]) == text
        detokenizer = stop.detokenizer()
        pieces = [detokenizer.append(tokens[i : i + block]) for i in range(0, len(tokens[:end]), block)]
        assert "".join([*pieces, detokenizer.flush()]) == text


def test_stop_strings_need_a_tokenizer() -> None:
    with pytest.raises(InvalidRequestError, match="stop strings need a tokenizer"):
        condition(tokenizer=None, stop="END")
    condition(tokenizer=None, stop_token_ids=[1])


def test_stop_ids_outside_the_vocabulary_are_refused() -> None:
    condition(stop_token_ids=[len(TOKENIZER) - 1])
    with pytest.raises(InvalidRequestError, match=f"^stop_token_ids has {len(TOKENIZER)}, outside the vocabulary"):
        condition(stop_token_ids=[1, len(TOKENIZER)])
