"""Running a peer: start its process, hand it the spec, read its records, leave nothing behind."""

import os
import signal
import subprocess
import sys
from contextlib import suppress

from parspec.bench.peers.protocol import PeerAbsent, PeerRun, PeerSpec, from_line

PEERS = {
    "transformers": "parspec.bench.peers.transformers_peer",
    "llama.cpp": "parspec.bench.peers.llama_cpp_peer",
    "openvino": "parspec.bench.peers.openvino_peer",
    "vllm": "parspec.bench.peers.vllm_peer",
}
"""Names of the peers, and the modules that run them."""

_TIMEOUT = 3600.0
_LONGEST_REASON = 300


def run_peer(
    name: str, spec: PeerSpec, python: str = sys.executable, timeout: float = _TIMEOUT
) -> list[PeerRun | PeerAbsent] | PeerAbsent:
    """Run all wanted modes of a peer in a process of its own.

    The process, and whatever it has started, is gone when this returns or raises.

    Args:
        name: A key of ``PEERS``.
        spec: What to run.
        python: The interpreter that has the peer installed; parspec must be importable there too.
        timeout: Seconds after which the peer is killed.

    Returns:
        The measured generations, and a ``PeerAbsent`` for every mode that could not be run; a single ``PeerAbsent``
        if the peer is not installed, crashed, or ran out of time.
    """
    command = [python, "-m", PEERS[name]]
    environment = os.environ | {"OMP_NUM_THREADS": str(spec.threads)}
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environment,
            start_new_session=True,  # a group of its own, so that helpers of the peer can be killed with it
        )
    except OSError as error:
        return PeerAbsent(name, f"cannot start {python}: {error.strerror}")
    with process:
        try:
            output, errors = process.communicate(spec.to_json() + "\n", timeout)
        except subprocess.TimeoutExpired:
            return PeerAbsent(name, f"not done after {timeout:g} s and killed")
        finally:
            _kill_group(process.pid)
            process.wait()
    if process.returncode:
        return PeerAbsent(name, _why(process.returncode, errors))
    try:
        records = [from_line(line) for line in output.splitlines() if line.strip()]
    except ValueError as error:
        return PeerAbsent(name, _one_line(f"its output cannot be read: {error}"))
    return records or PeerAbsent(name, "it reported nothing")


def _kill_group(group: int) -> None:
    with suppress(ProcessLookupError):  # the usual case: all of it has ended
        os.killpg(group, signal.SIGKILL)


def _why(status: int, errors: str) -> str:
    """The reason of a failure, from the exit status and what the process wrote to standard error."""
    if status < 0:
        return f"crashed with {signal.Signals(-status).name}"
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    last = lines[-1] if lines else f"exit status {status}"
    if last.startswith(("ModuleNotFoundError", "ImportError")):
        return _one_line(f"not installed ({last.partition(': ')[2] or last})")
    return _one_line(f"failed: {last}")


def _one_line(text: str) -> str:
    return " ".join(text.split())[:_LONGEST_REASON]
