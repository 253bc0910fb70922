"""Conversion of a tiny GGUF file; no weights are fetched."""

import errno
import json
import os
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig

from parspec.errors import ModelError
from parspec.models import convert as converting
from parspec.models.convert import COMPLETE, convert
from tests.support.gguf import CHAT_TEMPLATE, ROPE_THETA, make_gguf


@pytest.mark.parametrize("tied", [False, True])
def test_the_converted_model_is_the_same(tmp_path: Path, tied: bool) -> None:
    gguf = make_gguf(tmp_path / "tiny.gguf", tied=tied)
    folder = tmp_path / "models" / "tiny"
    convert(gguf, folder, source="this file")
    tokens = torch.tensor([[1, 5, 9, 200, 33]])
    converted = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    direct = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    with torch.no_grad():
        assert torch.equal(converted(tokens).logits, direct(tokens).logits)
    config = AutoConfig.from_pretrained(folder)
    assert (config.dtype, converted.dtype) == (torch.bfloat16, torch.bfloat16)
    assert config.tie_word_embeddings is tied
    assert config.rope_parameters["rope_theta"] == ROPE_THETA
    assert json.loads((folder / COMPLETE).read_text()) == {"source": "this file"}
    assert [path.name for path in folder.parent.iterdir()] == ["tiny"]


def test_tokenizer_chat_template_and_end_ids(tmp_path: Path) -> None:
    convert(make_gguf(tmp_path / "tiny.gguf"), tmp_path / "tiny", source="x")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "tiny")
    ids = GenerationConfig.from_pretrained(tmp_path / "tiny").eos_token_id
    assert tokenizer.convert_ids_to_tokens(ids) == ["<|im_end|>", "<|endoftext|>"]
    assert tokenizer.chat_template == CHAT_TEMPLATE
    assert tokenizer.decode(tokenizer("hello\n")["input_ids"]) == "hello\n"


@pytest.mark.parametrize("broken", ["text", "truncated"])
def test_a_broken_file_leaves_nothing(tmp_path: Path, broken: str) -> None:
    gguf = tmp_path / "tiny.gguf"
    data = make_gguf(gguf).read_bytes()
    gguf.write_bytes(b"no gguf" * 100 if broken == "text" else data[: len(data) * 3 // 4])
    with pytest.raises(ModelError, match=r"tiny\.gguf cannot be converted"):
        convert(gguf, tmp_path / "models" / "tiny", source="x")
    assert not list((tmp_path / "models").iterdir())


@pytest.mark.parametrize("kind", [OSError, RuntimeError])
def test_a_full_disk_is_called_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]) -> None:
    def save(self: torch.nn.Module, *_: object, **__: object) -> None:
        # safetensors' own error is no OSError, only its text tells.
        raise kind(f"Error while serializing: I/O error: {os.strerror(errno.ENOSPC)} (os error 28)")

    monkeypatch.setattr("transformers.PreTrainedModel.save_pretrained", save)
    with pytest.raises(ModelError, match="the disk is full"):
        convert(make_gguf(tmp_path / "tiny.gguf"), tmp_path / "models" / "tiny", source="x")
    assert not list((tmp_path / "models").iterdir())


def test_what_a_killed_conversion_left_is_removed(tmp_path: Path) -> None:
    """Killed for real: no cleaning up runs, as after SIGKILL."""
    gguf, folder = make_gguf(tmp_path / "tiny.gguf"), tmp_path / "models" / "tiny"
    folder.parent.mkdir()
    child = os.fork()
    if child == 0:
        try:
            with converting._scratch(folder) as left:
                (left / "model.safetensors").write_bytes(b"half")
                os._exit(9)
        finally:
            os._exit(1)
    os.waitpid(child, 0)
    assert len(list(folder.parent.iterdir())) == 1, "the child left its scratch folder"
    convert(gguf, folder, source="x")
    assert [path.name for path in folder.parent.iterdir()] == ["tiny"]
    AutoModelForCausalLM.from_pretrained(folder)
