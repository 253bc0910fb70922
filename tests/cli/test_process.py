"""Exit statuses, signals and pipes, each in a process of its own."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.cli.conftest import heed_interrupts, start_process
from tests.support.models import Pair


def _endless(pair: Pair, *options: str) -> list[object]:
    return [
        "generate",
        "Hello",
        "--target",
        pair.target,
        "--draft",
        pair.draft,
        "--max-tokens",
        50_000,
        *options,
    ]


def test_interrupt_ends_the_line_and_the_program(endless_pair: Pair) -> None:
    process = start_process(*_endless(endless_pair))
    assert process.stdout is not None
    process.stdout.read(20)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out.endswith(b"\n")
    assert b"Traceback" not in err


def test_closed_pipe_is_quiet(endless_pair: Pair) -> None:
    process = start_process(*_endless(endless_pair))
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(20)
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(timeout=60) == 141
    assert all(line.startswith((b"parspec: target", b"parspec: loaded")) for line in err.splitlines())


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_chat_on_a_terminal(endless_pair: Pair) -> None:
    terminal, inside = os.openpty()
    models = ["--target", endless_pair.target, "--draft", endless_pair.draft]
    command = [sys.executable, "-m", "parspec", "chat", *models, "--max-tokens", "50000"]
    process = subprocess.Popen(command, stdin=inside, stdout=inside, stderr=subprocess.PIPE, preexec_fn=heed_interrupts)
    os.close(inside)
    assert process.stderr is not None
    _read_until(terminal, b"> ")
    os.write(terminal, b"Hello\n")
    # The terminal echoes the line, and line editing then writes a few control characters of its own, during which
    # it would swallow the signal; after so many characters it is the answer that is being read.
    _read_until(terminal, b"Hello\r\n")
    for _ in range(40):
        os.read(terminal, 1)
    process.send_signal(signal.SIGINT)
    _read_until(terminal, b"\r\n> ")
    os.write(terminal, b"/reset\n")
    _read_until(terminal, b"\r\n> ")
    time.sleep(0.5)  # a signal between the prompt and the read would wait for the next key
    process.send_signal(signal.SIGINT)
    _read_until(terminal, b"\r\n> ")
    os.write(terminal, b"\x04")
    assert process.wait(timeout=60) == 0
    err = process.stderr.read()
    assert b"conversation is forgotten" in err
    assert b"Traceback" not in err


def _read_until(terminal: int, end: bytes) -> None:
    seen = b""
    while not seen.endswith(end):
        seen += os.read(terminal, 1)


def test_bad_input_in_a_process() -> None:
    process = start_process("generate", "Hello", "--temperature", "-1")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, b"")
    assert err == b"parspec: error: temperature is -1.0: use a number from 0 to 100\n"


def test_standard_input_that_is_not_text() -> None:
    process = start_process("generate")
    _, err = process.communicate(b"caf\xe9", timeout=60)
    assert process.returncode == 2
    assert b"UTF-8" in err
    assert b"Traceback" not in err


def test_help_loads_no_model_library() -> None:
    code = (
        "import sys; from parspec.cli import main; main(['generate', '--help'])\n"
        "assert not {'torch', 'transformers', 'huggingface_hub'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
