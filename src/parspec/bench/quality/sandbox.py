"""Runs generated programs in a process of their own, with limits on time, memory, files and output.

The limits keep accidents in bounds: endless loops, exploding lists, forks, large files. They are no protection against
a program that means harm: it runs as the same user, with the network. POSIX only.
"""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass

_PRELUDE = """\
import resource
for name, value in (("RLIMIT_CPU", {seconds}), ("RLIMIT_AS", {memory}), ("RLIMIT_FSIZE", {file_size}),
                    ("RLIMIT_NOFILE", 64), ("RLIMIT_CORE", 0)):
    resource.setrlimit(getattr(resource, name), (value, value))
del resource, name, value
"""
_MOST_SHOWN = 300


@dataclass(frozen=True)
class Verdict:
    """What became of a program.

    Attributes:
        passed: Whether it ran to its end.
        reason: Empty if so; else "timeout" or the last line it wrote to its error stream.
    """

    passed: bool
    reason: str = ""


def run_program(source: str, seconds: float = 10.0, memory: int = 1024**3, file_size: int = 1024**2) -> Verdict:
    """Run a program and see whether it comes to its end.

    Leaving early, as by ``sys.exit(0)``, is not the end.

    Args:
        source: Python.
        seconds: Time it may take.
        memory: Bytes of address space.
        file_size: Bytes of any file it writes, its output included.

    Returns:
        Whether it ran to its end, and if not, why.
    """
    token = secrets.token_hex(16)
    limits = _PRELUDE.format(seconds=int(seconds) + 1, memory=memory, file_size=file_size)
    with tempfile.TemporaryDirectory(prefix="parspec-run-") as folder:
        # The sign of the end is written to a file the program is not told of until it is through.
        program, sign = os.path.join(folder, "program.py"), os.path.join(folder, token)
        end = f"\nwith open({sign!r}, 'w'):\n    pass\n"
        with open(program, "w", encoding="utf-8", errors="replace") as file:
            file.write(limits + source + end)
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                [sys.executable, "-I", "-B", program],
                cwd=folder,
                env={"PATH": os.environ.get("PATH", ""), "HOME": folder, "TMPDIR": folder, "PYTHONHASHSEED": "0"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                return Verdict(False, "timeout")
            finally:
                # Whatever it has started goes with it, and in any case before the folder does.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            if process.returncode == 0 and os.path.exists(sign):
                return Verdict(True)
            errors.seek(0, os.SEEK_END)
            errors.seek(max(0, errors.tell() - file_size))
            lines = errors.read().decode("utf-8", "replace").strip().splitlines()
        if process.returncode == -signal.SIGXCPU:
            return Verdict(False, "timeout")
        return Verdict(False, lines[-1][:_MOST_SHOWN] if lines else f"exit status {process.returncode}")
