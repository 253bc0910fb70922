"""Log-probabilities of a large vocabulary, the threshold of top-p, and draws, on the CPU."""

import torch
from torch import Tensor

from parspec.kernels.library import kernels, library


def serves(tensor: Tensor) -> bool:
    """Whether these kernels take a tensor: float32 on the CPU, rows of equal distance."""
    return (
        tensor.device.type == "cpu"
        and tensor.dtype == torch.float32
        and tensor.numel() > 0
        and tensor.stride(-1) == 1
        and library() is not None
    )


def log_softmax(x: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """``log_softmax(x * scale)`` and the largest number of each row of x.

    Args:
        x: ``[..., V]``, for which `serves` holds.
        scale: A factor above 0.

    Returns:
        ``[..., V]`` and ``[..., 1]``, NaN where a row holds one.
    """
    rows = _rows(x)
    out = torch.empty(x.shape)
    largest = torch.empty(*x.shape[:-1], 1)
    kernels().parspec_log_softmax(
        rows.data_ptr(),
        len(rows),
        rows.shape[1],
        rows.stride(0),
        scale,
        out.data_ptr(),
        largest.data_ptr(),
        torch.get_num_threads(),
    )
    return out, largest


def log_softmax_at(x: Tensor, scale: float, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """``log_softmax(x * scale)`` at one token of each row, and the largest number of each row of x.

    Args:
        x: ``[..., V]``, for which `serves` holds.
        scale: A factor above 0.
        tokens: ``[...]`` int64.

    Returns:
        ``[...]`` and ``[..., 1]``, NaN where a row holds one.
    """
    rows, tokens = _rows(x), tokens.contiguous()
    assert tokens.shape == x.shape[:-1]
    out, largest = torch.empty(tokens.shape), torch.empty(*tokens.shape, 1)
    kernels().parspec_log_softmax_at(
        rows.data_ptr(),
        len(rows),
        rows.shape[1],
        rows.stride(0),
        scale,
        tokens.data_ptr(),
        out.data_ptr(),
        largest.data_ptr(),
        torch.get_num_threads(),
    )
    return out, largest


def draw(log_probs: Tensor, uniforms: Tensor) -> Tensor:
    """A token ``[...]`` int64 of each row of ``[..., V]``: the first whose cumulative probability exceeds the uniform.

    Args:
        log_probs: For which `serves` holds; need not be normalised exactly.
        uniforms: ``[...]`` float64 in [0, 1).
    """
    rows, uniforms = _rows(log_probs), uniforms.contiguous()
    tokens = torch.empty(log_probs.shape[:-1], dtype=torch.int64)
    kernels().parspec_draw(
        rows.data_ptr(),
        len(rows),
        rows.shape[1],
        rows.stride(0),
        uniforms.data_ptr(),
        tokens.data_ptr(),
        torch.get_num_threads(),
    )
    return tokens


def nucleus_floor(log_probs: Tensor, mass: Tensor) -> Tensor:
    """Log-probability ``[..., 1]`` of the last token of the smallest most probable set with this mass ``[..., 1]``."""
    rows = _rows(log_probs).contiguous()
    mass = mass.float().contiguous()
    out = torch.empty(*log_probs.shape[:-1], 1)
    kernels().parspec_nucleus_floor(
        rows.data_ptr(), len(rows), rows.shape[1], mass.data_ptr(), out.data_ptr(), torch.get_num_threads()
    )
    return out


def _rows(x: Tensor) -> Tensor:
    """The same numbers as ``[rows, V]``, without a copy where the strides allow it."""
    return x.reshape(-1, x.shape[-1])
