"""A model's layers in the form the CPU runs fastest.

torch hands a plain weight matrix to a general matrix product at every call; oneDNN, which torch carries, can
keep it reordered for the few-row products decoding consists of. Measured on two AVX2 cores, float32, the layers
of a 1.5B model: 4 rows 119 -> 30 ms, 8 rows 128 -> 41 ms, 72 rows 316 -> 204 ms. Where arithmetic is in float32,
weights stored in bfloat16 stay so, and int8 ones are read as int8: that is what `parspec.kernels` is for.
"""

import torch
from torch import Tensor, nn

from parspec.kernels import linear as kernels

_PACKED_FOR_ROWS = 16
"""Rows the layout is chosen for; measured to serve 1 to 512 rows within noise of a layout made for each."""


class PackedLinear(nn.Module):
    """A linear layer ``x @ W.T + b`` whose weight is held in oneDNN's own layout (CPU, inference only).

    Args:
        linear: The layer to replace.
        weight: Its weight in the number format to run in; only read.
    """

    def __init__(self, linear: nn.Linear, weight: Tensor) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        # Plain attributes, not parameters: a reordered weight cannot be saved, moved or trained.
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_FOR_ROWS)
        self.bias = None if linear.bias is None else linear.bias.detach().to(weight.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[..., in_features]`` to ``[..., out_features]``."""
        output: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return output


class SmallWeightLinear(nn.Module):
    """A linear layer whose weight is read as it is stored, or as int8, and multiplied in float32 (CPU, inference only).

    Args:
        linear: The layer to replace.
        quantization: ``"int8"`` to round its weight.
    """

    def __init__(self, linear: nn.Linear, quantization: str | None) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight, bias = linear.weight.detach(), None if linear.bias is None else linear.bias.detach()
        if weight.dtype not in (torch.bfloat16, torch.float32):
            weight = weight.float()
        self.packed = kernels.pack_rounded(weight, bias) if quantization == "int8" else kernels.pack(weight, None, bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[..., in_features]`` to ``[..., out_features]``, float32."""
        return kernels.linear(x, self.packed)


class StoredEmbedding(nn.Module):
    """An embedding kept as it was stored; only the rows looked up are converted.

    Args:
        embedding: The layer to replace.
        dtype: Number format of the result.
    """

    def __init__(self, embedding: nn.Embedding, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = embedding.weight.detach()
        self.dtype = dtype

    def forward(self, ids: Tensor) -> Tensor:
        """Rows ``[..., D]`` of the ids ``[...]``."""
        return nn.functional.embedding(ids, self.weight).to(self.dtype)


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this machine and torch build can hold weights of this type reordered by oneDNN."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def reads_small_weights(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether linear layers run on `parspec.kernels`, which read weights as they are stored."""
    return device.type == "cpu" and dtype == torch.float32 and kernels.available()


def weight_bytes(stored: torch.dtype, device: torch.device, dtype: torch.dtype, quantization: str | None) -> int:
    """Bytes a weight takes once it is loaded."""
    if reads_small_weights(device, dtype):
        return 1 if quantization == "int8" else min(stored.itemsize, dtype.itemsize)
    return dtype.itemsize


def pack_layers(module: nn.Module, device: torch.device, dtype: torch.dtype, quantization: str | None = None) -> None:
    """Replace every linear layer and embedding below ``module``, one at a time.

    A model stored in another format than it runs in so never exists whole in both.

    Args:
        module: A model as it was stored, on its device.
        device: Where it runs.
        dtype: Number format of activations, and of weights unless they are kept smaller.
        quantization: ``"int8"`` to round the weights of linear layers, None to keep them as they are.
    """
    slots = [(parent, name, child) for parent in module.modules() for name, child in parent.named_children()]
    linears = [child for _, _, child in slots if type(child) is nn.Linear]
    small, onednn = reads_small_weights(device, dtype), can_pack(device, dtype)
    largest = max((linear.weight.numel() for linear in linears), default=0) if onednn and not small else 0
    # One buffer for all conversions: fresh memory for each would cost as long again to be mapped in.
    scratch = torch.empty(largest, dtype=dtype)
    for parent, name, child in slots:
        if type(child) is nn.Embedding and device.type == "cpu":
            setattr(parent, name, StoredEmbedding(child, dtype))
        elif type(child) is nn.Linear:
            setattr(parent, name, _pack_linear(child, dtype, quantization, scratch, small, onednn))


def count_weights(module: nn.Module) -> tuple[int, int]:
    """Number and bytes of the weights all linear layers below ``module`` read in a pass."""
    numbers = bytes_read = 0
    for layer in module.modules():
        if isinstance(layer, SmallWeightLinear):
            weight = layer.packed.data
        elif isinstance(layer, PackedLinear):
            weight = layer.packed
        elif isinstance(layer, nn.Linear):
            weight = layer.weight
        else:
            continue
        numbers += layer.in_features * layer.out_features
        bytes_read += layer.in_features * layer.out_features * weight.dtype.itemsize
    return numbers, bytes_read


def _pack_linear(
    linear: nn.Linear, dtype: torch.dtype, quantization: str | None, scratch: Tensor, small: bool, onednn: bool
) -> nn.Module:
    """The form of one layer that this machine reads with the fewest bytes, and multiplies fastest."""
    if small:
        return SmallWeightLinear(linear, quantization)
    weight = linear.weight.detach()
    if quantization == "int8":
        # The same model, without the speed.
        levels, scale = kernels.quantise(weight)
        weight = (levels * scale[:, None]).to(dtype)
        linear.weight = nn.Parameter(weight, requires_grad=False)
    if not onednn:
        return linear
    converted = scratch[: weight.numel()].view(weight.shape)
    converted.copy_(weight)
    return PackedLinear(linear, converted)
