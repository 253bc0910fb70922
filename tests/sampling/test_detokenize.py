import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from parspec.sampling import detokenize
from parspec.sampling.detokenize import Detokenizer, decode
from parspec.sampling.params import SamplingParams
from parspec.sampling.stopping import StopCondition
from tests.support.tokenizers import IM_END, IM_START, byte_bpe_tokenizer, metaspace_tokenizer

TOKENIZER = byte_bpe_tokenizer()
METASPACE = metaspace_tokenizer()
EOS = TOKENIZER.convert_tokens_to_ids(IM_END)
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def pieces_of(tokenizer: PreTrainedTokenizerFast, blocks: list[list[int]], stop: list[str] | None = None) -> list[str]:
    detokenizer = Detokenizer(tokenizer, stop or [])
    return [*(detokenizer.append(block) for block in blocks), detokenizer.flush()]


def split(tokens: list[int], sizes: list[int]) -> list[list[int]]:
    blocks = []
    for size in sizes:
        blocks.append(tokens[:size])
        tokens = tokens[size:]
    return [*blocks, tokens]


def test_text_comes_as_soon_as_it_is_known() -> None:
    tokens = TOKENIZER("hello world", add_special_tokens=False)["input_ids"]
    assert pieces_of(TOKENIZER, [[token] for token in tokens]) == ["hello", " world", ""]


def test_special_tokens_have_no_text() -> None:
    tokens = TOKENIZER(f"{IM_START}hello{IM_END}{IM_END} world{IM_END}", add_special_tokens=False)["input_ids"]
    assert pieces_of(TOKENIZER, [[token] for token in tokens]) == ["", "hello", "", "", " world", "", ""]
    assert decode(TOKENIZER, tokens) == "hello world"


def test_nothing() -> None:
    assert pieces_of(TOKENIZER, []) == [""]
    assert pieces_of(TOKENIZER, [[], []]) == ["", "", ""]
    assert decode(TOKENIZER, []) == ""


@pytest.mark.parametrize("text", ["é", "€", "😀", "日本語", "👨‍👩‍👧", "a😀b€c", "🇩🇪"])
def test_split_characters_come_whole(text: str) -> None:
    pieces = pieces_of(TOKENIZER, [[byte] for byte in text.encode()])
    assert "".join(pieces) == text
    assert REPLACEMENT not in "".join(pieces)
    assert [piece for piece in pieces if piece] == list(text)


def test_the_part_before_a_split_character_is_not_held_back() -> None:
    start = "hello 😀".encode()[:-2]
    assert pieces_of(TOKENIZER, [list(start), list("😀".encode()[-2:])]) == ["hello ", "😀", ""]


def test_an_answer_cut_inside_a_character_ends_as_it_decodes() -> None:
    tokens = [*b"ab", *"😀".encode()[:2]]
    pieces = pieces_of(TOKENIZER, [tokens])
    assert pieces == ["ab", REPLACEMENT]
    assert "".join(pieces) == decode(TOKENIZER, tokens)


def test_broken_bytes_and_a_models_own_replacement_characters() -> None:
    tokens = [0xE2, 0x82, *b"a", *REPLACEMENT.encode(), *b"b", 0xFF]
    pieces = pieces_of(TOKENIZER, [[token] for token in tokens])
    assert "".join(pieces) == decode(TOKENIZER, tokens) == f"{REPLACEMENT}a{REPLACEMENT}b{REPLACEMENT}"


def test_beginning_of_a_stop_string_is_held_until_decided() -> None:
    blocks = [[byte] for byte in b"aSTaSTOPb"]
    assert pieces_of(TOKENIZER, blocks, ["STOP"]) == ["a", "", "", "STa", "", "", "", "", "", ""]
    # Undecided at the end of the answer: it was text.
    assert pieces_of(TOKENIZER, blocks[:6], ["STOP"]) == ["a", "", "", "STa", "", "", "ST"]


def test_overlapping_stop_strings() -> None:
    assert pieces_of(TOKENIZER, [[byte] for byte in b"xabd"], ["abcd", "bc"]) == ["x", "", "", "abd", ""]
    assert pieces_of(TOKENIZER, [[byte] for byte in b"xabc"], ["abcd", "bc"]) == ["x", "", "", "a", ""]
    assert pieces_of(TOKENIZER, [list(b"xab"), list(b"cd")], ["abcd", "bc"]) == ["x", "", ""]
    assert "".join(pieces_of(TOKENIZER, [[byte] for byte in b"aaaab"], ["aab"])) == "aa"


def test_repeats_inside_a_stop_string() -> None:
    assert pieces_of(TOKENIZER, [[byte] for byte in b"\n\n\n"], ["\n\n\n\n"]) == ["", "", "", "\n\n\n"]
    assert pieces_of(TOKENIZER, [[byte] for byte in b"ababc"], ["abc"]) == ["", "", "ab", "", "", ""]


@pytest.mark.parametrize("text", ["hello world", "  hello", "é😀 a  b", " ", "hello , é"])
def test_dropped_first_space(text: str) -> None:
    tokens = METASPACE(text, add_special_tokens=False)["input_ids"]
    pieces = pieces_of(METASPACE, [[token] for token in [1, *tokens, 2]])
    assert "".join(pieces) == decode(METASPACE, tokens)
    assert REPLACEMENT not in "".join(pieces)


def test_space_behind_a_special_token_is_kept() -> None:
    hello, world = (METASPACE(text, add_special_tokens=False)["input_ids"] for text in ("hello", "  world"))
    pieces = pieces_of(METASPACE, [hello, [2], world])
    assert "".join(pieces) == decode(METASPACE, [*hello, 2, *world])


def test_cost_of_a_step_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    longest = 0

    def counting(tokenizer: PreTrainedTokenizerFast, ids: list[int], skip_special: bool) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return decode(tokenizer, ids, skip_special)

    monkeypatch.setattr(detokenize, "decode", counting)
    tokens = TOKENIZER("hello 😀 world. " * 200, add_special_tokens=False)["input_ids"]
    pieces = pieces_of(TOKENIZER, [tokens[i : i + 3] for i in range(0, len(tokens), 3)])
    assert "".join(pieces) == "hello 😀 world. " * 200
    assert longest < 20


PLAIN = list(range(256, 281))
TOKEN = st.one_of(st.sampled_from(PLAIN), st.sampled_from([*"aSTOPé€😀�".encode()]), st.integers(0, len(TOKENIZER) - 1))
STOPS = ["STOP", "abcd", "bc", "é", "😀", "o w", "\n\n", " ", "aab", "hello"]
SIZES = st.lists(st.integers(0, 6), max_size=20)


@settings(deadline=None, max_examples=500)
@given(st.lists(TOKEN, max_size=40), SIZES)
def test_pieces_are_the_text_for_any_tokens(tokens: list[int], sizes: list[int]) -> None:
    whole = decode(TOKENIZER, tokens)
    seen = ""
    for piece in pieces_of(TOKENIZER, split(tokens, sizes)):
        seen += piece
        assert whole.startswith(seen)
    assert seen == whole


@settings(deadline=None, max_examples=300)
@given(st.text(st.sampled_from("hello wrd,ab é€😀日")), SIZES)
def test_pieces_are_the_text_with_byte_fallback(text: str, sizes: list[int]) -> None:
    tokens = METASPACE(text, add_special_tokens=False)["input_ids"]
    assert "".join(pieces_of(METASPACE, split(tokens, sizes))) == decode(METASPACE, tokens)


@settings(deadline=None, max_examples=500)
@given(
    st.lists(TOKEN, max_size=40),
    SIZES,
    st.lists(st.sampled_from(STOPS), min_size=1, max_size=3),
)
def test_streamed_and_complete_text_agree_on_stops(tokens: list[int], sizes: list[int], stop: list[str]) -> None:
    # As the engine does: the answer ends at the token that completes a stop string; its text is trimmed.
    condition = StopCondition(SamplingParams(stop=stop), [EOS], TOKENIZER, len(TOKENIZER))
    if tokens:
        tokens = tokens[: int(condition.first_end(torch.tensor([tokens]), lambda: [[]]))]
    text = decode(TOKENIZER, tokens)
    ends = [index for index in (text.find(s) for s in stop) if index >= 0]
    text = text[: min(ends, default=len(text))]
    assert condition.text(tokens) == text
    pieces = pieces_of(TOKENIZER, split(tokens, sizes), stop)
    assert "".join(pieces) == text
    assert not any(s in text for s in stop)


@settings(deadline=None, max_examples=300)
@given(
    st.lists(TOKEN, max_size=40),
    SIZES,
    st.lists(st.sampled_from(STOPS), min_size=1, max_size=3),
    st.integers(0, 20),
    st.booleans(),
)
def test_streamed_and_complete_text_agree_with_every_option(
    tokens: list[int], sizes: list[int], stop: list[str], min_tokens: int, flag: bool
) -> None:
    params = SamplingParams(stop=stop, min_tokens=min_tokens, include_stop_str_in_output=flag, skip_special_tokens=flag)
    condition = StopCondition(params, [EOS], TOKENIZER, len(TOKENIZER))
    if tokens:
        tokens = tokens[: int(condition.first_end(torch.tensor([tokens]), lambda: [[]]))]
    detokenizer = condition.detokenizer()
    assert detokenizer is not None
    pieces = [detokenizer.append(block) for block in split(tokens, sizes)]
    assert "".join([*pieces, detokenizer.flush()]) == condition.text(tokens)
