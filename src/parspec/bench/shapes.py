"""Models of any shape with random weights: their speed is real, their text is not."""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, Qwen2Config

from parspec.errors import InvalidRequestError
from parspec.models.device import free_memory
from parspec.models.layers import pack_layers, weight_bytes
from parspec.models.loader import LoadedModel
from parspec.models.support import head_dim
from parspec.models.transformers_model import ATTENTION, TransformersModel

_CONTEXT = 4096
_MEMORY_SHARE = 0.75
"""Of the free memory; the rest is for caches and what a pass needs."""
_CPU, _DTYPE = torch.device("cpu"), torch.float32


def _sizes(vocab: int, hidden: int, inner: int, layers: int, heads: int, key_heads: int) -> dict[str, Any]:
    return {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "max_position_embeddings": _CONTEXT,
    }


def _llama(*sizes: int, head_dim: int = 128) -> LlamaConfig:
    return LlamaConfig(**_sizes(128256, *sizes), head_dim=head_dim)


def _qwen(*sizes: int, vocab: int = 152064) -> Qwen2Config:
    return Qwen2Config(**_sizes(vocab, *sizes))


# As published in the models' config.json: Llama 3.1 and 3.2, Qwen 2.5.
_SHAPES = {
    "llama-1b": lambda: _llama(2048, 8192, 16, 32, 8, head_dim=64),
    "llama-3b": lambda: _llama(3072, 8192, 28, 24, 8),
    "llama-8b": lambda: _llama(4096, 14336, 32, 32, 8),
    "llama-70b": lambda: _llama(8192, 28672, 80, 64, 8),
    "qwen-0.5b": lambda: _qwen(896, 4864, 24, 14, 2, vocab=151936),
    "qwen-1.5b": lambda: _qwen(1536, 8960, 28, 12, 2, vocab=151936),
    "qwen-3b": lambda: _qwen(2048, 11008, 36, 16, 2, vocab=151936),
    "qwen-7b": lambda: _qwen(3584, 18944, 28, 28, 4),
    "qwen-14b": lambda: _qwen(5120, 13824, 48, 40, 8),
    "qwen-32b": lambda: _qwen(5120, 27648, 64, 40, 8),
}


def parse_shapes(text: str) -> tuple[str, str]:
    """Take ``TARGET:DRAFT`` apart.

    Raises:
        InvalidRequestError: It is not of this form, or a shape is unknown.
    """
    names = text.split(":")
    if len(names) != 2:
        raise InvalidRequestError(f'shape "{text}" is not TARGET:DRAFT, such as llama-70b:llama-1b')
    for name in names:
        shape_config(name)
    return names[0], names[1]


def shape_config(name: str) -> PreTrainedConfig:
    """The configuration of a named shape, or of a folder with a config.json.

    Raises:
        InvalidRequestError: There is no such shape or folder.
    """
    if name in _SHAPES:
        return _SHAPES[name]()
    if (Path(name) / "config.json").exists():
        config: PreTrainedConfig = AutoConfig.from_pretrained(name, local_files_only=True)
        return config
    raise InvalidRequestError(f'shape "{name}" is unknown: use {", ".join(_SHAPES)}, or a folder with a config.json')


def shaped_pair(
    target: str, draft: str, quantization: str | None, draft_quantization: str | None
) -> tuple[LoadedModel, LoadedModel]:
    """Two models of given shapes and one vocabulary, with random weights.

    If they do not fit into memory, both lose the same share of their layers: the ratio of their sizes, on which
    the method's gain depends, stays. The names then say how many layers are left.
    """
    configs: list[Any] = [shape_config(target), shape_config(draft)]
    formats = (quantization, draft_quantization)
    vocab = min(config.vocab_size for config in configs)
    for config in configs:
        config.vocab_size = vocab
        config.bos_token_id = config.eos_token_id = config.pad_token_id = None
    free = _MEMORY_SHARE * free_memory(_CPU)
    share = 1.0
    while sum(_bytes(c, q, share) for c, q in zip(configs, formats, strict=True)) > free and share > 0.02:
        share *= 0.95
    pair = []
    for name, config, rounded in zip((target, draft), configs, formats, strict=True):
        layers = config.num_hidden_layers
        config.num_hidden_layers = max(1, int(layers * share))
        label = name if config.num_hidden_layers == layers else f"{name}, {config.num_hidden_layers} of {layers} layers"
        pair.append(LoadedModel(label, random_model(config, label, rounded), None, ()))
    return pair[0], pair[1]


def _bytes(config: Any, quantization: str | None, share: float) -> float:
    """Bytes of a model that keeps a share of its layers."""
    attention = config.hidden_size * head_dim(config) * 2 * (config.num_attention_heads + config.num_key_value_heads)
    layer = attention + 3 * config.hidden_size * config.intermediate_size
    embedding = config.vocab_size * config.hidden_size
    per_weight = weight_bytes(torch.bfloat16, _CPU, _DTYPE, quantization)
    return float((layer * config.num_hidden_layers * share + embedding) * per_weight + 2 * embedding)


def random_model(config: PreTrainedConfig, name: str, quantization: str | None) -> TransformersModel:
    """A model with random weights, made and packed layer by layer so that it never exists in two forms."""
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION, dtype=torch.bfloat16)
    model.eval()
    generator = torch.Generator().manual_seed(0)
    for part in (*model.model.layers, model.model.norm, model.model.embed_tokens, model):
        for module in part.modules():
            if any(parameter.is_meta for parameter in module.parameters(recurse=False)):
                _fill(module, generator)
        pack_layers(part, _CPU, _DTYPE, quantization)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return TransformersModel(model, name, _CONTEXT, _DTYPE, quantization)


def _fill(module: nn.Module, generator: torch.Generator) -> None:
    """Give a module that has none weights of a size that keeps activations near 1."""
    module.to_empty(device="cpu", recurse=False)
    for parameter in module.parameters(recurse=False):
        parameter.requires_grad_(False)
        if parameter.dim() == 1:
            parameter.fill_(0.0 if isinstance(module, nn.Linear) else 1.0)
        else:
            # Uniform over a few levels is as good as any distribution here, and the fastest to draw.
            levels = torch.randint(-127, 128, parameter.shape, dtype=torch.int8, generator=generator)
            parameter.copy_(levels)
            parameter.mul_(1 / (73 * parameter.shape[1] ** 0.5))
