"""From a name to a folder, and what cannot be found; conversion of a GGUF file."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from parspec.errors import ModelError
from parspec.models import locate as locating
from parspec.models.catalog import ARTIFACTS
from parspec.models.convert import convert
from parspec.models.download import fetch
from parspec.models.locate import locate, resolve_pair
from tests.support.models import make_folder


def test_a_pairs_name_gives_both_and_an_explicit_draft_wins() -> None:
    assert resolve_pair("qwen2.5-coder", None) == ("qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b")
    assert resolve_pair("qwen2.5-coder", "mine") == ("qwen2.5-coder-1.5b", "mine")
    assert resolve_pair("./folder", None) == ("./folder", None)


def test_a_local_folder(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "m", seed=0)
    assert locate(str(folder)) == folder


def test_folders_that_are_no_models(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"no config\.json"):
        locate(str(tmp_path / "empty"))
    folder = make_folder(tmp_path / "m", seed=0)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"no \.safetensors weights"):
        locate(str(folder))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nonsense", "is unknown: give a local folder, a .gguf file, a hub id .* or one of qwen2.5-coder"),
        ("/no/such/folder", "is unknown"),
        ("./missing.gguf", "does not exist"),
        ("qwen2.5-coder", "names a pair: use qwen2.5-coder-1.5b or qwen2.5-coder-0.5b"),
        ("", "no name"),
    ],
)
def test_unknown_names(name: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        locate(name)


@pytest.mark.parametrize("name", ["owner/no-such-model", "bad name/with spaces"])
def test_a_hub_that_cannot_serve(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(repo: str, **_: object) -> str:
        raise ConnectionError("no network")

    if " " not in name:
        monkeypatch.setattr(locating, "snapshot_download", unreachable)
    with pytest.raises(ModelError, match="neither a local folder nor to be had from the hub"):
        locate(name)


def test_a_file_that_is_no_gguf(tmp_path: Path) -> None:
    fake = tmp_path / "fake.gguf"
    fake.write_bytes(b"GGUF but not really" * 100)
    with pytest.raises(ModelError, match="cannot be converted") as caught:
        locate(str(fake), cache_dir=tmp_path / "cache", progress=False)
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "cache").glob("models/*")), "nothing half-written"


def test_an_unfinished_conversion_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gguf = tmp_path / "own.gguf"
    gguf.write_bytes(b"x")
    calls = []

    def fake_convert(source_file: Path, folder: Path, source: str) -> None:
        calls.append(source_file)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / locating.COMPLETE).write_text(json.dumps({"source": source}))

    monkeypatch.setattr(locating, "convert", fake_convert)
    folder = locate(str(gguf), cache_dir=tmp_path, progress=False)
    assert locate(str(gguf), cache_dir=tmp_path, progress=False) == folder
    assert len(calls) == 1
    (folder / locating.COMPLETE).unlink()  # as if the process had been killed
    locate(str(gguf), cache_dir=tmp_path, progress=False)
    gguf.write_bytes(b"changed")
    assert locate(str(gguf), cache_dir=tmp_path, progress=False) != folder
    assert len(calls) == 3


@pytest.mark.real
def test_a_converted_gguf_is_the_same_model(tmp_path: Path) -> None:
    """SmolLM2, 135M: logits, end-of-text ids and chat template survive the conversion; a second start is quick."""
    artifact = ARTIFACTS["smollm2-135m"]
    gguf = fetch(artifact, tmp_path / "downloads", progress=False)
    folder = tmp_path / "model"
    convert(gguf, folder, source="x")
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens = torch.tensor([tokenizer("def fibonacci(n):")["input_ids"]])
    converted = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    direct = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    ).float()
    with torch.no_grad():
        torch.testing.assert_close(converted(tokens).logits, direct(tokens).logits)
    ids = converted.generation_config.eos_token_id
    assert [tokenizer.convert_ids_to_tokens(i) for i in ids] == ["<|im_end|>", "<|endoftext|>"]
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert chat.endswith("<|im_start|>user\nhi<|im_end|>\n")
