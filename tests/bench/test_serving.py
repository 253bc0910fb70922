"""``parspec bench serving`` counts what clients see, faults included."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from parspec import LLM
from tests.cli.conftest import Cli, cli, tiny_pair
from tests.server.conftest import endless_llm, endless_pair, running

__all__ = ["cli", "endless_llm", "endless_pair", "tiny_pair"]


def test_load_is_answered_and_counted(endless_llm: Callable[[], LLM], cli: Cli, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    with running(endless_llm()) as server:
        ended = cli(
            *("bench", "serving", server.url, "--streams", "1,4", "--seconds", "0.5", "--max-tokens", "12"),
            *("--settings", "smc:3:2:8,autoregressive", "--json", report, "--markdown", tmp_path / "report.md"),
        )
        finished = server.service.metrics.total(server.service.metrics.generation_tokens) / 12
    assert ended.status == 0, ended.err
    rows = json.loads(report.read_text())
    assert [(row["setting"], row["streams"]) for row in rows] == [
        ("smc N=3 K=2 lag=8", 1),
        ("smc N=3 K=2 lag=8", 4),
        ("autoregressive", 1),
        ("autoregressive", 4),
    ]
    assert sum(row["answered"] for row in rows) == finished
    for row in rows:
        assert row["failed"] == row["left_open"] == 0
        assert row["answered"] >= row["streams"]
        assert row["tokens_per_second"] > 0
        assert 0 < row["first"][0] <= row["first"][1]
        assert len(row["memory"]) >= 2
    assert "| smc N=3 K=2 lag=8 |" in (tmp_path / "report.md").read_text()


def test_failures_are_counted(endless_llm: Callable[[], LLM], cli: Cli) -> None:
    with running(endless_llm(), max_concurrent=1, max_queue=0) as server:
        ended = cli("bench", "serving", server.url, "--streams", 3, "--seconds", 0.3, "--max-tokens", 400)
    assert ended.status == 1
    assert "status 429" in ended.err


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--settings", "magic"], "magic"),
        (["--settings", "smc:4"], "smc:4"),
        (["--settings", "auto:3"], "auto:3"),
        (["--settings", "smc:a:b"], "smc:N:K"),
        (["--streams", "0"], "streams"),
        (["--json", "no/such/folder/file"], "not a folder"),
        ([], "start parspec serve"),
    ],
)
def test_bad_input(cli: Cli, options: list[str], word: str) -> None:
    cli("bench", "serving", "http://127.0.0.1:9", *options).assert_refused(word)
