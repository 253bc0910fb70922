"""Inside a peer's process: run the modes by the rules all peers share, and write the records."""

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

from parspec.bench.peers.protocol import PeerAbsent, PeerRun, PeerSpec, to_line

Generate = Callable[[Sequence[int], int], int]
"""Answers a prompt, given as token ids, with so many new tokens; returns how many it made."""

Mode = Callable[[PeerSpec], Generate]
"""Loads what a mode needs."""

_WARM_UP_TOKENS = 8
_PARENT_CHECK = 1.0
"""Seconds between looks at whether the benchmark is still there."""


def serve(engine: str, version: str, modes: Mapping[str, Mode]) -> None:
    """Read the spec from standard input, run the wanted modes, write records to standard output.

    A mode that fails is reported as absent and the next one is run.

    Args:
        engine: Name of the peer.
        version: Its version.
        modes: Name of every mode, and how to load it.
    """
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    spec = PeerSpec.from_json(sys.stdin.readline())
    records = record_stream()
    for mode in modes if spec.modes is None else spec.modes:
        try:
            if mode not in modes:
                raise ValueError(f"there is no such mode, only {', '.join(modes)}")
            _measure(engine, version, mode, modes[mode], spec, records)
        except Exception as error:  # whatever the engine raises
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            _write(PeerAbsent(engine, reason, mode), records)
        gc.collect()  # the models of this mode, before those of the next are loaded


def needed(path: str | None, what: str) -> str:
    """A file of the spec that a mode cannot do without.

    Raises:
        FileNotFoundError: The spec does not name it, or it is not there.
    """
    if path is None:
        raise FileNotFoundError(f"it needs {what}, and none was given")
    if not os.path.exists(path):
        raise FileNotFoundError(f"{path} does not exist")
    return path


def _measure(engine: str, version: str, mode: str, load: Mode, spec: PeerSpec, records: TextIO) -> None:
    generate = load(spec)
    generate(spec.prompts[0].token_ids, min(_WARM_UP_TOKENS, spec.max_tokens))
    for repeat in range(spec.repeats):
        for index, prompt in enumerate(spec.prompts):
            start = time.perf_counter()
            num_tokens = generate(prompt.token_ids, spec.max_tokens)
            seconds = time.perf_counter() - start
            if num_tokens != spec.max_tokens:
                raise RuntimeError(f"it generated {num_tokens} tokens where {spec.max_tokens} were asked for")
            _write(PeerRun(engine, mode, version, prompt.task, index, repeat, num_tokens, seconds), records)


def _end_with(parent: int) -> None:
    """End this process and its helpers once the benchmark is gone, which may have been killed without a chance to."""
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK)
    os.killpg(0, signal.SIGKILL)


def record_stream() -> TextIO:
    """The real standard output, for records alone: what libraries print goes to standard error from now on."""
    records = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return records


def _write(record: PeerRun | PeerAbsent, records: TextIO) -> None:
    print(to_line(record), file=records, flush=True)
