"""Tiny random models in the layout of transformers, for tests of everything around a model."""

from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from tests.support.tokenizers import IM_END, IM_START, byte_bpe_tokenizer

CHAT_TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool.function.name }}\n{% endfor %}"
    "{% for message in messages %}" + IM_START + "{{ message.role }}\n{{ message.content }}" + IM_END + "\n"
    "{% for call in message.tool_calls or [] %}"
    "{{ call.function.name }} {{ call.function.arguments | tojson }}{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}" + IM_START + "assistant\n{% endif %}"
)


class Pair(NamedTuple):
    """Folders of a target and a draft with one tokenizer."""

    target: Path
    draft: Path


def make_folder(
    path: Path,
    *,
    seed: int,
    vocab_size: int = 300,
    tokenizer: PreTrainedTokenizerBase | None = None,
    eos_ids: list[int] | None = None,
    hidden: int = 16,
    layers: int = 1,
    heads: int = 2,
    context: int = 512,
) -> Path:
    """Save a random Llama model.

    Args:
        path: Folder to make.
        seed: Of the weights.
        vocab_size: Rows of the vocabulary; more than the tokenizer's ids are padding.
        tokenizer: Saved along if given.
        eos_ids: Of the generation config; by default the tokenizer's. Ids of padding rows are never drawn.
        hidden: Width.
        layers: Number of layers.
        heads: Attention heads.
        context: Longest context in tokens.

    Returns:
        The folder.
    """
    if eos_ids is None:
        eos_ids = [] if tokenizer is None else [tokenizer.eos_token_id]
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=1,
        max_position_embeddings=context,
        bos_token_id=None,
        eos_token_id=eos_ids or None,
        # Wide enough that the next token is neither certain nor uniform.
        initializer_range=0.3,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=eos_ids or None)
    model.save_pretrained(path)
    if tokenizer is not None:
        tokenizer.save_pretrained(path)
    return path


def chat_tokenizer() -> PreTrainedTokenizerBase:
    """The byte-level tokenizer with a chat template."""
    tokenizer = byte_bpe_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


@pytest.fixture(scope="session")
def tiny_pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A chat model and its draft, of 300 and 304 vocabulary rows; answers end by chance or at max_tokens."""
    root = tmp_path_factory.mktemp("pair")
    tokenizer = chat_tokenizer()
    return Pair(
        make_folder(root / "target", seed=1, tokenizer=tokenizer),
        make_folder(root / "draft", seed=2, tokenizer=tokenizer, vocab_size=304),
    )


@pytest.fixture(scope="session")
def endless_pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The same, but nothing the models can say ends an answer, and their context is long."""
    root = tmp_path_factory.mktemp("endless")
    tokenizer = chat_tokenizer()
    return Pair(
        make_folder(root / "target", seed=1, tokenizer=tokenizer, eos_ids=[299], context=100_000),
        make_folder(root / "draft", seed=2, tokenizer=tokenizer, eos_ids=[299], context=100_000),
    )
