"""GGUF to the layout transformers loads fast: bfloat16 safetensors, tokenizer and configuration in one folder.

transformers reads GGUF itself, but takes the better part of a minute to dequantise a small model; that is paid
once here instead of at every start.
"""

import errno
import io
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from parspec.errors import ModelError

COMPLETE = "parspec.json"
"""Written last into a converted folder: its presence says that the folder is whole."""

_END_TOKENS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "</s>")
"""Special tokens with which the served model families end a turn or a text."""


def convert(gguf: Path, folder: Path, source: str) -> None:
    """Convert a GGUF file into a model folder; the folder appears only when it is complete.

    The caller sees to it that no other process converts into the same folder meanwhile.

    Args:
        gguf: The file.
        folder: Where the result goes; replaced if it exists.
        source: Identifies the file; written into the folder, so that it can be recognised as this file's.

    Raises:
        ModelError: The file is not a GGUF model transformers can read, or the disk is full.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    from parspec.models.loader import first_line, quiet_transformers

    folder.parent.mkdir(parents=True, exist_ok=True)
    with _scratch(folder) as result:
        files = {"gguf_file": gguf.name, "local_files_only": True}
        try:
            with quiet_transformers(), _bars_only_on_a_terminal():
                tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **files)
                tokenizer.save_pretrained(result)
                model = AutoModelForCausalLM.from_pretrained(
                    gguf.parent,
                    **files,
                    dtype=torch.bfloat16,
                    quantization_config=GgufConfig(dequantize=True),
                )
                model.generation_config.eos_token_id = _end_ids(tokenizer)
                model.save_pretrained(result)
        except Exception as error:  # gguf, transformers and torch each raise their own kinds
            if os.strerror(errno.ENOSPC) in str(error):  # safetensors raises no OSError
                raise ModelError(
                    f"the disk is full: {gguf.name} needs more room in {folder.parent}: free some"
                ) from error
            raise ModelError(
                f"{gguf} cannot be converted ({first_line(error)}): use a GGUF file of a Llama, Qwen2, Qwen3 or "
                "Mistral model, or a folder of safetensors"
            ) from error
        (result / COMPLETE).write_text(json.dumps({"source": source}) + "\n")
        shutil.rmtree(folder, ignore_errors=True)
        result.replace(folder)


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """A place beside the folder to build it in. Its name is fixed, so that what a killed process left is found."""
    scratch = folder.parent / f".{folder.name}.partial"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _bars_only_on_a_terminal() -> AbstractContextManager[object]:
    """While it dequantises, transformers draws a progress bar; in a log file it would be a hundred lines."""
    return nullcontext() if sys.stderr.isatty() else redirect_stderr(io.StringIO())


def _end_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Ids that end a text. GGUF names one; chat models are published with several, known by their names."""
    special = tokenizer.get_added_vocab()  # "</s>" can also be an ordinary piece of HTML
    named = [special[token] for token in _END_TOKENS if token in special]
    own = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    return list(dict.fromkeys([*own, *named]))
