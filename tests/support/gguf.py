"""A GGUF file built in code: a random one-layer Qwen2 with a byte-level tokenizer."""

from pathlib import Path

import gguf
import numpy as np

from tests.support.tokenizers import byte_bpe_tokenizer

CHAT_TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
ROPE_THETA = 12345.0
_NORMAL, _CONTROL = 1, 3


def make_gguf(path: Path, *, tied: bool = False) -> Path:
    """Write it, its matrices in Q8_0 as a published file would have them quantised.

    Args:
        path: File to write.
        tied: Whether the output matrix is the embedding; then there is no ``output.weight``.

    Returns:
        The file.
    """
    tokenizer = byte_bpe_tokenizer()
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    special = tokenizer.get_added_vocab()
    hidden, inner, heads, head_size = 32, 64, 2, 16
    writer = gguf.GGUFWriter(str(path), "qwen2")
    writer.add_context_length(128)
    writer.add_embedding_length(hidden)
    writer.add_block_count(1)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(1)
    writer.add_rope_freq_base(ROPE_THETA)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([_CONTROL if token in special else _NORMAL for token in tokens])
    writer.add_token_merges(["h e", "l l"])
    writer.add_eos_token_id(special["<|im_end|>"])
    writer.add_pad_token_id(special["<|endoftext|>"])
    writer.add_chat_template(CHAT_TEMPLATE)
    matrices = {
        "token_embd": (len(tokens), hidden),
        "blk.0.attn_q": (hidden, hidden),
        "blk.0.attn_k": (head_size, hidden),
        "blk.0.attn_v": (head_size, hidden),
        "blk.0.attn_output": (hidden, hidden),
        "blk.0.ffn_gate": (inner, hidden),
        "blk.0.ffn_up": (inner, hidden),
        "blk.0.ffn_down": (hidden, inner),
    }
    if not tied:
        matrices["output"] = (len(tokens), hidden)
    draw = np.random.default_rng(0)
    kind = gguf.GGMLQuantizationType.Q8_0
    for name, shape in matrices.items():
        values = 0.3 * draw.standard_normal(shape, dtype=np.float32)
        writer.add_tensor(f"{name}.weight", gguf.quants.quantize(values, kind), raw_dtype=kind)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(hidden, dtype=np.float32))
    for name, size in (("q", hidden), ("k", head_size), ("v", head_size)):
        writer.add_tensor(f"blk.0.attn_{name}.bias", draw.standard_normal(size, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
