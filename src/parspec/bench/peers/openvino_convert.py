"""OpenVINO models from GGUF files: their weights as float16, then int8 or int4 by NNCF.

OpenVINO GenAI reads GGUF itself, but not all its types, and runs what it reads in small groups of weights with a
scale each: measured on two AVX2 cores, a token then takes 172 instead of 113 to 130 ms in eight bits. optimum-intel is
not used because it needs older versions of transformers and of the hub's client than parspec.
"""

import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

from parspec.bench.peers.dequantize import dequantize

_GROUP_SIZE = 128
"""Weights per scale in four bits: what optimum-intel's export takes if not told otherwise."""


def converted(gguf: Path, precision: str, work_dir: Path) -> Path:
    """Convert, unless that has been done.

    Args:
        gguf: The model.
        precision: ``int8`` or ``int4``.
        work_dir: Where results are kept.

    Returns:
        A folder that OpenVINO GenAI can load.
    """
    result = work_dir / f"{gguf.stem}-openvino-{precision}"
    if result.is_dir():
        return result
    floats = work_dir / f"{gguf.stem}-openvino-float16"
    if not floats.is_dir():
        _import(gguf, floats)
    _compress(floats, precision, result)
    return result


def _import(gguf: Path, result: Path) -> None:
    """Have OpenVINO GenAI read the file and write the model, in float16, and its tokenizer."""
    genai = import_module("openvino_genai")
    scratch = _scratch(result)
    source = scratch / "model.gguf"
    dequantize(gguf, source)
    genai.LLMPipeline(str(source), "CPU", enable_save_ov_model=True)  # it writes beside the file it reads
    source.unlink()
    scratch.replace(result)


def _compress(floats: Path, precision: str, result: Path) -> None:
    openvino, nncf = import_module("openvino"), import_module("nncf")
    options: dict[str, Any] = {
        "int8": {"mode": nncf.CompressWeightsMode.INT8_ASYM},
        "int4": {"mode": nncf.CompressWeightsMode.INT4_ASYM, "group_size": _GROUP_SIZE, "ratio": 1.0},
    }[precision]
    scratch = _scratch(result)
    for file in floats.iterdir():
        if "tokenizer" in file.name:
            shutil.copy(file, scratch)
    model = openvino.Core().read_model(floats / "openvino_model.xml")
    openvino.save_model(nncf.compress_weights(model, **options), scratch / "openvino_model.xml")
    scratch.replace(result)


def _scratch(result: Path) -> Path:
    """A place beside the result to build it in, so that a folder of that name is whole."""
    scratch = result.with_name(f".{result.name}.partial")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    return scratch
