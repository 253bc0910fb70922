"""``parspec bench speed`` on tiny models, as a command."""

import json
from pathlib import Path

import pytest
import torch

from parspec.bench.prompts import load_prompts
from parspec.bench.ratios import TARGETS
from parspec.bench.shapes import parse_shapes, random_model, shape_config, shaped_pair
from parspec.cli import main
from parspec.errors import InvalidRequestError
from parspec.models.cache import GroupCache
from parspec.models.interface import Forward
from tests.support.models import Pair


@pytest.mark.timeout(600)
def test_the_whole_command(endless_pair: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"category": "coding", "turns": ["Sort."]}\n{"category": "writing", "turns": ["Sing."]}\n')
    page = tmp_path / "page.md"
    arguments = ["bench", "speed", "--target", str(endless_pair.target), "--draft", str(endless_pair.draft)]
    arguments += ["--prompts", str(prompts), "--limit", "1", "--max-tokens", "12", "--repeats", "1", "--no-int8"]
    arguments += ["--num-particles", "4", "--num-chains", "1", "--num-draft-tokens", "4", "--requests", "1,8"]
    arguments += ["--peers", "none", "--json", str(tmp_path / "speed.json"), "--markdown", str(page)]
    assert main(arguments) == 0
    found = json.loads((tmp_path / "speed.json").read_text())
    absent = {"smc_vs_transformers", "smc_vs_assisted", "smc_vs_best_peer", "shape_smc_vs_ar"}
    absent.add("json_vs_free")  # its answers have no end, so no schema can be followed
    assert {name for name, value in found["ratios"].items() if value is None} == absent
    assert found["ratios"].keys() == TARGETS.keys()
    labels = {record["label"] for record in found["own"] if record["kind"] == "generation"}
    assert labels == {"autoregressive", "speculative K=4", "smc N=4 K=4", "auto"}
    assert all(r["num_tokens"] == 12 for r in found["own"] if r["kind"] == "generation")
    assert "images/cycle-by-phase.svg" in page.read_text()
    assert (tmp_path / "images" / "cycle-by-phase.svg").exists()
    assert "Ratios" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--peers", "magic"], ["magic", "llama.cpp"]),
        (["--num-particles", "4,none"], ["num_particles", "whole numbers"]),
        (["--requests", "0"], ["requests", "from 1"]),
        (["--shape", "llama-70b"], ["TARGET:DRAFT"]),
        (["--shape", "llama-70b:llama-2"], ["llama-2", "llama-8b"]),
        (["--shape-only"], ["--shape"]),
        (["--tasks", "cooking"], ["cooking", "coding, writing"]),
        (["--json", "/nowhere/speed.json"], ["/nowhere"]),
        (["--target", "smollm2-135m"], ["draft"]),
    ],
)
def test_bad_input_is_refused_in_one_line(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "speed", *arguments]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("parspec: error:")]
    assert len(lines) == 1
    assert all(word in lines[0] for word in words)


def test_prompts_of_a_broken_file(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"category": "coding", "turns": ["a"]}\n{"category": "coding"}\n')
    with pytest.raises(InvalidRequestError, match="line 2"):
        load_prompts(file, ("coding",), 5)


def test_our_own_prompts() -> None:
    assert [prompt.task for prompt in load_prompts(None, ("coding", "writing"), 2)] == ["coding"] * 2 + ["writing"] * 2


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_random_weights_give_numbers_of_a_sane_size(quantization: str | None) -> None:
    config = shape_config("qwen-0.5b")
    config.num_hidden_layers, config.vocab_size = 2, 1000
    model = random_model(config, "small", quantization)
    cache = GroupCache(model.cache_shape, 1, 20, 1)
    logits = model.forward([Forward(model, cache, torch.arange(20)[None], 1, into_trunk=True)])[0]
    assert 0.1 < logits.std() < 10


def test_shapes_that_do_not_fit_lose_layers_in_proportion(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, layers in (("llama-1b", 16), ("llama-70b", 80)):
        assert shape_config(name).num_hidden_layers == layers
    assert parse_shapes("llama-70b:llama-1b") == ("llama-70b", "llama-1b")
    from parspec.bench import shapes

    built = []
    monkeypatch.setattr(shapes, "free_memory", lambda device: 10e9)
    monkeypatch.setattr(shapes, "random_model", lambda config, name, quantization: built.append(config))
    target, draft = shaped_pair("llama-70b", "llama-1b", "int8", "int8")
    kept = [config.num_hidden_layers for config in built]
    assert kept[0] < 20
    assert abs(kept[0] / 80 - kept[1] / 16) < 1 / 16 + 0.02
    assert target.name == f"llama-70b, {kept[0]} of 80 layers"
    assert draft.name.startswith("llama-1b")
