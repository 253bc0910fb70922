"""Clients that go away, a queue that is full, a server that stops, an engine that fails."""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from parspec import LLM, AsyncLLM
from parspec.engine.engine import Engine
from parspec.sampling.params import MethodParams
from parspec.server.serve import bind, serve
from parspec.server.service import ServerConfig, Service
from tests.server.conftest import DRAFT, MODEL, TARGET, Server, running
from tests.support.table_model import TableModel, TightModel, loaded

LONG = {"model": MODEL, "prompt": "Hello", "max_tokens": 50_000, "method": "autoregressive"}


class Faulty(TableModel):
    """Waits while it is held, and fails once it is broken, at once or after some passes."""

    def __init__(self) -> None:
        super().__init__(TARGET.tables)
        self.free = threading.Event()
        self.error: Exception | None = None
        self.good_passes = 0

    def forward(self, requests):
        assert self.free.wait(30)
        if self.error is not None:
            if not self.good_passes:
                raise self.error
            self.good_passes -= 1
        return super().forward(requests)


@contextlib.contextmanager
def faulty(max_concurrent: int = 64) -> Iterator[tuple[Server, Faulty]]:
    model = Faulty()
    llm = LLM.of(Engine(loaded(model), loaded(DRAFT), MethodParams(), 1 << 30))
    with running(llm, max_concurrent=max_concurrent) as server:
        try:
            yield server, model
        finally:
            model.free.set()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 3])
def test_a_client_that_goes_takes_its_requests_along(endless_server: Server, stream: bool, n: int) -> None:
    engine = endless_server.llm.llm.engine
    body = {**LONG, "stream": stream, "n": n}
    with endless_server.client() as client:
        if stream:
            with client.stream("POST", "/v1/completions", json=body) as response:
                lines = response.iter_lines()  # kept: a forgotten iterator closes the response
                next(lines)
                assert len(engine.scheduler.running) == n
        else:
            with pytest.raises(httpx.ReadTimeout):
                client.post("/v1/completions", json=body, timeout=0.5)
    endless_server.wait_until_idle()
    assert 'parspec:request_failure_total{cause="abort"}' in httpx.get(f"{endless_server.url}/metrics").text


def test_a_client_that_goes_while_it_waits(endless_llm: Callable[[], LLM]) -> None:
    with running(endless_llm(), max_concurrent=1) as server, server.client() as client:
        with client.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as response:
            lines = response.iter_lines()  # kept: a forgotten iterator closes the response
            next(lines)
            for stream in (True, False):
                with pytest.raises(httpx.ReadTimeout):
                    client.post("/v1/completions", json={**LONG, "stream": stream}, timeout=0.3)
            until(lambda: server.llm.num_open == 1)
        server.wait_until_idle()


def test_a_full_queue(endless_llm: Callable[[], LLM]) -> None:
    with (
        running(endless_llm(), max_concurrent=1, max_queue=1) as server,
        server.client() as client,
        ThreadPoolExecutor() as pool,
        client.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as response,
    ):
        lines = response.iter_lines()  # kept: a forgotten iterator closes the response
        next(lines)
        waiting = pool.submit(server.complete, max_tokens=3)
        until(lambda: server.llm.num_open == 2)
        refused = server.complete(max_tokens=3)
        assert refused.status_code == 429
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert 1 <= int(refused.headers["Retry-After"]) <= 60
        assert server.complete(max_tokens=3, n=5).status_code == 400, "that many never fit"
        response.close()
        assert waiting.result().status_code == 200
        assert server.complete(max_tokens=3).status_code == 200


def test_a_stopping_server_finishes_what_it_has_begun() -> None:
    with faulty() as (server, model), ThreadPoolExecutor() as pool:
        begun = [pool.submit(server.complete, [1], max_tokens=4) for _ in range(3)]
        until(lambda: server.llm.num_open == 3)
        server.service.draining = True
        late = server.complete([1])
        assert late.status_code == 503
        assert int(late.headers["Retry-After"]) > 0
        assert late.json()["error"]["type"] == "server_error"
        assert httpx.get(f"{server.url}/ready").status_code == 503
        assert httpx.get(f"{server.url}/health").status_code == 200
        model.free.set()
        for one in begun:
            assert one.result().status_code == 200


def test_an_engine_that_fails_tells_everybody() -> None:
    with faulty(max_concurrent=2) as (server, model), ThreadPoolExecutor() as pool:
        asked = [pool.submit(server.complete, [1], max_tokens=8, stream=i % 2 == 0) for i in range(6)]
        until(lambda: server.llm.num_open == 6)
        model.error = ZeroDivisionError("a bug")
        model.free.set()
        for one in asked:
            assert one.result().status_code == 500
            assert one.result().json()["error"]["code"] == "engine_stopped"
        health = httpx.get(f"{server.url}/health")
        assert health.status_code == 503
        assert "a bug" in health.json()["reason"]
        assert httpx.get(f"{server.url}/ready").status_code == 503
        assert server.complete([1]).status_code == 500
        assert "parspec:engine_healthy 0.0" in httpx.get(f"{server.url}/metrics").text
        assert server.llm.num_open == 0


def test_the_process_ends_with_status_1_after_a_failure() -> None:
    """Whoever started it can start it again; nobody is left waiting."""
    model = Faulty()
    model.error = ZeroDivisionError("a bug")
    model.free.set()
    llm = LLM.of(Engine(loaded(model), loaded(DRAFT), MethodParams(), 1 << 30))
    service = Service(AsyncLLM.of(llm), ServerConfig(model_name=MODEL))
    sock = bind("127.0.0.1", 0)
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    notes: list[str] = []
    with ThreadPoolExecutor() as pool:
        status = pool.submit(serve, service, sock, 1.0, notes.append)
        until(lambda: len(notes) > 0 and _answers(url))
        response = httpx.post(f"{url}/v1/completions", json={"model": MODEL, "prompt": [1]})
        assert response.status_code == 500
        assert status.result(30) == 1
    assert any("the engine has failed: ZeroDivisionError: a bug" in note for note in notes)


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.TransportError:
        return False


def test_a_fault_after_the_first_piece_is_an_event() -> None:
    body = {"model": MODEL, "prompt": [1], "max_tokens": 8, "stream": True, "ignore_eos": True}
    body |= {"method": "autoregressive", "return_token_ids": True}
    with faulty() as (server, model), server.client() as client:
        model.good_passes, model.error = 2, ZeroDivisionError("a bug")
        model.free.set()
        with client.stream("POST", "/v1/completions", json=body) as response:
            lines = [line for line in response.iter_lines() if line]
    assert response.status_code == 200
    assert len(lines) > 1
    assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "engine_stopped"


def test_memory_that_runs_out_fails_one_request_only() -> None:
    llm = LLM.of(Engine(loaded(TightModel(TARGET.tables)), loaded(DRAFT), MethodParams(), 1 << 30))
    with running(llm) as server, ThreadPoolExecutor() as pool:
        answers = [pool.submit(server.complete, [1], max_tokens=size) for size in (4, 8, 4)]
        assert [answer.result().status_code for answer in answers] == [200, 503, 200]
        assert answers[1].result().json()["error"]["code"] == "out_of_memory"
        assert httpx.get(f"{server.url}/health").status_code == 200


def test_a_request_that_can_never_fit_is_refused() -> None:
    llm = LLM.of(Engine(loaded(TARGET), loaded(DRAFT), MethodParams(), 10_000))
    with running(llm) as server:
        assert server.complete([1], max_tokens=4, num_particles=2).status_code == 200
        refused = server.complete([1], max_tokens=9, num_particles=1000)
        assert refused.status_code == 400
        assert "num_particles" in refused.json()["error"]["message"]
