"""Bad input ends in one line that says what to do, with status 2, if possible before a model is loaded."""

from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.support.models import Pair, chat_tokenizer, make_folder
from tests.support.tokenizers import metaspace_tokenizer


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--temperature", "-1"], ["temperature", "-1", "0 to 100"]),
        (["--temperature", "nan"], ["temperature", "nan"]),
        (["--temperature", "inf"], ["temperature", "inf"]),
        (["--top-p", "0"], ["top_p", "above 0 and at most 1"]),
        (["--top-p", "1.5"], ["top_p", "1.5"]),
        (["--top-k", "-2"], ["top_k", "-2"]),
        (["--min-p", "2"], ["min_p", "0 to 1"]),
        (["--num-particles", "0"], ["num_particles", "1 to 1024"]),
        (["--num-particles", "100000"], ["num_particles", "1 to 1024"]),
        (["--num-draft-tokens", "-1"], ["num_draft_tokens"]),
        (["--cut-threshold", "nan"], ["cut_threshold"]),
        (["--resample-threshold", "1.1"], ["resample_threshold"]),
        (["--commit-lag", "0"], ["commit_lag"]),
        (["--commit-lag", "soon"], ["commit_lag", "soon"]),
        (["--max-tokens", "0"], ["max_tokens", "1 to"]),
        (["--stop", ""], ["stop", "empty"]),
        (["--seed", "-1"], ["seed"]),
        (["--quantization", "int3"], ["int3", "int8"]),
        (["--draft-quantization", "tiny"], ["tiny", "int8"]),
        (["--method", "magic"], ["method", "autoregressive, speculative, smc or auto"]),
        (["--device", "toaster"], ["toaster", "auto, cpu"]),
        (["--dtype", "float8"], ["float8", "bfloat16"]),
        (["--top-k", "many"], ["--top-k", "parspec --help"]),
        (["--no-such-option"], ["--no-such-option", "parspec --help"]),
    ],
    ids=lambda value: " ".join(value) if value[0].startswith("--") else "",
)
@pytest.mark.parametrize("command", ["generate", "chat"])
def test_bad_option_is_refused_before_loading(
    cli: Cli, tiny_pair: Pair, command: str, options: list[str], words: list[str]
) -> None:
    prompt = ["Hello"] if command == "generate" else []
    ended = cli(command, *prompt, "--target", tiny_pair.target, "--draft", tiny_pair.draft, *options)
    ended.assert_refused(*words)
    assert "loaded" not in ended.err


def test_system_message_without_template(cli: Cli) -> None:
    cli("generate", "Hello", "--raw", "--system", "Be brief.").assert_refused("--system", "--raw")


@pytest.mark.parametrize("method", ["smc", "speculative"])
def test_method_without_draft(cli: Cli, tiny_pair: Pair, method: str) -> None:
    ended = cli("generate", "Hello", "--target", tiny_pair.target, "--method", method)
    ended.assert_refused(method, "needs a draft", "--draft")
    assert "loaded" not in ended.err


def test_unknown_command(cli: Cli) -> None:
    cli("genrate").assert_refused("genrate", "parspec --help")


@pytest.mark.parametrize("name", ["no-such-model", "./no/such/folder", "missing.gguf"])
def test_unknown_model(cli: Cli, tiny_pair: Pair, name: str, tmp_path: Path) -> None:
    cli("generate", "Hello", "--target", name, "--cache-dir", tmp_path / "cache").assert_refused(name)
    cli("generate", "Hello", "--target", tiny_pair.target, "--draft", name).assert_refused(name)
    cli("pull", name, "--cache-dir", tmp_path / "cache").assert_refused(name)
    assert list(tmp_path.iterdir()) == []


def test_folder_without_weights(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    cli("generate", "Hello", "--target", tmp_path).assert_refused(str(tmp_path), "safetensors")


def test_truncated_weights(cli: Cli, tmp_path: Path) -> None:
    weights = make_folder(tmp_path, seed=1, tokenizer=chat_tokenizer()) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:2000])
    cli("generate", "Hello", "--target", tmp_path).assert_refused(str(tmp_path), "cannot be loaded")


def test_unusable_cache_dir(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cli("pull", "--cache-dir", tmp_path / "file" / "cache").assert_refused(str(tmp_path / "file"))


@pytest.mark.parametrize("prompt", [[""], []])
def test_empty_prompt(cli: Cli, prompt: list[str]) -> None:
    cli("generate", *prompt, stdin="\n").assert_refused("prompt is empty")


def test_prompt_that_is_not_text(cli: Cli) -> None:
    cli("generate", "caf\udce9").assert_refused("not UTF-8")


@pytest.mark.parametrize("method", ["smc", "autoregressive"])
def test_prompt_longer_than_context(cli: Cli, tiny_pair: Pair, method: str) -> None:
    pair = ("--target", tiny_pair.target, "--draft", tiny_pair.draft)
    cli("generate", *pair, "--raw", "--method", method, stdin="x" * 600).assert_refused("600", "511", "shorten")


def test_prompt_longer_than_context_of_draft(cli: Cli, tiny_pair: Pair, tmp_path: Path) -> None:
    draft = make_folder(tmp_path / "short", seed=3, tokenizer=chat_tokenizer(), context=64)
    ended = cli("generate", "x" * 100, "--target", tiny_pair.target, "--draft", draft)
    ended.assert_refused("short", "at most 64", "shorten")


def test_different_tokenizers(cli: Cli, tiny_pair: Pair, tmp_path: Path) -> None:
    draft = make_folder(tmp_path, seed=3, tokenizer=metaspace_tokenizer(), vocab_size=300)
    ended = cli("generate", "Hello", "--target", tiny_pair.target, "--draft", draft)
    ended.assert_refused("different tokenizers", "id 0")


def test_model_without_tokenizer(cli: Cli, tmp_path: Path) -> None:
    cli("generate", "Hello", "--target", make_folder(tmp_path, seed=3)).assert_refused("no tokenizer")


def test_more_memory_than_there_is(cli: Cli, endless_pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parspec.llm.free_memory", lambda device: 2**20)
    pair = ("--target", endless_pair.target, "--draft", endless_pair.draft)
    ended = cli("generate", "Hello", *pair, "--max-tokens", "50000")
    ended.assert_refused("GiB", "max_tokens", "num_particles")
