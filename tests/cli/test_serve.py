"""``parspec serve`` as a process: addresses, signals, exit statuses, what it prints."""

import os
import re
import signal
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.cli.conftest import Cli, start_process
from tests.support.models import Pair


class Process:
    """A server process whose standard error is collected."""

    def __init__(self, pair: Pair, *options: object) -> None:
        self.process: subprocess.Popen[bytes] = start_process(
            "serve", pair.target, "--draft", pair.draft, "--port", 0, "--served-model-name", "tiny", *options
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.url = self.wait_for(r"on (http://\S+)")

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.decode())

    def wait_for(self, pattern: str, seconds: float = 60) -> str:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for line in list(self.lines):
                if found := re.search(pattern, line):
                    return found[found.lastindex or 0]
            time.sleep(0.02)
        raise AssertionError(f"no {pattern} in {self.lines}")

    def status(self, seconds: float = 60) -> int:
        status = self.process.wait(seconds)
        self._reader.join()
        return status


@contextmanager
def serving(pair: Pair, *options: object) -> Iterator[Process]:
    server = Process(pair, *options)
    try:
        yield server
    finally:
        server.process.kill()
        server.status()


LONG = {"model": "tiny", "prompt": "Hello", "max_tokens": 600, "method": "autoregressive", "stream": True}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_lets_running_requests_finish(endless_pair: Pair, number: int) -> None:
    with serving(endless_pair, "--grace", 60) as server:
        with httpx.stream("POST", f"{server.url}/v1/completions", json=LONG, timeout=60) as response:
            lines = response.iter_lines()
            next(lines)
            server.process.send_signal(number)
            server.wait_for("1 open requests have 60 s")
            assert httpx.get(f"{server.url}/ready").status_code == 503
            late = httpx.post(f"{server.url}/v1/completions", json=LONG)
            assert late.status_code == 503
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert '"finish_reason":"length"' in rest[-2]
        assert server.status() == 0
        assert not any("Traceback" in line for line in server.lines)


def test_what_does_not_finish_in_time_is_told(endless_pair: Pair) -> None:
    body = {**LONG, "max_tokens": 90_000}
    with serving(endless_pair, "--grace", 0.2) as server:
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
            lines = response.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert '"error"' in rest[-1]
        assert "closed" in rest[-1]
        assert server.status() == 0
        assert any("did not finish in time" in line for line in server.lines)


def test_second_signal_ends_at_once(endless_pair: Pair) -> None:
    body = {**LONG, "max_tokens": 90_000}
    with (
        serving(endless_pair, "--grace", 600) as server,
        httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response,
    ):
        lines = response.iter_lines()
        next(lines)
        server.process.send_signal(signal.SIGINT)
        server.wait_for("have 600 s")
        server.process.send_signal(signal.SIGINT)
        assert server.status(20) == 0


def test_an_address_can_be_used_again_at_once(endless_pair: Pair) -> None:
    """Also where a connection of the server before has not quite gone."""
    with serving(endless_pair, "--grace", 0) as server:
        port = server.url.rsplit(":", 1)[1]
        with httpx.stream("POST", f"{server.url}/v1/completions", json=LONG, timeout=60) as response:
            next(response.iter_lines())
            server.process.send_signal(signal.SIGTERM)
            assert server.status() == 0
    with serving(endless_pair, "--port", port) as server:
        assert server.url.endswith(f":{port}")


def test_throughput_is_printed_while_there_is_any(endless_pair: Pair) -> None:
    body = {**LONG, "max_tokens": 90_000}
    with serving(endless_pair) as server:
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
            for _ in response.iter_lines():
                if any("tokens/s" in line for line in server.lines):
                    break
        line = next(line for line in server.lines if "tokens/s" in line)
        number = r"[0-9.]+"
        assert re.search(rf"1 running, 0 waiting, {number} tokens/s \(prompts {number}\), {number} cycles/s", line)
        assert not any("Hello" in line for line in server.lines)


def test_taken_port_is_refused_before_loading(cli: Cli, tiny_pair: Pair) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ended = cli("serve", tiny_pair.target, "--draft", tiny_pair.draft, "--port", taken.getsockname()[1])
    ended.assert_refused("port", "in use", "choose another")
    assert "loaded" not in ended.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--host", "no.such.host.invalid"], ["no.such.host.invalid", "choose another"]),
        (["--port", 70000], ["--port"]),
        (["--api-key", ""], ["API key"]),
        (["--api-key", "schlüssel"], ["API key"]),
        (["--api-key-file", "no-such-file"], ["--api-key-file"]),
        (["--max-concurrent", 0], ["--max-concurrent"]),
        (["--max-queue", -1], ["--max-queue"]),
        (["--max-tokens", 0], ["--max-tokens"]),
        (["--num-particles", 0], ["num_particles"]),
        (["--method", "magic"], ["method"]),
        (["--temperature", 1], ["--temperature"]),
    ],
    ids=lambda value: str(value[0]),
)
def test_bad_options(cli: Cli, tiny_pair: Pair, options: list[object], words: list[str]) -> None:
    ended = cli("serve", tiny_pair.target, "--draft", tiny_pair.draft, "--port", 0, *options)
    ended.assert_refused(*words)
    assert "loaded" not in ended.err


def test_key_from_a_file_and_the_warning_without(endless_pair: Pair, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("secret\n")
    os.chmod(key, stat.S_IRUSR)
    with serving(endless_pair, "--api-key-file", key, "--host", "0.0.0.0") as server:
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        assert httpx.get(f"{url}/v1/models").status_code == 401
        assert httpx.get(f"{url}/v1/models", headers={"Authorization": "Bearer secret"}).status_code == 200
        assert not any("anybody" in line or "secret" in line for line in server.lines)
    with serving(endless_pair, "--host", "0.0.0.0") as server:
        assert any("anybody who reaches 0.0.0.0" in line for line in server.lines)
