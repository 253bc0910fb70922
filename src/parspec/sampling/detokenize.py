"""From token ids to text, at once or as they become final."""

from collections.abc import Collection, Sequence

from transformers import PreTrainedTokenizerBase

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""What tokenizers decode bytes to that are no character, or not yet."""


def decode(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int], skip_special: bool = True) -> str:
    """The text of an answer, without special tokens unless wanted, and without any beautifying of spaces."""
    text = tokenizer.decode(list(token_ids), skip_special_tokens=skip_special, clean_up_tokenization_spaces=False)
    return str(text)


def find_stop(text: str, stop: Sequence[str], after: int = 0) -> tuple[int, int] | None:
    """Where the earliest stop string begins and ends, or None.

    Args:
        text: The text.
        stop: The stop strings.
        after: Stop strings count only if they end behind this index.
    """
    found = [(text.find(s, max(0, after + 1 - len(s))), len(s)) for s in stop]
    return min(((start, start + length) for start, length in found if start >= 0), default=None)


class Detokenizer:
    """Turns final tokens into text that never changes: all pieces joined are the text of the whole answer.

    Held back are the bytes of a character whose rest is still to come, and text that may turn out to be the
    beginning of a stop string. What comes after a stop string is ignored. Only a window of recent tokens is
    decoded at a time: an answer's cost grows with its length, not with the square of it.

    One exception: a tokenizer that falls back to single bytes can turn characters already given out into
    replacement characters if broken bytes follow them directly; what was given out then stays.

    Args:
        tokenizer: Of the model.
        stop: Strings that end the answer.
        silent_ids: Tokens without text: those that end the answer.
        include_stop: Whether the text keeps the stop string.
        skip_special: Whether special tokens have no text.
        min_tokens: Tokens within whose text no stop string counts.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        stop: Sequence[str] = (),
        *,
        silent_ids: Collection[int] = (),
        include_stop: bool = False,
        skip_special: bool = True,
        min_tokens: int = 0,
    ) -> None:
        self._tokenizer = tokenizer
        self._stop = stop
        self._silent_ids = silent_ids
        self._include_stop = include_stop
        self._skip_special = skip_special
        self._num_early = min_tokens  # tokens still to come within which no stop string counts
        self._early = 0  # characters at the beginning of what is held that belong to such tokens
        self._window: list[int] = []
        self._num_settled = 0  # tokens at the window's start whose text is complete
        self._num_taken = 0  # characters of the window's text already taken over
        self._held = ""  # text taken over but not given out yet
        self._stopped = False

    def append(self, token_ids: Sequence[int]) -> str:
        """Take final tokens, return the text that has become final."""
        early = self._num_early
        if 0 < early < len(token_ids):
            return self.append(token_ids[:early]) + self.append(token_ids[early:])
        if self._stopped or not token_ids:
            return ""
        self._window += [token for token in token_ids if token not in self._silent_ids]
        text = self._decode(self._window)
        # The bytes of an unfinished character decode to replacement characters at the end.
        complete = text.rstrip(REPLACEMENT)
        self._take(complete)
        if complete == text:
            self._shorten_window()
        if self._num_early:
            self._num_early -= min(self._num_early, len(token_ids))
            self._early = len(self._held)
        return self._give(len(self._held) - self._possible_stop())

    def flush(self) -> str:
        """The rest, once the answer is complete."""
        if self._stopped:
            return ""
        self._take(self._decode(self._window))
        return self._give(len(self._held))

    def _decode(self, token_ids: Sequence[int]) -> str:
        return decode(self._tokenizer, token_ids, self._skip_special)

    def _take(self, text: str) -> None:
        """Take over the new characters of the window's text, and see whether they complete a stop string."""
        self._held += text[self._num_taken :]
        self._num_taken = max(self._num_taken, len(text))
        # Nothing that may begin a stop string is ever given out, so that one can only be in what is held.
        found = None if self._num_early else find_stop(self._held, self._stop, self._early)
        if found is not None:
            self._held, self._stopped = self._held[: found[self._include_stop]], True

    def _give(self, end: int) -> str:
        piece, self._held = self._held[:end], self._held[end:]
        self._early = max(0, self._early - end)
        return piece

    def _shorten_window(self) -> None:
        """Drop the tokens before the newest, all of whose text has been taken over."""
        # The newest stay, as some tokenizers drop a text's first space: the next ones need a text to follow.
        newest = self._window[self._num_settled :]
        text = self._decode(newest)
        if text:
            self._window, self._num_taken = newest, len(text)
        self._num_settled = len(self._window)

    def _possible_stop(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        if self._stopped:
            return 0
        longest = max((len(s) - 1 for s in self._stop), default=0)
        for length in range(min(longest, len(self._held)), 0, -1):
            if any(s.startswith(self._held[-length:]) for s in self._stop):
                return length
        return 0
