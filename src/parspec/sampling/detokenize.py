"""From token ids to text, at once or as they become final."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def decode(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int]) -> str:
    """The text of an answer, without special tokens and without any beautifying of spaces."""
    return str(
        tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    )


def find_stop(text: str, stop: Sequence[str]) -> int | None:
    """Index at which the earliest stop string begins, or None."""
    found = [index for index in (text.find(s) for s in stop) if index >= 0]
    return min(found) if found else None


class Detokenizer:
    """Turns final tokens into text that never changes: all pieces joined are the text of the whole answer.

    Held back are the bytes of a character whose rest is still to come, and text that may turn out to be the
    beginning of a stop string.

    Args:
        tokenizer: Of the model.
        stop: Strings that end the answer and are not part of it.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop = stop
        self._token_ids: list[int] = []
        self._emitted = 0

    def append(self, token_ids: Sequence[int]) -> str:
        """Take final tokens, return the text that has become final."""
        if not token_ids:
            return ""
        self._token_ids += token_ids
        # Decoding afresh keeps this exact for every tokenizer; it costs about a microsecond a token.
        text = decode(self._tokenizer, self._token_ids)
        end = find_stop(text, self._stop)
        if end is None:
            text = text.rstrip(_REPLACEMENT)
            end = len(text) - self._possible_stop(text)
        return self._emit(text, end)

    def flush(self) -> str:
        """The rest, once the answer is complete."""
        text = decode(self._tokenizer, self._token_ids)
        end = find_stop(text, self._stop)
        return self._emit(text, len(text) if end is None else end)

    def _emit(self, text: str, end: int) -> str:
        piece = text[self._emitted : end]
        self._emitted = max(self._emitted, end)
        return piece

    def _possible_stop(self, text: str) -> int:
        """Length of the longest end of the text that begins a stop string."""
        return max(
            (n for s in self._stop for n in range(1, min(len(s), len(text) + 1)) if text.endswith(s[:n])), default=0
        )
