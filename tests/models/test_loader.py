"""Folders that are whole, damaged, or belong to two different families."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from parspec.errors import InvalidRequestError, ModelError, OutOfMemoryError
from parspec.models import loader
from parspec.models.device import choose_device, choose_dtype
from parspec.models.loader import load_model
from parspec.models.pair import shared_vocab_size
from tests.support.models import make_folder
from tests.support.tokenizers import byte_bpe_tokenizer, metaspace_tokenizer

CPU = torch.device("cpu")


def load(folder: Path, name: str = "some/model"):
    return load_model(folder, name, CPU, torch.float32)


def test_end_of_text_ids_come_from_the_generation_config(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "m", seed=0, tokenizer=byte_bpe_tokenizer(), vocab_size=320)
    config = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps({**config, "eos_token_id": [7, 9]}))
    assert load(folder).eos_ids == (7, 9)
    (folder / "generation_config.json").unlink()
    assert load(folder).eos_ids == (byte_bpe_tokenizer().eos_token_id,)


def test_a_folder_without_a_tokenizer_is_fine(tmp_path: Path) -> None:
    assert load(make_folder(tmp_path / "m", seed=0)).tokenizer is None


def test_truncated_weights_are_one_clear_error(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "m", seed=0)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(ModelError, match=r"cannot be loaded .*fetch the model again") as caught:
        load(folder)
    assert "\n" not in str(caught.value)


def test_missing_weights_are_never_made_up(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "m", seed=0)
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.0.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"1 weights, first .*up_proj.* missing"):
        load(folder)


def test_unreadable_config(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "m", seed=0)
    (folder / "config.json").write_text("{not json")
    with pytest.raises(ModelError, match=r"config.json cannot be read"):
        load(folder)


def test_padded_vocabularies_share_the_tokenizers_ids(tmp_path: Path) -> None:
    tokenizer = byte_bpe_tokenizer()
    size = max(tokenizer.get_vocab().values()) + 1
    target = load(make_folder(tmp_path / "t", seed=0, tokenizer=tokenizer, vocab_size=size + 20))
    draft = load(make_folder(tmp_path / "d", seed=1, tokenizer=tokenizer, vocab_size=size + 4))
    assert shared_vocab_size(target, draft) == size


def test_different_tokenizers_are_refused_by_their_first_difference(tmp_path: Path) -> None:
    target = load(make_folder(tmp_path / "t", seed=0, tokenizer=byte_bpe_tokenizer(), vocab_size=400), "a/target")
    draft = load(make_folder(tmp_path / "d", seed=1, tokenizer=metaspace_tokenizer(), vocab_size=400), "a/draft")
    with pytest.raises(ModelError, match=r'"a/target" and draft "a/draft" have different tokenizers .first at id'):
        shared_vocab_size(target, draft)


def test_without_tokenizers_sizes_must_agree(tmp_path: Path) -> None:
    target, draft = load(make_folder(tmp_path / "t", seed=0)), load(make_folder(tmp_path / "d", seed=1, vocab_size=301))
    with pytest.raises(ModelError, match="without tokenizers they must be equal"):
        shared_vocab_size(target, draft)


def test_one_tokenizer_is_not_enough(tmp_path: Path) -> None:
    target = load(make_folder(tmp_path / "t", seed=0, tokenizer=byte_bpe_tokenizer(), vocab_size=320))
    draft = load(make_folder(tmp_path / "d", seed=1, vocab_size=320))
    with pytest.raises(ModelError, match="cannot tell whether"):
        shared_vocab_size(target, draft)


def test_a_draft_with_too_few_rows_is_refused(tmp_path: Path) -> None:
    tokenizer = byte_bpe_tokenizer()
    size = max(tokenizer.get_vocab().values()) + 1
    target = load(make_folder(tmp_path / "t", seed=0, tokenizer=tokenizer, vocab_size=size))
    draft = load(make_folder(tmp_path / "d", seed=1, tokenizer=tokenizer, vocab_size=size - 2))
    with pytest.raises(ModelError, match="fewer than"):
        shared_vocab_size(target, draft)


def test_weights_that_do_not_fit_are_refused_before_loading(tmp_path: Path, monkeypatch) -> None:
    folder = make_folder(tmp_path / "m", seed=0)
    monkeypatch.setattr(loader, "free_memory", lambda _: 100)
    with pytest.raises(OutOfMemoryError, match=r"needs .* GiB in float32 and 0.0 GiB are free: use quantization int8"):
        load(folder)


@pytest.mark.parametrize("name", ["tpu9", "cuda:77"])
def test_devices_that_are_not_there(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=name):
        choose_device(name)


def test_unknown_dtype() -> None:
    with pytest.raises(InvalidRequestError, match="float8"):
        choose_dtype("float8", CPU)
