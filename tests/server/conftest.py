"""Servers on tiny models, each on a port of its own."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import uvicorn

from parspec import LLM, AsyncLLM
from parspec.server.app import create_app
from parspec.server.service import ServerConfig, Service
from tests.support.models import Pair, endless_pair, tiny_pair
from tests.support.table_model import TableModel

__all__ = ["endless_pair", "tiny_pair"]

MODEL = "tiny"
TARGET = TableModel.random(5, 9, seed=0)
DRAFT = TARGET.perturbed(1, 0.5)


@dataclass(frozen=True)
class Server:
    """A server that runs in this process, on a thread of its own."""

    url: str
    service: Service

    @property
    def llm(self) -> AsyncLLM:
        return self.service.llm

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60, verify=False, **options)

    def post(self, path: str, **body: Any) -> httpx.Response:
        with self.client() as client:
            return client.post(path, json={"model": MODEL, **body})

    def chat(self, text: str = "Hello", **body: Any) -> httpx.Response:
        return self.post("/v1/chat/completions", messages=[{"role": "user", "content": text}], **body)

    def complete(self, prompt: Any = "Hello", **body: Any) -> httpx.Response:
        return self.post("/v1/completions", prompt=prompt, **body)

    def wait_until_idle(self, seconds: float = 20) -> None:
        """Wait until no request is open and none holds memory."""
        scheduler = self.llm.llm.engine.scheduler
        deadline = time.monotonic() + seconds
        while self.llm.num_open or scheduler.running or scheduler.waiting:
            assert time.monotonic() < deadline, "requests stay open"
            time.sleep(0.01)
        assert scheduler.reserved == 0


@contextlib.contextmanager
def running(llm: LLM, *, max_concurrent: int = 64, max_queue: int = 256, **config: Any) -> Iterator[Server]:
    """Serve models until the block is left."""
    served = AsyncLLM.of(llm, max_concurrent=max_concurrent, max_queue=max_queue)
    service = Service(served, ServerConfig(model_name=MODEL, **config))
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(create_app(service), log_config=None, lifespan="off", timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([sock])))
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield Server(f"http://127.0.0.1:{sock.getsockname()[1]}", service)
    finally:
        served.close()
        server.should_exit = True
        thread.join()
        sock.close()


def load(pair: Pair) -> LLM:
    # float32: what a request gets then hardly depends on the company it is in.
    return LLM(str(pair.target), str(pair.draft), dtype="float32", num_particles=4, num_draft_tokens=4)


@pytest.fixture(scope="session")
def tiny_llm(tiny_pair: Pair) -> Callable[[], LLM]:
    return lambda: load(tiny_pair)


@pytest.fixture(scope="session")
def endless_llm(endless_pair: Pair) -> Callable[[], LLM]:
    return lambda: load(endless_pair)


@pytest.fixture(scope="module")
def server(tiny_llm: Callable[[], LLM]) -> Iterator[Server]:
    """Chats with a tiny pair whose answers end by chance."""
    with running(tiny_llm()) as started:
        yield started


@pytest.fixture(scope="module")
def endless_server(endless_llm: Callable[[], LLM]) -> Iterator[Server]:
    """Chats with a tiny pair whose answers end by nothing but their limit."""
    with running(endless_llm()) as started:
        yield started
