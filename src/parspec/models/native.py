"""The Llama family in a single C++ call a pass, for CPUs: transformers loads the model, `parspec.kernels` runs it.

One step of a small draft takes about as long in its weights as in the two thousand torch calls between them
(measured, 0.5B, 4 rows: 36 ms of linear layers, 34 ms of everything else); in one call the rest takes 2 ms.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from parspec.kernels.decoder import Decoder, DecoderLayer, TokenGroup
from parspec.kernels.linear import PackedLinear
from parspec.models.cache import GroupCache
from parspec.models.interface import Forward
from parspec.models.layers import SmallWeightLinear
from parspec.models.support import head_dim

_FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
_MAX_TOKENS = 512
"""Tokens of a pass: intermediate results of more would leave the processor's caches."""


class NativeDecoder:
    """Runs what `TransformersModel` runs, without its modules.

    Args:
        model: A model for which `can_run_natively` holds.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        config: Any = model.config
        body: Any = model.model
        self._embed = body.embed_tokens
        self._rotary = body.rotary_emb
        self._decoder = Decoder(
            [_layer(layer) for layer in body.layers],
            _numbers(body.norm),
            _packed(model.lm_head),
            num_heads=config.num_attention_heads,
            num_key_heads=config.num_key_value_heads,
            dim=body.layers[0].self_attn.head_dim,
            epsilon=config.rms_norm_eps,
        )

    def forward(self, requests: Sequence[Forward]) -> list[Tensor]:
        """Run all requests; caches are written but not advanced.

        Returns:
            For each request logits ``[R, num_logits, V]`` float32.
        """
        parts: list[tuple[Forward, int]] = []
        for request in requests:
            starts = list(_chunks(request))
            for start, end in starts[:-1]:
                self._run([(request, start, end, 0)])
            parts.append((request, starts[-1][0]))
        logits = self._run([(request, start, request.tokens.shape[1], request.num_logits) for request, start in parts])
        counts = [request.tokens.shape[0] * request.num_logits for request in requests]
        return [
            part.view(*request.tokens.shape[:1], request.num_logits, self._decoder.num_outputs)
            for part, request in zip(logits.split(counts), requests, strict=True)
        ]

    def _run(self, parts: Sequence[tuple[Forward, int, int, int]]) -> Tensor:
        """Run the tokens ``start`` to ``end`` of some requests, with logits for so many of the last."""
        tokens = torch.cat([request.tokens[:, start:end].reshape(-1) for request, start, end, _ in parts])
        positions = torch.cat(
            [
                torch.arange(request.cache.length + start, request.cache.length + end).repeat(len(request.tokens))
                for request, start, end, _ in parts
            ]
        )
        embeddings = self._embed(tokens)
        cosine, sine = self._rotary(embeddings[None], positions[None])
        groups = [_group(request, start, end, num_logits) for request, start, end, num_logits in parts]
        return self._decoder.decode(groups, embeddings, cosine[0], sine[0])


def can_run_natively(model: PreTrainedModel) -> bool:
    """Whether a model, its layers packed, is of the form the kernels run."""
    config: Any = model.config
    if config.model_type not in _FAMILIES or getattr(config, "hidden_act", None) != "silu":
        return False
    linears = [module for module in model.modules() if isinstance(module, nn.Linear | SmallWeightLinear)]
    packed = bool(linears) and all(isinstance(module, SmallWeightLinear) for module in linears)
    return packed and head_dim(config) % 8 == 0 and config.num_attention_heads % config.num_key_value_heads == 0


def _chunks(request: Forward) -> Iterator[tuple[int, int]]:
    """Stretches of a request's tokens that run as one pass each; logits are only wanted of the last."""
    num_new = request.tokens.shape[1]
    if not request.into_trunk:
        yield 0, num_new
        return
    # The last stretch holds all positions whose logits are wanted.
    start = 0
    while num_new - start > max(_MAX_TOKENS, request.num_logits):
        end = min(start + _MAX_TOKENS, num_new - request.num_logits)
        yield start, end
        start = end
    yield start, num_new


def _group(request: Forward, start: int, end: int, num_logits: int) -> TokenGroup:
    cache: GroupCache = request.cache
    return TokenGroup(
        rows=len(request.tokens),
        num_new=end - start,
        num_logits=num_logits,
        into_trunk=request.into_trunk,
        trunk=cache.trunk,
        branches=cache.branches,
        trunk_length=cache.trunk_length + start,
        branch_length=cache.branch_length,
    )


def _layer(layer: Any) -> DecoderLayer:
    attention, mlp = layer.self_attn, layer.mlp
    return DecoderLayer(
        input_norm=_numbers(layer.input_layernorm),
        attention_norm=_numbers(layer.post_attention_layernorm),
        query_norm=_numbers(attention.q_norm) if hasattr(attention, "q_norm") else None,
        key_norm=_numbers(attention.k_norm) if hasattr(attention, "k_norm") else None,
        query=_packed(attention.q_proj),
        key=_packed(attention.k_proj),
        value=_packed(attention.v_proj),
        output=_packed(attention.o_proj),
        gate=_packed(mlp.gate_proj),
        up=_packed(mlp.up_proj),
        down=_packed(mlp.down_proj),
    )


def _packed(module: Any) -> PackedLinear:
    packed: PackedLinear = module.packed
    return packed


def _numbers(norm: Any) -> Tensor:
    weight: Tensor = norm.weight
    return weight.detach().float().contiguous()
