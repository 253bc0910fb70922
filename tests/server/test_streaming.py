"""What was sent is never taken back, ends where the answer ends, and comes in time."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from parspec import LLM, SamplingParams
from tests.server.conftest import Server, running
from tests.support.models import Pair, chat_tokenizer, make_folder


def events(server: Server, **body: Any) -> Iterator[dict[str, Any]]:
    """The objects of a streamed chat."""
    with (
        server.client() as client,
        client.stream(
            "POST",
            "/v1/chat/completions",
            json={"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "stream": True, **body},
        ) as response,
    ):
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    for line in lines[:-1]:
        yield json.loads(line.removeprefix("data: "))


@pytest.mark.parametrize("method", ["smc", "speculative", "autoregressive"])
def test_pieces_are_prefixes_of_the_answer(endless_server: Server, method: str) -> None:
    """Random bytes: characters split over tokens; stop strings split over pieces are held back until decided."""
    stops = ["e", "th", "\n", "ab", "�", "é"]
    stopped = 0
    for seed in range(25):
        body = {
            "seed": seed,
            "method": method,
            "max_tokens": 80,
            "stop": stops[: seed % 7] or None,
            "num_particles": 1 + seed % 5,
            "num_draft_tokens": seed % 6,
            "cut_threshold": (seed % 3) / 2,
            "commit_lag": 1 + 7 * (seed % 4),
        }
        whole = endless_server.chat(**body).json()["choices"][0]
        sent = ""
        reason = None
        for event in events(endless_server, **body):
            choice = event["choices"][0]
            assert reason is None, "nothing follows the end"
            sent += choice["delta"].get("content", "")
            reason = choice["finish_reason"]
            assert whole["message"]["content"].startswith(sent)
        assert sent == whole["message"]["content"]
        assert reason == whole["finish_reason"]
        assert not any(stop in sent for stop in body["stop"] or [])
        stopped += reason == "stop"
    assert stopped > 3


def test_at_most_the_lag_stays_open(endless_llm: Callable[[], LLM]) -> None:
    """The first token leaves within the lag and two cycles, and so does every later one."""
    llm = endless_llm()
    for seed in range(6):
        for lag in (1, 4, 16, 48):
            sampling = SamplingParams(
                seed=seed, max_tokens=160, num_particles=8, num_draft_tokens=4, commit_lag=lag, resample_threshold=0.1
            )
            grown = final = 0
            for update in llm._run([llm.engine.submit(llm.check("Hello", sampling))]):
                for report in update.reports:
                    grown += report.advanced
                    final += len(report.final)
                    assert grown - final <= lag


def test_silence_is_filled_with_comments(tmp_path) -> None:
    """Nobody in between should hang up while a request waits or the particles do not agree."""
    tokenizer = chat_tokenizer()
    folder = make_folder(tmp_path / "large", seed=1, tokenizer=tokenizer, hidden=256, layers=8, eos_ids=[299])
    pair = Pair(folder, make_folder(tmp_path / "small", seed=2, tokenizer=tokenizer, eos_ids=[299]))
    llm = LLM(str(pair.target), str(pair.draft), num_particles=4, num_draft_tokens=8)
    with (
        running(llm, keepalive_seconds=0.001) as server,
        server.client() as client,
        client.stream(
            "POST",
            "/v1/completions",
            json={"model": "tiny", "prompt": "a", "stream": True, "max_tokens": 200, "commit_lag": 100},
        ) as response,
    ):
        lines = [line for line in response.iter_lines() if line]
    assert sum(line == ": still working" for line in lines) > 2
    assert lines[-1] == "data: [DONE]"


@pytest.mark.parametrize(("method", "rows"), [("smc", 3), ("speculative", 1), ("autoregressive", 1)])
def test_population_events_tell_the_whole_run(endless_server: Server, method: str, rows: int) -> None:
    options = {"method": method, "num_particles": rows, "max_tokens": 40, "num_draft_tokens": 3, "seed": 2}
    lanes: list[int] = []
    finals = 0
    for event in events(endless_server, **options, stream_options={"include_population": True}):
        for cycle in event["choices"][0].get("population", []) if event["choices"] else []:
            before = lanes or [0] * len(cycle["drafted"])
            lanes = [before[a] + len(new) for a, new in zip(cycle["ancestors"], cycle["appended"], strict=True)]
            assert len(cycle["weights"]) == len(cycle["finished"]) == len(lanes) == rows
            assert len(cycle["cut_weights"]) == len(cycle["drafted"])
            finals += cycle["num_final"]
            assert finals <= min(lanes)
    assert lanes == [40] * rows
    assert all("population" not in event["choices"][0] for event in events(endless_server, **options))
