"""A transformers causal model behind the LanguageModel interface: its modules, our attention and cache.

On a CPU the Llama family skips the modules (`models/native.py`).

The tokens of all requests run as one flat row through the model, so that every weight is read once a pass.
Only attention needs to know which group a token belongs to; transformers hands it over to us through its
AttentionInterface, together with the pass (``parspec_pass``) that knows.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedConfig, PreTrainedModel

from parspec.errors import ModelError
from parspec.models.cache import CacheShape
from parspec.models.interface import Forward
from parspec.models.layers import count_weights, pack_layers
from parspec.models.native import NativeDecoder, can_run_natively
from parspec.models.support import PROVEN_FAMILIES, head_dim

ATTENTION = "parspec"

_UNSERVED_ARGUMENTS = ("softcap", "s_aux", "position_bias")
"""Arguments some models give their attention that ours does not implement."""


class TransformersModel:
    """Runs a transformers causal language model for many groups at once.

    Args:
        model: Loaded with ``attn_implementation=ATTENTION``, in evaluation mode, on its device; taken over.
        name: What to call it in errors.
        max_positions: Longest context served.
        dtype: Number format to run in, which need not be the one it was stored in.
        quantization: ``"int8"`` to round its weights, None to keep them as they are.

    Attributes:
        num_weights: Weights a pass over one token reads; the rows of the embedding aside.
        weight_bytes: Bytes of these: what the fastest possible pass has to read.

    Raises:
        ModelError: The model's attention does something the trunk-and-branch cache cannot reproduce.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        name: str,
        max_positions: int,
        dtype: torch.dtype,
        quantization: str | None = None,
    ) -> None:
        self.name = name
        self.max_positions = max_positions
        self.vocab_size: int = model.config.vocab_size
        self.cache_shape = _cache_shape(model, dtype)
        self._model = model
        self._native: NativeDecoder | None = None
        if model.config.model_type not in PROVEN_FAMILIES:
            _cast_parameters(model, dtype)
            self._check_against_own_attention()
        pack_layers(model, model.device, dtype, quantization)
        _cast_parameters(model, dtype)
        self.num_weights, self.weight_bytes = count_weights(model)
        if can_run_natively(model):
            self._native = NativeDecoder(model)

    @property
    def device(self) -> torch.device:
        """Where the model's inputs must be."""
        return self.cache_shape.device

    @torch.inference_mode()
    def forward(self, requests: Sequence[Forward]) -> list[Tensor]:
        """Run all requests in one pass and advance their caches.

        Args:
            requests: At least one; their tokens may have any shapes.

        Returns:
            For each request logits ``[R, num_logits, V]`` in the model's number format.
        """
        for request in requests:
            request.cache.check_room(request.tokens.shape[1], request.into_trunk)
        logits = self._run_modules(requests) if self._native is None else self._native.forward(requests)
        for request in requests:
            request.cache.advance(request.tokens.shape[1], request.into_trunk)
        return logits

    def _run_modules(self, requests: Sequence[Forward]) -> list[Tensor]:
        """Run all requests through transformers' modules."""
        tokens = torch.cat([request.tokens.reshape(-1) for request in requests])
        positions = torch.cat([_positions(request) for request in requests])
        wanted = _wanted_rows(requests)
        output = self._model(
            input_ids=tokens[None],
            position_ids=positions[None],
            use_cache=False,
            logits_to_keep=wanted,
            parspec_pass=_Pass(requests),
        )
        shapes = [(request.tokens.shape[0], request.num_logits) for request in requests]
        parts = output.logits[0].split([rows * count for rows, count in shapes])
        return [part.view(rows, count, self.vocab_size) for part, (rows, count) in zip(parts, shapes, strict=True)]

    @torch.inference_mode()
    def _check_against_own_attention(self) -> None:
        """Refuse a model whose attention is more than softmax over keys: compare with its own on a few tokens."""
        from parspec.models.cache import GroupCache

        count = min(12, self.max_positions)
        generator = torch.Generator().manual_seed(0)
        tokens = torch.randint(self.vocab_size, (1, count), generator=generator).to(self.device)
        model = self._model
        self_check = f'model "{self.name}" ({model.config.model_type}) cannot be served exactly'
        try:
            model.set_attn_implementation("eager")
            expected = model(input_ids=tokens, use_cache=False).logits[0].float()
            model.set_attn_implementation(ATTENTION)
            cache = GroupCache(self.cache_shape, 1, count, count)
            first = self.forward([Forward(self, cache, tokens[:, : count // 2], count // 2, into_trunk=True)])[0]
            second = self.forward([Forward(self, cache, tokens[:, count // 2 :], count - count // 2)])[0]
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(f"{self_check} ({type(error).__name__}: {error}): use another model") from error
        actual = torch.cat([first[0], second[0]]).float()
        error_size = (actual - expected).abs().max() / expected.abs().max().clamp_min(1e-6)
        if not error_size < (1e-3 if self.cache_shape.dtype == torch.float32 else 5e-2):
            raise ModelError(
                f"{self_check}: logits differ from its own attention's by {error_size:.1%}: use another model"
            )


class _Pass:
    """Which group each token of one flat forward pass belongs to."""

    def __init__(self, requests: Sequence[Forward]) -> None:
        self.requests = requests

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Attend for every request over its own cache.

        Args:
            layer: Layer index.
            query: ``[M, Hq, D]``, all requests' tokens in a row.
            key: ``[M, H, D]``; value likewise.
            value: See key.
            scale: Factor on the scores.

        Returns:
            ``[M, Hq, D]``.
        """
        output = torch.empty_like(query)
        start = 0
        for request in self.requests:
            rows, num_new = request.tokens.shape
            end = start + rows * num_new
            cache = request.cache
            attend = cache.attend_trunk if request.into_trunk else cache.attend_branches
            q, k, v = (part[start:end].unflatten(0, (rows, num_new)) for part in (query, key, value))
            output[start:end] = attend(layer, q, k, v, scale).flatten(0, 1)
            start = end
        return output


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    parspec_pass: _Pass | None = None,
    **arguments: Any,
) -> tuple[Tensor, None]:
    """The function transformers calls in place of its own attention (query ``[1, Hq, M, D]``)."""
    unserved = [name for name in _UNSERVED_ARGUMENTS if arguments.get(name) is not None]
    if parspec_pass is None or unserved:
        what = f"attention with {', '.join(unserved)}" if unserved else "attention that hides its arguments"
        raise ModelError(f"{type(module).__name__} uses {what}, which parspec cannot serve: use another model")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    q, k, v = (part[0].transpose(0, 1) for part in (query, key, value))
    output = parspec_pass.attend(int(module.layer_idx), q, k, v, scale)  # type: ignore[arg-type]
    return output[None], None


AttentionInterface.register(ATTENTION, _attention)


def _cast_parameters(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Change the format of the weights, but not of buffers: rotary frequencies must stay float32."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)


def _cache_shape(model: PreTrainedModel, dtype: torch.dtype) -> CacheShape:
    """Read the sizes of a cached position off the configuration."""
    config: PreTrainedConfig = model.config
    return CacheShape(
        num_layers=config.num_hidden_layers,
        num_heads=getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
        head_dim=head_dim(config),
        dtype=dtype,
        device=model.device,
    )


def _positions(request: Forward) -> Tensor:
    """Positions ``[R * T]`` of a request's tokens."""
    rows, num_new = request.tokens.shape
    start = request.cache.length
    return torch.arange(start, start + num_new, device=request.tokens.device).repeat(rows)


def _wanted_rows(requests: Sequence[Forward]) -> Tensor:
    """Indices into the flat row of tokens whose logits are wanted."""
    wanted, start = [], 0
    for request in requests:
        rows, num_new = request.tokens.shape
        indices = torch.arange(start, start + rows * num_new).view(rows, num_new)
        wanted.append(indices[:, num_new - request.num_logits :].reshape(-1))
        start += rows * num_new
    return torch.cat(wanted).to(requests[0].tokens.device)
