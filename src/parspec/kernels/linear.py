"""Linear layers with small weights and float32 arithmetic, as functions on tensors."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from parspec.kernels.library import kernels, library

_BLOCK = 16
_ALIGNMENT = 64
_FORMATS = {torch.int8: 0, torch.bfloat16: 1, torch.float32: 2}


class LinearStruct(ctypes.Structure):
    """``Linear`` of linear.hpp."""

    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("scale", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("format", ctypes.c_int64),
    )


@dataclass(frozen=True)
class PackedLinear:
    """A linear layer whose weight ``[N, K]`` lies in the order the kernels read it.

    Attributes:
        data: The reordered weight: int8, bfloat16 or float32.
        scale: ``[N]`` float32, what an output of an int8 weight is multiplied with; None for the others.
        bias: ``[N]`` float32, or None.
        num_outputs: N.
        num_inputs: K.
        struct: The same for C++; points into the tensors above.
    """

    data: Tensor
    scale: Tensor | None
    bias: Tensor | None
    num_outputs: int
    num_inputs: int
    struct: LinearStruct


def available() -> bool:
    """Whether this machine has the kernels."""
    return library() is not None


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round a weight to int8, with one scale for each output.

    Args:
        weight: ``[N, K]``, any float format.

    Returns:
        ``[N, K]`` int8 in -127..127 and the scales ``[N]`` float32.
    """
    weight = weight.float()
    scale = weight.abs().amax(1).clamp_min_(torch.finfo(torch.float32).tiny) / 127
    return (weight / scale[:, None]).round_().to(torch.int8), scale


def pack(weight: Tensor, scale: Tensor | None = None, bias: Tensor | None = None) -> PackedLinear:
    """Reorder a weight.

    Args:
        weight: ``[N, K]``, bfloat16 or float32, or int8 with its scales.
        scale: ``[N]``, for int8.
        bias: ``[N]``, or None.
    """
    data = _packed_like(weight.shape, weight.dtype)
    source, code = weight.contiguous(), _FORMATS[weight.dtype]
    kernels().parspec_pack(source.data_ptr(), *weight.shape, code, data.data_ptr(), torch.get_num_threads())
    return _packed_linear(data, weight.shape, scale, bias)


def pack_rounded(weight: Tensor, bias: Tensor | None = None) -> PackedLinear:
    """What ``pack(*quantise(weight), bias)`` gives, in one pass over the weight.

    Args:
        weight: ``[N, K]``, bfloat16 or float32.
        bias: ``[N]``, or None.
    """
    data, scale = _packed_like(weight.shape, torch.int8), torch.empty(len(weight))
    source, code = weight.contiguous(), _FORMATS[weight.dtype]
    kernels().parspec_pack_rounded(
        source.data_ptr(), *weight.shape, code, data.data_ptr(), scale.data_ptr(), torch.get_num_threads()
    )
    return _packed_linear(data, weight.shape, scale, bias)


def _packed_like(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Room for a packed weight: outputs in whole blocks, int8 inputs in pairs."""
    rows, columns = shape
    even = columns + columns % 2 if dtype == torch.int8 else columns
    return _aligned(-(-rows // _BLOCK) * _BLOCK * even, dtype)


def _packed_linear(data: Tensor, shape: Sequence[int], scale: Tensor | None, bias: Tensor | None) -> PackedLinear:
    rows, columns = shape
    scale, bias = (None if part is None else part.float().contiguous() for part in (scale, bias))
    struct = LinearStruct(data.data_ptr(), address(scale), address(bias), rows, columns, _FORMATS[data.dtype])
    return PackedLinear(data, scale, bias, rows, columns, struct)


def linear(x: Tensor, layer: PackedLinear) -> Tensor:
    """``x @ W.T + bias`` in float32.

    Args:
        x: ``[..., K]`` float32.
        layer: Packed ``[N, K]``.

    Returns:
        ``[..., N]`` float32.
    """
    assert x.shape[-1] == layer.num_inputs
    assert x.dtype == torch.float32
    x = x.contiguous()
    y = torch.empty(*x.shape[:-1], layer.num_outputs)
    rows = x.numel() // layer.num_inputs
    if rows:
        threads = torch.get_num_threads()
        kernels().parspec_linear(ctypes.addressof(layer.struct), x.data_ptr(), rows, y.data_ptr(), threads)
    return y


def address(tensor: Tensor | None) -> int | None:
    """Where a tensor's numbers lie; None for None, which C++ sees as a null pointer."""
    return None if tensor is None else tensor.data_ptr()


def _aligned(count: int, dtype: torch.dtype) -> Tensor:
    """Memory for ``count`` numbers that begins at a cache line."""
    spare = _ALIGNMENT // dtype.itemsize
    data = torch.empty(count + spare, dtype=dtype)
    offset = -data.data_ptr() % _ALIGNMENT // dtype.itemsize
    return data[offset : offset + count]
