"""Run the command line in this process, or in one of its own where signals and pipes matter."""

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from parspec.cli import main
from tests.support.models import endless_pair, tiny_pair

__all__ = ["Cli", "Ended", "endless_pair", "start_process", "tiny_pair"]


@dataclass(frozen=True)
class Ended:
    """A run that is over."""

    status: int
    out: str
    err: str

    def assert_refused(self, *words: str) -> None:
        """It ended in one line that holds the words, with status 2 and nothing on standard output."""
        assert self.status == 2
        assert self.out == ""
        assert "Traceback" not in self.err
        errors = [line for line in self.err.splitlines() if line.startswith("parspec: error: ")]
        assert len(errors) == 1
        assert self.err.splitlines()[-1] == errors[0]
        for word in words:
            assert word in errors[0]


Cli = Callable[..., Ended]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """``cli(*args, stdin="")``: run a command line."""

    def run(*args: object, stdin: str = "") -> Ended:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        status = main([str(arg) for arg in args])
        captured = capsys.readouterr()
        return Ended(status, captured.out, captured.err)

    return run


def start_process(*args: object) -> subprocess.Popen[bytes]:
    """Start a command line in a process of its own, with pipes for its streams."""
    return subprocess.Popen(
        [sys.executable, "-m", "parspec", *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=heed_interrupts,
    )


def heed_interrupts() -> None:
    """Undo what a shell does to the jobs it starts in the background: there, SIGINT is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
