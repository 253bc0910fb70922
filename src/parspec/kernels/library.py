"""Builds the C++ kernels on their first use on a machine, and loads them.

They are compiled where they run, in a few seconds, and kept in the user's cache folder. Without a compiler, or on
a processor without AVX2, there are none, and callers take torch's own kernels instead.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import platformdirs
import torch

from parspec.errors import ParspecError

_FOLDER = Path(__file__).parent
_SOURCES = ("linear.cpp", "decoder.cpp", "logits.cpp")
_HEADERS = ("linear.hpp", "attention.hpp", "vector.hpp")
_FLAGS = ("-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fopenmp", "-shared", "-fPIC")
_POINTER, _SIZE, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
_SIGNATURES = {
    "parspec_pack": (None, (_POINTER, _SIZE, _SIZE, _SIZE, _POINTER, _INT)),
    "parspec_pack_rounded": (None, (_POINTER, _SIZE, _SIZE, _SIZE, _POINTER, _POINTER, _INT)),
    "parspec_linear": (None, (_POINTER, _POINTER, _SIZE, _POINTER, _INT)),
    "parspec_decode": (_INT, (_POINTER, _POINTER, _SIZE, _POINTER, _POINTER, _POINTER, _POINTER, _INT)),
    "parspec_log_softmax": (None, (_POINTER, _SIZE, _SIZE, _SIZE, _FLOAT, _POINTER, _POINTER, _INT)),
    "parspec_log_softmax_at": (None, (_POINTER, _SIZE, _SIZE, _SIZE, _FLOAT, _POINTER, _POINTER, _POINTER, _INT)),
    "parspec_draw": (None, (_POINTER, _SIZE, _SIZE, _SIZE, _POINTER, _POINTER, _INT)),
    "parspec_nucleus_floor": (None, (_POINTER, _SIZE, _SIZE, _POINTER, _POINTER, _INT)),
}


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels; None where this machine cannot have them."""
    if platform.machine().lower() not in ("x86_64", "amd64") or not torch.cpu._is_avx2_supported():
        return None
    compiler = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("c++")
    if not sys.platform.startswith("linux") or compiler is None:
        _warn("there is no C++ compiler: install g++")
        return None
    try:
        loaded = ctypes.CDLL(str(build(compiler, platformdirs.user_cache_path("parspec") / "kernels")))
    except (OSError, subprocess.SubprocessError) as error:
        _warn(f"they could not be built ({_reason(error)})")
        return None
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(loaded, name)
        function.argtypes, function.restype = arguments, result
    return loaded


def build(compiler: str, folder: Path) -> Path:
    """Compile the kernels into a folder, unless it has them already.

    Args:
        compiler: A C++ compiler that takes gcc's options.
        folder: Made if need be; several processes may build into it at once.

    Returns:
        The shared library.

    Raises:
        OSError: The folder cannot be written.
        subprocess.SubprocessError: The compiler failed.
    """
    # torch's own OpenMP: a second copy would keep a second set of threads spinning on the same cores.
    openmp = sorted(Path(torch.__file__).parent.glob("lib/libgomp*.so*"))[:1]
    command = [compiler, *_FLAGS, *(str(_FOLDER / name) for name in _SOURCES), *map(str, openmp)]
    content = b"".join((_FOLDER / name).read_bytes() for name in _SOURCES + _HEADERS)
    machine = (torch.__version__, sorted(torch.cpu.get_capabilities().items()), platform.node())
    key = hashlib.sha256(repr((command, machine)).encode() + content).hexdigest()[:16]
    built = folder / f"kernels-{key}.so"
    if not built.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            output = Path(scratch) / built.name
            subprocess.run([*command, "-o", str(output)], check=True, capture_output=True, text=True, timeout=300)
            output.replace(built)
    return built


def _warn(reason: str) -> None:
    warnings.warn(f"decoding runs several times slower without parspec's kernels: {reason}", stacklevel=4)


def _reason(error: Exception) -> str:
    text = getattr(error, "stderr", None) or str(error)
    return next((line for line in text.splitlines() if "error" in line), text.splitlines()[-1] if text else "no reason")


def kernels() -> ctypes.CDLL:
    """The compiled kernels.

    Raises:
        ParspecError: This machine has none.
    """
    found = library()
    if found is None:
        raise ParspecError("parspec's kernels are not available on this machine")
    return found
