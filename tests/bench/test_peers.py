"""Peers: the protocol with fake engines in real processes, and what needs no engine of the files they read."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import gguf
import numpy as np
import pytest

from parspec.bench.peers import PEERS, PeerAbsent, PeerPrompt, PeerRun, PeerSpec, gguf_files, run_peer
from parspec.bench.peers.dequantize import dequantize
from parspec.bench.peers.protocol import from_line, to_line
from parspec.errors import ModelError
from parspec.models import download
from parspec.models.catalog import ARTIFACTS, Artifact
from tests.support.gguf import make_gguf

SPEC = PeerSpec(
    target="target",
    draft="draft",
    target_gguf=None,
    draft_gguf="draft.gguf",
    prompts=(PeerPrompt("code", (1, 2, 3)), PeerPrompt("chat", (4,))),
    max_tokens=5,
    temperature=0.7,
    repeats=2,
    threads=1,
    dtype="float32",
    num_draft_tokens=4,
    modes=None,
    work_dir="work",
)

MEASURED = """
import os
import time
from parspec.bench.peers.measure import needed, serve

def load(spec):
    print("a library that writes to standard output", flush=True)
    os.system("echo and so does a native one")
    def generate(token_ids, max_tokens):
        calls.append((list(token_ids), max_tokens))
        time.sleep(0.01 * len(token_ids))
        return max_tokens
    calls = []
    return generate

def short(spec):
    return lambda token_ids, max_tokens: max_tokens - 1

def broken(spec):
    raise RuntimeError("no\\n  such kernel")

def with_file(spec):
    needed(spec.target_gguf, "the target as a GGUF file")

serve("fake", "1.2", {"fine": load, "short": short, "broken": broken, "file": with_file, "fine too": load})
"""

HANGS = """
import os, subprocess, sys, time
helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
with open("pids.partial", "w") as file:
    file.write(f"{os.getpid()} {helper.pid}")
os.rename("pids.partial", "pids")
time.sleep(600)
"""

HANGS_IN_A_MODE = f"""
from parspec.bench.peers.measure import serve

def load(spec):
{"".join(f"    {line}" for line in HANGS.splitlines(keepends=True))}
serve("fake", "1.2", {{"fine": load}})
"""

BENCHMARK = """
import sys
from parspec.bench.peers import PEERS, PeerSpec, run_peer

PEERS["fake"] = "fake_peer"
run_peer("fake", PeerSpec.from_json(sys.argv[1]))
"""

Install = Callable[[str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Makes the peer "fake" a module with the given source."""

    def write(source: str) -> None:
        (tmp_path / "fake_peer.py").write_text(source)

    monkeypatch.setitem(PEERS, "fake", "fake_peer")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.chdir(tmp_path)
    return write


def gone(pid: int) -> bool:
    """Whether a process has ended, given a moment for the kill to arrive."""
    for _ in range(200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":  # dead; whoever adopted it has not asked yet
            return True
        time.sleep(0.05)
    return False


def wait_for(file: Path) -> None:
    for _ in range(600):
        if file.exists():
            return
        time.sleep(0.05)
    raise AssertionError(f"{file} has not appeared")


def hanging_pids(folder: Path) -> list[int]:
    return [int(pid) for pid in (folder / "pids").read_text().split()]


def test_every_prompt_is_measured_in_every_repeat(install: Install) -> None:
    install(MEASURED)
    runs = run_peer("fake", replace(SPEC, modes=("fine",)))
    assert isinstance(runs, list)
    assert all(isinstance(run, PeerRun) for run in runs)
    described = [(run.mode, run.task, run.prompt, run.repeat) for run in runs if isinstance(run, PeerRun)]
    assert described == [("fine", task, i, repeat) for repeat in range(2) for i, task in enumerate(("code", "chat"))]
    for run in runs:
        assert isinstance(run, PeerRun)
        assert (run.engine, run.version, run.num_tokens) == ("fake", "1.2", 5)
        assert run.seconds >= 0.01 * len(SPEC.prompts[run.prompt].token_ids)


def test_a_mode_that_fails_does_not_stop_the_others(install: Install) -> None:
    install(MEASURED)
    records = run_peer("fake", SPEC)
    assert isinstance(records, list)
    assert [record.mode for record in records if isinstance(record, PeerRun)] == ["fine"] * 4 + ["fine too"] * 4
    reasons = {record.mode: record.reason for record in records if isinstance(record, PeerAbsent)}
    assert reasons == {
        "short": "RuntimeError: it generated 4 tokens where 5 were asked for",
        "broken": "RuntimeError: no such kernel",
        "file": "FileNotFoundError: it needs the target as a GGUF file, and none was given",
    }


def test_an_unknown_mode_is_named(install: Install) -> None:
    install(MEASURED)
    records = run_peer("fake", replace(SPEC, modes=("fast",)))
    reason = "ValueError: there is no such mode, only fine, short, broken, file, fine too"
    assert records == [PeerAbsent("fake", reason, "fast")]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import no_such_engine", "not installed (No module named 'no_such_engine')"),
        ("raise ValueError('out of luck')", "failed: ValueError: out of luck"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "crashed with SIGSEGV"),
        ("raise SystemExit(3)", "failed: exit status 3"),
        ("", "it reported nothing"),
        ("print('loading...')", "its output cannot be read"),
        ("print('[1]')", "its output cannot be read"),
    ],
)
def test_a_failure_is_one_line(install: Install, source: str, reason: str) -> None:
    install(source)
    absent = run_peer("fake", SPEC)
    assert isinstance(absent, PeerAbsent)
    assert absent.reason.startswith(reason)
    assert "\n" not in absent.reason


def test_a_peer_that_hangs_is_killed_with_its_helpers(install: Install, tmp_path: Path) -> None:
    install(HANGS)
    absent = run_peer("fake", SPEC, timeout=5)
    assert absent == PeerAbsent("fake", "not done after 5 s and killed")
    assert all(gone(pid) for pid in hanging_pids(tmp_path))


def test_an_interrupt_leaves_no_process(install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        wait_for(tmp_path / "pids")
        raise KeyboardInterrupt

    install(HANGS)
    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_peer("fake", SPEC)
    assert all(gone(pid) for pid in hanging_pids(tmp_path))


def test_a_killed_benchmark_leaves_no_process(install: Install, tmp_path: Path) -> None:
    install(HANGS_IN_A_MODE)
    benchmark = subprocess.Popen([sys.executable, "-c", BENCHMARK, SPEC.to_json()])
    try:
        wait_for(tmp_path / "pids")
    finally:
        benchmark.kill()
        benchmark.wait()
    assert all(gone(pid) for pid in hanging_pids(tmp_path))


def test_an_interpreter_that_is_not_there(install: Install) -> None:
    absent = run_peer("fake", SPEC, python="/nowhere/python")
    assert absent == PeerAbsent("fake", "cannot start /nowhere/python: No such file or directory")


def test_spec_and_records_survive_the_way() -> None:
    spec = replace(SPEC, modes=("a", "b"))
    assert PeerSpec.from_json(spec.to_json()) == spec
    assert PeerSpec.from_json(SPEC.to_json()) == SPEC
    for record in (PeerRun("e", "m", "1", "code", 0, 1, 5, 0.25), PeerAbsent("e", "why"), PeerAbsent("e", "why", "m")):
        assert from_line(to_line(record)) == record


def test_every_peer_has_a_module() -> None:
    assert all(find_spec(module) for module in PEERS.values())


def test_gguf_files_of_a_pair_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fake_fetch(artifact: Artifact, folder: Path, *, progress: bool) -> Path:
        assert not progress
        return folder / artifact.file

    monkeypatch.setattr(download, "fetch", fake_fetch)
    target, draft = gguf_files("qwen2.5-coder", tmp_path, progress=False)
    assert target == tmp_path / "gguf" / ARTIFACTS["qwen2.5-coder-1.5b"].file
    assert draft == tmp_path / "gguf" / ARTIFACTS["qwen2.5-coder-0.5b"].file
    assert gguf_files("smollm2-135m", tmp_path, progress=False) == (tmp_path / "gguf" / ARTIFACTS["smollm2-135m"].file,)
    assert os.listdir(tmp_path) == ["gguf"]


def test_gguf_files_of_an_unknown_alias(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r'no GGUF file is known for "gpt": give one of qwen2.5-coder, '):
        gguf_files("gpt", tmp_path)


def test_a_dequantized_file_says_the_same(tmp_path: Path) -> None:
    source, result = make_gguf(tmp_path / "quantized.gguf"), tmp_path / "floats.gguf"
    dequantize(source, result)
    before, after = gguf.GGUFReader(source), gguf.GGUFReader(result)
    assert {f.name: f.contents() for f in before.fields.values() if not f.name.startswith("GGUF.")} == {
        f.name: f.contents() for f in after.fields.values() if not f.name.startswith("GGUF.")
    }
    assert "Q8_0" in {tensor.tensor_type.name for tensor in before.tensors}
    assert {tensor.tensor_type.name for tensor in after.tensors} == {"F16", "F32"}
    for old, new in zip(before.tensors, after.tensors, strict=True):
        assert (old.name, list(old.shape)) == (new.name, list(new.shape))
        np.testing.assert_allclose(new.data, gguf.dequantize(old.data, old.tensor_type), rtol=1e-3, atol=1e-6)
