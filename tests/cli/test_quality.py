"""``parspec bench quality`` and ``bench quantization`` on the tiny pair."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

QUESTION = {"question": "What is 1 plus 1?", "answer": "#### 2"}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "gsm8k.jsonl").write_text((json.dumps(QUESTION) + "\n") * 3)
    return tmp_path


def test_a_run_and_its_report(cli: Cli, data: Path, endless_pair: tuple[Path, Path]) -> None:
    pair = ("--target", endless_pair[0], "--draft", endless_pair[1])
    answers, report = data / "answers.jsonl", data / "report.md"
    work = ("--tasks", "gsm8k,short", "--data", data, "--limit", 2, "--seeds", 2, "--timed", 1, "--max-tokens", 8)
    settings = ("--num-particles", "3", "--num-draft-tokens", "2", "--cut-threshold", "0,0.5")
    ended = cli("bench", "quality", *pair, *work, *settings, "--json", answers, "--markdown", report)
    assert ended.status == 0, ended.err
    assert "gsm8k" in ended.out
    assert len(answers.read_text().splitlines()) == 1 + 2 * 2 * 2 * 4
    text = report.read_text()
    for label in ("autoregressive T=0.7", "speculative K=2 T=0.7", "smc N=3 K=2 kappa=0.5 T=0.7"):
        assert label in text
    assert "energy distance" in text
    for image in ("gsm8k-accuracy-against-speed", "where-the-cuts-fall", "tokens-a-cycle-against-ess"):
        assert f"(images/{image}.svg)" in text
        assert (data / "images" / f"{image}.svg").stat().st_size > 1000
    again = cli("bench", "quality", "--report-only", "--json", answers)
    assert again.status == 0
    assert again.out == ended.out


def test_quantization(cli: Cli, tmp_path: Path, endless_pair: tuple[Path, Path]) -> None:
    pair = ("--target", endless_pair[0], "--draft", endless_pair[1])
    ended = cli("bench", "quantization", *pair, "--limit", 2, "--max-tokens", 4, "--markdown", tmp_path / "a.md")
    assert ended.status == 0, ended.err
    rows = [line for line in (tmp_path / "a.md").read_text().splitlines() if "int8" in line]
    assert len(rows) == 2
    assert all(" 8 " in row for row in rows)  # tokens compared


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--methods", "magic"], 'method "magic" is unknown'),
        (["--select", "worst"], 'select "worst" is unknown'),
        (["--num-particles", "0"], "num_particles"),
        (["--cut-threshold", "x"], "cut_threshold"),
        (["--json", "nowhere/a.jsonl"], "is not a folder"),
        (["--report-only"], "--report-only needs --json"),
    ],
)
def test_bad_input_costs_no_time(cli: Cli, arguments: list[str], words: str) -> None:
    cli("bench", "quality", *arguments).assert_refused(words)
