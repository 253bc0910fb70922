"""What the commands write, and to which stream."""

import json
import re
from pathlib import Path

import pytest

from parspec import SamplingParams, __version__
from parspec.cli.options import RequestOptions
from parspec.models.catalog import ARTIFACTS, PAIRS
from parspec.sampling.params import METHOD_NAMES, MethodParams
from tests.cli.conftest import Cli
from tests.support.models import Pair, make_folder
from tests.support.tokenizers import byte_bpe_tokenizer


@pytest.fixture
def generate(cli: Cli, tiny_pair: Pair) -> Cli:
    """``parspec generate`` with the tiny pair, seeded, 20 tokens."""

    def run(*args: object, stdin: str = "") -> object:
        pair = ("--target", tiny_pair.target, "--draft", tiny_pair.draft)
        return cli("generate", *pair, "--seed", 3, "--max-tokens", 20, *args, stdin=stdin)

    return run  # type: ignore[return-value]


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_answer_is_all_of_standard_output(generate: Cli, method: str) -> None:
    # What auto drafts depends on times it measures, and so does what it samples.
    options = ["--method", method, *(["--temperature", 0] if method == "auto" else [])]
    ended = generate("Hello", *options)
    answer = json.loads(generate("Hello", *options, "--json").out)["text"]
    assert ended.status == 0
    assert ended.out.removesuffix("\n") == answer.removesuffix("\n")
    assert ended.err.startswith("parspec: target /")
    assert f"method {method}" in ended.err.splitlines()[0]


def test_prompt_from_standard_input(generate: Cli) -> None:
    assert generate(stdin="Hello\n").out == generate("Hello").out
    assert generate(stdin="Hello\n").out != generate("Goodbye").out


def test_raw_prompt_is_not_laid_out(generate: Cli) -> None:
    def ids(*args: str, stdin: str = "") -> list[int]:
        return list(json.loads(generate(*args, "--json", stdin=stdin).out)["prompt_token_ids"])

    tokenizer = byte_bpe_tokenizer()
    assert ids("--raw", stdin="hello\n") == tokenizer("hello\n")["input_ids"]
    asked = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert ids("hello") == tokenizer(asked)["input_ids"]
    assert ids("hello", "--system", "Hm") == tokenizer("<|im_start|>system\nHm<|im_end|>\n" + asked)["input_ids"]


def test_model_without_chat_template_continues_the_prompt(cli: Cli, tmp_path: Path) -> None:
    folder = make_folder(tmp_path, seed=1, tokenizer=byte_bpe_tokenizer())
    ended = cli("generate", "hello", "--target", folder, "--max-tokens", 5, "--json")
    assert json.loads(ended.out)["prompt_token_ids"] == byte_bpe_tokenizer()("hello")["input_ids"]
    cli("generate", "hello", "--target", folder, "--system", "Hm").assert_refused("no chat template")
    cli("chat", "--target", folder, stdin="hello\n").assert_refused("no chat template")


def test_json_holds_the_whole_output(generate: Cli, tiny_pair: Pair) -> None:
    ended = generate("Hello", "--json", "--num-particles", 4, "--num-draft-tokens", 3)
    assert ended.out.count("\n") == 1
    answer = json.loads(ended.out)
    assert (answer["target"], answer["draft"]) == (str(tiny_pair.target), str(tiny_pair.draft))
    assert (answer["method"], answer["seed"]) == ("smc", 3)
    particles = answer["posterior"]["particles"]
    assert len(particles) == 4
    assert sum(particle["weight"] for particle in particles) == pytest.approx(1)
    assert answer["metrics"]["num_tokens"] == len(answer["token_ids"]) <= 20
    assert answer["metrics"]["tokens_per_second"] > 0
    assert answer["finish_reason"] in ("stop", "length")


def test_statistics_go_to_standard_error(generate: Cli) -> None:
    ended = generate("Hello", "--stats", "--method", "smc")
    assert ended.out == generate("Hello", "--method", "smc").out
    for name in (
        "tokens/s",
        "cycles",
        "tokens per cycle",
        "mean ESS",
        "least ESS",
        "resamplings",
        "log Z-hat",
    ):
        assert name in ended.err
    plain = generate("Hello", "--stats", "--method", "autoregressive").err
    assert "tokens/s" in plain
    assert "ESS" not in plain


def test_autoregressive_does_not_load_a_draft(generate: Cli) -> None:
    answer = json.loads(generate("Hello", "--method", "autoregressive", "--json", "--draft", "/nowhere").out)
    assert answer["draft"] is None


def test_warning_is_one_line(generate: Cli) -> None:
    ended = generate("Hello", "--num-particles", 1)
    warnings = [line for line in ended.err.splitlines() if line.startswith("parspec: warning: ")]
    assert len(warnings) == 1
    assert "num_particles=1" in warnings[0]


def test_options_become_sampling_params() -> None:
    options = RequestOptions(temperature=0.5, stop=["a", "b"], commit_lag="off", num_particles=3)
    expected = SamplingParams(temperature=0.5, stop=["a", "b"], commit_lag=float("inf"), num_particles=3)
    assert options.params() == expected
    assert RequestOptions().params() == SamplingParams()
    assert RequestOptions(commit_lag="7", stop=[]).params() == SamplingParams(commit_lag=7)


def test_help_states_the_defaults(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = re.sub(r"[^\x20-\x7e]+", " ", cli("generate", "--help").out)
    defaults = {**vars(SamplingParams()), **vars(MethodParams())}
    for option in (
        "num_draft_tokens",
        "cut_threshold",
        "resample_threshold",
        "commit_lag",
        "temperature",
        "top_p",
    ):
        assert re.search(rf"--{option.replace('_', '-')} .*?Default {defaults[option]:g}\b", text), option
    assert f"(default {MethodParams().rows})" in text
    assert f"Default {defaults['max_tokens']}." in text


def test_help_lists_the_known_models(cli: Cli) -> None:
    ended = cli("pull", "--help")
    assert ended.status == 0
    words = set(re.findall(r"[\w.-]+\w", ended.out))
    assert words >= {*PAIRS, *ARTIFACTS}


def test_help_and_version(cli: Cli) -> None:
    assert cli("--version").out == f"parspec {__version__}\n"
    overview = cli()
    assert overview.status == 0
    for word in ("pull", "generate", "chat", "Examples", "Exit status"):
        assert word in overview.out


def test_pull_prints_folders(cli: Cli, tiny_pair: Pair) -> None:
    assert cli("pull", *tiny_pair).out == f"{tiny_pair.target}\n{tiny_pair.draft}\n"


def test_chat_keeps_the_conversation(cli: Cli, tiny_pair: Pair) -> None:
    def talk(*lines: str) -> str:
        pair = ("--target", tiny_pair.target, "--draft", tiny_pair.draft)
        ended = cli("chat", *pair, "--seed", 1, "--max-tokens", 8, stdin="\n".join(lines) + "\n")
        assert ended.status == 0
        return ended.out

    once = talk("Hello")
    assert once.endswith("\n")
    assert talk("Hello", "/quit", "Hello") == once
    assert talk("Hello", "", "/reset", "Hello") == once + once
    assert talk("Hello", "Hello") != once + once
    assert talk("Hello", "Hello").startswith(once)


def test_constraints_from_the_command_line(generate: Cli, tmp_path: Path) -> None:
    assert generate("Hello", "--regex", "[0-9]{3}").out.strip().isdigit()
    assert generate("Hello", "--choice", "yes", "--choice", "no").out.strip() in ("yes", "no")
    schema = tmp_path / "schema.json"
    schema.write_text('{"enum": [12, 34]}')
    options = ["--method", "smc", "--constraint-mode", "global"]
    for given in (schema, schema.read_text()):
        assert json.loads(generate("Hello", "--json-schema", given, *options).out) in (12, 34)
    missing = generate("Hello", "--json-schema", tmp_path / "none.json")
    assert missing.status == 2
    assert "none.json cannot be read" in missing.err


def test_votes_from_the_command_line(generate: Cli) -> None:
    assert generate("Hello", "--select", "vote", "--vote", "[a-z]", "--power", 2).status == 0
    refused = generate("Hello", "--select", "vote")
    assert refused.status == 2
    assert "needs vote" in refused.err
