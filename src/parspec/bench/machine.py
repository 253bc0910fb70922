"""What this machine could do at best: how fast it reads memory and multiplies matrices."""

import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import torch

_READ_BYTES = 1 << 30
_MATRIX = 1536
_PACKAGES = ("parspec", "torch", "transformers", "llama-cpp-python", "openvino-genai", "vllm")


@dataclass(frozen=True)
class Machine:
    """The machine a benchmark ran on.

    Attributes:
        cpu: Its name.
        cores: Logical cores.
        threads: Threads used.
        memory_gib: Main memory.
        capabilities: Instruction sets that matter here.
        read_bandwidth: Bytes per second all threads together read from memory.
        matrix_rate: Operations per second of a large matrix product (two per multiply-add), by number format.
        versions: Of Python, of the operating system and of the packages involved.
    """

    cpu: str
    cores: int
    threads: int
    memory_gib: float
    capabilities: list[str]
    read_bandwidth: float
    matrix_rate: dict[str, float]
    versions: dict[str, str]


def measure_machine() -> Machine:
    """Measure bandwidth and matrix rates; takes a few seconds and 1 GiB."""
    abilities = torch.cpu.get_capabilities()
    wanted = ("avx2", "avx512_f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
    return Machine(
        cpu=_cpu_name(),
        cores=psutil.cpu_count() or 1,
        threads=torch.get_num_threads(),
        memory_gib=round(psutil.virtual_memory().total / 1024**3, 1),
        capabilities=[name for name in wanted if abilities.get(name)],
        read_bandwidth=_read_bandwidth(),
        matrix_rate={str(dtype).removeprefix("torch."): _matrix_rate(dtype) for dtype in _fast_formats(abilities)},
        versions=_versions(),
    )


def _read_bandwidth() -> float:
    numbers = torch.ones(_READ_BYTES // 8, dtype=torch.int64)
    return _READ_BYTES / best_of(lambda: numbers.max(), 7)


def _fast_formats(abilities: Mapping[str, Any]) -> list[torch.dtype]:
    native = abilities.get("amx_bf16") or abilities.get("avx512_bf16")
    return [torch.float32, *([torch.bfloat16] if native else [])]


def _matrix_rate(dtype: torch.dtype) -> float:
    a, b = (torch.ones(_MATRIX, _MATRIX, dtype=dtype) for _ in range(2))
    return 2 * _MATRIX**3 / best_of(lambda: a @ b, 7)


def best_of(run: Callable[[], object], repeats: int) -> float:
    """Seconds of the fastest of several runs, after one that does not count."""
    run()
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "system": f"{platform.system()} {platform.release()}"}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
