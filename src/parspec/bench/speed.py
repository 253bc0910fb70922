"""The speed benchmark: every engine in a process of its own, one after the other, and what came of it."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from parspec.bench.machine import measure_machine
from parspec.bench.peers import PEERS, PeerAbsent, PeerPrompt, PeerRun, PeerSpec, gguf_files, run_peer
from parspec.bench.prompts import Prompt
from parspec.bench.ratios import Results, of_kind
from parspec.bench.records import OwnSpec, Record, Setting
from parspec.errors import ParspecError
from parspec.models.device import choose_dtype
from parspec.models.locate import default_cache_dir, locate, resolve_pair

Say = Callable[[str], None]


@dataclass(frozen=True)
class SpeedPlan:
    """What to measure.

    Attributes:
        target: Name of the large model.
        draft: Of the small one; None for the pair's.
        prompts: What to decode.
        settings: Ways to decode, for the target as it is stored.
        settings_int8: The same for the target in int8; empty to leave it out.
        max_tokens: Length of every answer.
        temperature: Of the sampling.
        repeats: How often everything is run.
        requests: Numbers of requests at once.
        shape: Shapes of target and draft to run with random weights, or None.
        peers: Which peers to run.
        peer_python: Interpreter that has them.
        cache_dir: Where models are kept.
    """

    target: str
    draft: str | None
    prompts: Sequence[Prompt]
    settings: tuple[Setting, ...]
    settings_int8: tuple[Setting, ...]
    max_tokens: int
    temperature: float
    repeats: int
    requests: tuple[int, ...]
    shape: tuple[str, str] | None
    peers: tuple[str, ...]
    peer_python: str
    cache_dir: Path | None


def run_speed(plan: SpeedPlan, say: Say) -> Results:
    """Measure everything a plan asks for.

    Args:
        plan: What to measure.
        say: Told what is happening, a line each.

    Raises:
        ParspecError: parspec itself could not be measured. A peer that cannot is only reported.
    """
    say("measuring the machine")
    machine = measure_machine()
    shape = _run_shape(plan, say) if plan.shape is not None else []
    if plan.shape is not None and not plan.settings:
        return Results(machine, [], [], shape, [])
    target, draft = resolve_pair(plan.target, plan.draft)
    if draft is None:
        raise ParspecError(f'model "{target}" has no draft: name one with --draft')
    for name in (target, draft):
        locate(name, cache_dir=plan.cache_dir)
    own = _run_own(_own_spec(plan, target, draft, None), say, f"{target}, weights as stored")
    own_int8: list[Record] = []
    if plan.settings_int8:
        own_int8 = _run_own(_own_spec(plan, target, draft, "int8"), say, f"{target}, weights in int8")
    own.append(_start_up(target, draft, plan.cache_dir, say))
    peers = _run_peers(plan, target, draft, own, say)
    return Results(machine, own, own_int8, shape, peers)


def _own_spec(plan: SpeedPlan, target: str, draft: str, quantization: str | None) -> OwnSpec:
    stored = quantization is None
    return OwnSpec(
        target=target,
        draft=draft,
        shape=False,
        quantization=quantization,
        draft_quantization="auto",
        prompts=tuple((prompt.task, prompt.text) for prompt in plan.prompts),
        settings=plan.settings if stored else plan.settings_int8,
        max_tokens=plan.max_tokens,
        temperature=plan.temperature,
        repeats=plan.repeats,
        requests=plan.requests if stored else (),
        long_prompt=stored,
        structured=stored,
        cache_dir=None if plan.cache_dir is None else str(plan.cache_dir),
    )


def _run_shape(plan: SpeedPlan, say: Say) -> list[Record]:
    assert plan.shape is not None
    target, draft = plan.shape
    settings = (Setting("autoregressive"), *(Setting("smc", n, k) for n, k in ((4, 4), (4, 8), (8, 8))))
    spec = OwnSpec(
        target=target,
        draft=draft,
        shape=True,
        quantization="int8",
        draft_quantization="int8",
        prompts=(),
        settings=settings,
        max_tokens=27,
        temperature=plan.temperature,
        repeats=max(2, plan.repeats),
        requests=(),
        long_prompt=False,
        structured=False,
        cache_dir=None,
    )
    return _run_own(spec, say, f"shapes {target} and {draft}, random weights: speed, not text")


def _run_own(spec: OwnSpec, say: Say, what: str) -> list[Record]:
    """Run `parspec.bench.own` on a spec; the process is gone when this returns or raises."""
    say(f"measuring {what}")
    records: list[Record] = []
    command = [sys.executable, "-m", "parspec.bench.own"]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(spec.to_json() + "\n")
            process.stdin.close()
            for line in process.stdout:
                records.append(json.loads(line))
                say("  " + _progress(records[-1]))
        except BaseException:
            process.kill()
            raise
        if process.wait():
            errors.seek(0)
            last = errors.read().strip().splitlines()[-1:] or [f"exit status {process.returncode}"]
            raise ParspecError(f"the benchmark's process failed: {last[0]}")
    return records


def _progress(record: Record) -> str:
    kind = record["kind"]
    if kind == "load":
        return f"loaded in {record['seconds']:.1f} s"
    if kind == "step":
        return f"{record['model']} {record['rows']} x {record['tokens']}: {record['seconds'] * 1e3:.1f} ms"
    if kind == "cache":
        return f"cache of N = {record['num_particles']}: {record['bytes'] / 1024**2:.0f} MiB"
    rate = f"{record['num_tokens'] / record['seconds']:.2f} tokens/s"
    if kind == "generation":
        return f"{record['task']} {record['prompt']}, {record['label']}: {rate}"
    if kind == "structured":
        return f"{record['label']}, {'JSON schema' if record['constrained'] else 'the same, free'}: {rate}"
    if kind == "throughput":
        return f"{record['requests']} at once, {record['label']}: {rate}"
    return f"prompt of {record['prompt_tokens']}: {rate}"


def _start_up(target: str, draft: str, cache_dir: Path | None, say: Say) -> Record:
    """Seconds from starting the command to the first character of an answer, models converted before."""
    say("measuring the start of parspec generate")
    command = [sys.executable, "-m", "parspec", "generate", "--target", target, "--draft", draft]
    command += ["--method", "autoregressive", "--max-tokens", "2", "--temperature", "0", "Name a prime number."]
    if cache_dir is not None:
        command += ["--cache-dir", str(cache_dir)]
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        seconds = time.perf_counter() - start
        process.communicate()
    return {"kind": "start", "seconds": seconds}


def _run_peers(plan: SpeedPlan, target: str, draft: str, own: list[Record], say: Say) -> list[PeerRun | PeerAbsent]:
    if not plan.peers:
        return []
    cache = plan.cache_dir or default_cache_dir()
    prompts = of_kind(own, "load")[0]["prompts"]
    gguf: list[str | None] = [None, None]
    if "llama.cpp" in plan.peers or "openvino" in plan.peers:
        try:
            gguf = [str(gguf_files(name, cache)[0]) for name in (target, draft)]
        except ParspecError as error:
            say(f"no GGUF files: {error}")
    drafted = [s.num_draft_tokens for s in plan.settings if s.method == "speculative"]
    spec = PeerSpec(
        target=str(locate(target, cache_dir=plan.cache_dir)),
        draft=str(locate(draft, cache_dir=plan.cache_dir)),
        target_gguf=gguf[0],
        draft_gguf=gguf[1],
        prompts=tuple(PeerPrompt(entry["task"], tuple(entry["token_ids"])) for entry in prompts),
        max_tokens=plan.max_tokens,
        temperature=plan.temperature,
        repeats=plan.repeats,
        threads=torch.get_num_threads(),
        dtype=str(choose_dtype("auto", torch.device("cpu"))).removeprefix("torch."),
        num_draft_tokens=max(drafted, default=5),
        modes=None,
        work_dir=str(cache / "bench"),
    )
    os.makedirs(spec.work_dir, exist_ok=True)
    results: list[PeerRun | PeerAbsent] = []
    for name in plan.peers:
        assert name in PEERS
        say(f"peer {name}")
        found = run_peer(name, spec, plan.peer_python)
        for entry in found if isinstance(found, list) else [found]:
            results.append(entry)
            if isinstance(entry, PeerAbsent):
                say(f"  {name} {entry.mode or ''}: absent: {entry.reason}")
            else:
                rate = entry.num_tokens / entry.seconds
                say(f"  {entry.task} {entry.prompt}, {name} {entry.mode}: {rate:.2f} tokens/s")
    return results
