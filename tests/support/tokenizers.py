"""Small tokenizers built in code: nothing is read from disk or fetched."""

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

END_OF_TEXT = "<|endoftext|>"
IM_START = "<|im_start|>"
IM_END = "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, IM_START, IM_END)

# Spelled in the byte alphabet of GPT-2: "Ġ" is the space, "Ċ" the newline, "Ã©" the two bytes of "é". Some
# put borders inside characters: half an emoji, and the end of one character with a letter behind it.
_MERGES = (
    "h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld", "S T", "O P", "ST OP", "T O",
    "E N", "EN D", "Ċ Ċ", "a b", "ab c", "b c", "c d", "Ġ Ġ", "Ã ©", "© x", "ð Ł", "Ģ a",
)  # fmt: skip


def byte_bpe_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer such as Qwen's: ids 0 to 255 are the bytes, the specials come last."""
    alphabet = _byte_alphabet()
    merges = [(left, right) for left, right in (merge.split() for merge in _MERGES)]
    vocabulary = {token: index for index, token in enumerate([*alphabet, *(left + right for left, right in merges)])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=IM_END, pad_token=END_OF_TEXT)


def metaspace_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer such as Llama 2's: "▁" for spaces, the first one dropped, bytes for rare characters."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", *"helowrdab,", "▁▁"]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    backend = Tokenizer(models.BPE(vocabulary, [("▁", "▁")], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def _byte_alphabet() -> list[str]:
    """The 256 characters that stand for bytes, in the order of the bytes (GPT-2's table)."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [byte for byte in range(256) if byte not in printable]
    stands_for = {byte: byte for byte in printable} | {byte: 256 + n for n, byte in enumerate(others)}
    return [chr(stands_for[byte]) for byte in range(256)]


def letters_tokenizer(letters: str) -> PreTrainedTokenizerFast:
    """Id 0 ends a text, the others are one letter each."""
    vocabulary = {END_OF_TEXT: 0} | {letter: index for index, letter in enumerate(letters, start=1)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END_OF_TEXT)
