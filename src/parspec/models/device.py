"""Where a model runs, in which number format, and how much memory is there."""

import psutil
import torch

from parspec.errors import InvalidRequestError
from parspec.models.layers import reads_small_weights

QUANTIZATIONS = ("int8",)
"""Formats weights can be rounded to, one scale for each output."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def choose_device(name: str) -> torch.device:
    """Turn ``"auto"`` or a torch device name into a device that exists here.

    Raises:
        InvalidRequestError: The device is unknown or not present.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InvalidRequestError(f'device "{name}" is unknown: use auto, cpu, cuda, cuda:N or mps') from error
    present = {
        "cpu": True,
        "cuda": torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count(),
        "mps": torch.backends.mps.is_available(),
    }
    if not present.get(device.type, False):
        raise InvalidRequestError(f'device "{name}" is not present on this machine: use "auto" or "cpu"')
    return device


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """Turn ``"auto"`` or a name into a number format.

    ``"auto"`` is bfloat16 where the hardware multiplies it natively, float32 elsewhere: emulated bfloat16
    products take several times as long as float32 ones (measured on AVX2: 137 ms against 41 ms at 8 rows).

    Raises:
        InvalidRequestError: The format is not offered.
    """
    if name == "auto":
        if device.type == "cpu":
            abilities = torch.cpu.get_capabilities()
            native = abilities.get("amx_bf16") or abilities.get("avx512_bf16") or abilities.get("bf16")
            return torch.bfloat16 if native else torch.float32
        if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
            return torch.float32
        return torch.bfloat16
    if name not in DTYPES:
        raise InvalidRequestError(f'dtype "{name}" is not offered: use auto, {" or ".join(DTYPES)}')
    return DTYPES[name]


def choose_quantization(name: str | None, device: torch.device) -> str | None:
    """Turn ``"auto"`` or a name into a format for weights; None keeps them as they are stored.

    ``"auto"`` is int8 where that is read at the speed of its size, that is, where parspec's kernels run.

    Raises:
        InvalidRequestError: The format is not offered.
    """
    if name == "auto":
        return "int8" if reads_small_weights(device, torch.float32) else None
    if name not in (None, *QUANTIZATIONS):
        offered = ", ".join(f'"{known}"' for known in ("auto", *QUANTIZATIONS))
        raise InvalidRequestError(f'quantization "{name}" is not offered: use {offered} or None')
    return name


def free_memory(device: torch.device) -> int:
    """Bytes that can still be allocated on the device (main memory for cpu and mps)."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return psutil.virtual_memory().available


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error of torch, or of Python itself, says that no memory is left."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    # On the CPU torch raises a plain RuntimeError.
    return isinstance(error, RuntimeError) and ("can't allocate memory" in str(error) or "bad_alloc" in str(error))
