"""Rewriting a GGUF file with its weights as float16, for engines that do not read all its quantised types."""

from math import prod
from pathlib import Path

_ROWS = 8192


def dequantize(source: Path, result: Path) -> None:
    """Write a copy of a GGUF file in which all quantised tensors are float16.

    Args:
        source: The file.
        result: Where the copy goes.
    """
    import gguf
    import numpy as np

    reader = gguf.GGUFReader(source)
    architecture = gguf.Keys.General.ARCHITECTURE
    writer = gguf.GGUFWriter(result, reader.fields[architecture].contents())
    for field in reader.fields.values():
        if field.name == architecture or field.name.startswith("GGUF."):  # the writer's own
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=inner)
    for tensor in reader.tensors:
        shape = [int(size) for size in reversed(tensor.shape)]
        dtype = np.dtype(np.float32 if tensor.tensor_type == gguf.GGMLQuantizationType.F32 else np.float16)
        writer.add_tensor_info(tensor.name, shape, dtype, prod(shape) * dtype.itemsize)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in reader.tensors:
        data = tensor.data
        if tensor.tensor_type != gguf.GGMLQuantizationType.F32:
            # A few rows at a time: as float32 an output matrix alone can be a gigabyte.
            blocks = (data[start : start + _ROWS] for start in range(0, len(data), _ROWS))
            data = np.concatenate([gguf.dequantize(block, tensor.tensor_type).astype(np.float16) for block in blocks])
        writer.write_tensor_data(data)
    writer.close()
