"""Loading a model folder: weights, tokenizer and the ids that end a text."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from parspec.errors import ModelError, OutOfMemoryError
from parspec.models.device import free_memory
from parspec.models.interface import LanguageModel
from parspec.models.layers import reads_small_weights, weight_bytes
from parspec.models.support import check_config
from parspec.models.transformers_model import ATTENTION, TransformersModel

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run, with what its folder says about its text.

    Attributes:
        name: What the user called it.
        model: Runs forward passes.
        tokenizer: None where the folder has none; prompts are then token ids.
        eos_ids: Ids that end a text, of the generation config, else of the model's config or tokenizer.
        tokenizer_digest: Hash of tokenizer.json; None where there is no such file.
    """

    name: str
    model: LanguageModel
    tokenizer: PreTrainedTokenizerBase | None
    eos_ids: tuple[int, ...]
    tokenizer_digest: str | None = None

    @property
    def context(self) -> int:
        """Longest prompt and answer together, in tokens."""
        return self.model.max_positions


def load_model(
    folder: Path,
    name: str,
    device: torch.device,
    dtype: torch.dtype,
    max_model_len: int | None = None,
    *,
    quantization: str | None = None,
    partner: "LoadedModel | None" = None,
) -> LoadedModel:
    """Load a folder in the layout of transformers.

    Args:
        folder: Holds config.json, safetensors weights and, if text is wanted, tokenizer files.
        name: What to call the model in errors.
        device: Where it runs.
        dtype: Number format of weights and cache.
        max_model_len: Upper limit on the context in tokens, below the model's own.
        quantization: ``"int8"`` to round the weights of linear layers, None to keep them as they are.
        partner: A model whose tokenizer is used again if this folder's is the same file.

    Raises:
        ModelError: The folder cannot be read, is incomplete, or holds a model that cannot be served correctly.
        OutOfMemoryError: The weights do not fit.
    """
    if quantization is not None and reads_small_weights(device, torch.float32):
        dtype = torch.float32  # the arithmetic of the kernels, which read the weights as int8
    with quiet_transformers():
        config = _load_config(folder, name)
        context = check_config(config, name, max_model_len)
        _check_memory(folder, name, config, device, dtype, quantization)
        model = _load_weights(folder, name, config, device)
        digest = _tokenizer_digest(folder)
        same = partner is not None and digest is not None and digest == partner.tokenizer_digest
        tokenizer = partner.tokenizer if partner is not None and same else _load_tokenizer(folder, name)
    return LoadedModel(
        name,
        TransformersModel(model, name, context, dtype, quantization),
        tokenizer,
        _eos_ids(folder, config, tokenizer),
        digest,
    )


def _load_config(folder: Path, name: str) -> PreTrainedConfig:
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise ModelError(
            f'model "{name}": {folder / "config.json"} cannot be read ({first_line(error)}): '
            "fetch the folder again or use a model this version of transformers knows"
        ) from error
    return config


def _check_memory(
    folder: Path,
    name: str,
    config: PreTrainedConfig,
    device: torch.device,
    dtype: torch.dtype,
    quantization: str | None,
) -> None:
    """Refuse weights that cannot fit before the operating system ends the process for them."""
    stored = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    stored_dtype = config.dtype if isinstance(config.dtype, torch.dtype) else torch.float32
    needed = stored * weight_bytes(stored_dtype, device, dtype, quantization) // stored_dtype.itemsize
    free = free_memory(device)
    if needed > free:
        raise OutOfMemoryError(
            f'model "{name}" needs {needed / 1024**3:.1f} GiB in {str(dtype).removeprefix("torch.")} and '
            f"{free / 1024**3:.1f} GiB are free: use quantization int8, a smaller model, or free some memory"
        )


def _load_weights(folder: Path, name: str, config: PreTrainedConfig, device: torch.device) -> PreTrainedModel:
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype="auto",  # as stored; converted layer by layer later
            attn_implementation=ATTENTION,
            local_files_only=True,
            output_loading_info=True,
        )
    except Exception as error:  # transformers, safetensors and torch each raise their own kinds
        raise ModelError(
            f'model "{name}": the weights in {folder} cannot be loaded ({first_line(error)}): '
            "delete the folder and fetch the model again"
        ) from error
    model, report = loaded
    missing = sorted(report["missing_keys"])
    if missing or report["mismatched_keys"]:
        what = f"{len(missing)} weights, first {missing[0]}, are missing" if missing else "weights have other shapes"
        raise ModelError(f'model "{name}": {what} in {folder}: delete the folder and fetch the model again')
    result: PreTrainedModel = model.to(device).eval()
    return result


def _tokenizer_digest(folder: Path) -> str | None:
    file = folder / "tokenizer.json"
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else None


def _load_tokenizer(folder: Path, name: str) -> PreTrainedTokenizerBase | None:
    if not any((folder / file).exists() for file in _TOKENIZER_FILES):
        return None
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # the tokenizers library raises bare Exception
        raise ModelError(
            f'model "{name}": the tokenizer in {folder} cannot be loaded ({first_line(error)}): '
            "fetch the folder again, or remove the tokenizer files to work with token ids"
        ) from error


def _eos_ids(folder: Path, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase | None) -> tuple[int, ...]:
    """Ids that end a text: the generation config's, else the model's, else the tokenizer's."""
    sources = [config.eos_token_id, None if tokenizer is None else tokenizer.eos_token_id]
    if (folder / "generation_config.json").exists():
        sources.insert(0, GenerationConfig.from_pretrained(folder, local_files_only=True).eos_token_id)
    found = next((ids for ids in sources if ids is not None), ())
    return (found,) if isinstance(found, int) else tuple(found)


def first_line(error: Exception) -> str:
    """What an exception says, short enough for a one-line message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep transformers' progress bars and advice off the user's terminal while a model loads."""
    verbosity = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()
