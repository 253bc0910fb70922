"""The ratios, the tables, the JSON and the plots, from made-up records whose answers are known."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from parspec.bench.machine import Machine
from parspec.bench.peers import PeerAbsent, PeerRun
from parspec.bench.plots import write_plots
from parspec.bench.ratios import TARGETS, Results, ratios, reached
from parspec.bench.records import OwnSpec, Record, Setting
from parspec.bench.report import as_json, insert_markdown, markdown, print_tables, write_json

MACHINE = Machine("some processor", 2, 2, 24.0, ["avx2"], 10e9, {"float32": 100e9}, {"python": "3.11"})


def generation(method: str, task: str, speed: float, particles: int = 1, draft_tokens: int = 0) -> Record:
    setting = Setting(method, particles, draft_tokens)
    return {
        "kind": "generation",
        "label": setting.label,
        "method": method,
        "num_particles": particles,
        "num_draft_tokens": draft_tokens,
        "task": task,
        "prompt": 0,
        "repeat": 0,
        "num_tokens": 101,
        "seconds": 101 / speed,
        "cycles": 11,
        "advanced": 101,
        "prefill_seconds": 0.0,
        "draft_seconds": 0.30 * 101 / speed,
        "target_seconds": 0.68 * 101 / speed,
        "target_passes": 10,
        "mean_ess_share": 0.5 if method == "smc" else None,
    }


def load(target_bytes: float, draft_bytes: float) -> Record:
    sizes = {"target": target_bytes, "draft": draft_bytes}
    models = {
        which: {"name": which, "dtype": "float32", "num_weights": size, "weight_bytes": size}
        for which, size in sizes.items()
    }
    return {"kind": "load", "seconds": 2.0, "prompts": [], **models}


def step(model: str, rows: int, tokens: int, seconds: float) -> Record:
    sizes = {"num_weights": 1e9, "weight_bytes": 1e9}
    return {"kind": "step", "model": model, "rows": rows, "tokens": tokens, "seconds": seconds, **sizes}


def throughput(method: str, requests: int, speed: float) -> Record:
    return {**generation(method, "coding", speed), "kind": "throughput", "requests": requests}


OWN: list[Record] = [
    load(1e9, 0.2e9),
    {"kind": "cache", "num_particles": 1, "bytes": 100},
    {"kind": "cache", "num_particles": 16, "bytes": 130},
    step("draft", 4, 1, 0.025),
    step("draft", 8, 1, 0.04),
    step("target", 1, 1, 0.1),
    step("target", 8, 9, 0.14),
    generation("autoregressive", "coding", 5.0),
    generation("autoregressive", "writing", 5.0),
    generation("speculative", "coding", 12.0, 1, 5),
    generation("speculative", "writing", 8.0, 1, 5),
    generation("smc", "coding", 20.0, 4, 8),
    generation("smc", "coding", 30.0, 2, 8),
    generation("smc", "writing", 18.0, 4, 8),
    {**generation("smc", "-", 10.0, 8, 8), "kind": "cycle", "prompt_tokens": 100},
    {**generation("smc", "-", 8.0, 8, 8), "kind": "cycle", "prompt_tokens": 2000},
    {**generation("smc", "-", 10.0, 4, 8), "kind": "structured", "constrained": False},
    {**generation("smc", "-", 9.0, 4, 8), "kind": "structured", "constrained": True},
    {**generation("speculative", "-", 5.0, 1, 5), "kind": "structured", "constrained": True},
    throughput("auto", 1, 12.0),
    throughput("auto", 8, 36.0),
    {"kind": "start", "seconds": 9.0},
]
PEERS: list[PeerRun | PeerAbsent] = [
    PeerRun("transformers", "generate", "5", "coding", 0, 0, 100, 20.0),
    PeerRun("transformers", "assisted", "5", "coding", 0, 0, 100, 12.5),
    PeerRun("llama.cpp", "Q4_K_M", "1", "coding", 0, 0, 100, 10.0),
    PeerRun("openvino", "int4", "1", "coding", 0, 0, 100, 8.0),
    PeerAbsent("vllm", "not installed"),
]
RESULTS = Results(MACHINE, OWN, [generation("smc", "coding", 25.0, 4, 8)], [], PEERS)


def test_every_ratio() -> None:
    assert ratios(RESULTS) == pytest.approx(
        {
            "ar_vs_floor": 0.1 / (101 / 5 / 100),
            "draft8_vs_floor": 0.02 / 0.04,
            "score72_vs_ar": 1.4,
            "smc_vs_ar_code": 4.0,  # N = 2 is faster but hardly a population
            "smc_vs_sd_code": 20 / 12,
            "smc_vs_sd_writing": 18 / 8,
            "sd_vs_ar_code": 2.4,
            "smc_vs_transformers": 4.0,
            "smc_vs_assisted": 2.5,
            "smc_vs_best_peer": 25 / 12.5,
            "overhead_share": 0.02,
            "long_prompt_cycle": 1.25,
            "cache_n16_vs_n1": 1.3,
            "json_vs_free": 0.9,
            "throughput_8_vs_1": 3.0,
            "shape_smc_vs_ar": None,
        }
    )


def test_what_was_not_measured_is_null() -> None:
    empty = Results(MACHINE, [], [], [], [])
    assert ratios(empty) == dict.fromkeys(TARGETS)
    assert json.loads(json.dumps(as_json(empty)))["ratios"] == dict.fromkeys(TARGETS)


def test_aims_have_a_direction() -> None:
    assert reached("smc_vs_ar_code", 3.5)
    assert not reached("smc_vs_ar_code", 3.4)
    assert reached("overhead_share", 0.03)
    assert not reached("overhead_share", 0.04)
    assert reached("overhead_share", None) is None


def test_files(tmp_path: Path) -> None:
    write_json(RESULTS, tmp_path / "speed.json")
    assert json.loads((tmp_path / "speed.json").read_text())["absent"][0]["engine"] == "vllm"
    images = write_plots(RESULTS, tmp_path / "images")
    assert [image.name for image in images] == [
        "speed-against-draft-length.svg",
        "cycle-by-phase.svg",
        "speed-against-requests.svg",
    ]
    assert "smc, N = 4" in images[0].read_text()
    assert [file.name for file in tmp_path.iterdir() if file.suffix == ".part"] == []


def test_markdown_goes_between_the_marks_and_nowhere_else(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    begin, end = "<!-- begin: parspec bench speed -->", "<!-- end: parspec bench speed -->"
    page.write_text(f"# Title\n\n{begin}\nold\n{end}\n\nThe end.\n")
    for _ in range(2):
        images = [tmp_path / "images" / "a-b.svg", tmp_path.parent / "c.svg"]
        insert_markdown(page, markdown(RESULTS, images, tmp_path))
    text = page.read_text()
    assert text.startswith("# Title\n\n" + begin)
    assert text.endswith(end + "\n\nThe end.\n")
    assert text.count("| smc_vs_ar_code | 4 | >= 3.5 | yes |") == 1
    assert "old" not in text
    assert "![a b](images/a-b.svg)" in text
    assert "![c](../c.svg)" in text


def test_tables_on_a_terminal() -> None:
    console = Console(record=True, width=150)
    print_tables(RESULTS, console)
    text = console.export_text()
    for part in ("Ratios", "smc N=4 K=8", "llama.cpp, Q4_K_M", "not installed", "draft, 8 x 1 tokens"):
        assert part in text


def test_a_spec_survives_the_way_to_its_process() -> None:
    settings = (Setting("smc", 4, 8), Setting("auto"))
    spec = OwnSpec(
        "a", "b", False, None, "int8", (("coding", "text"),), settings, 8, 0.7, 2, (1, 8), False, False, None
    )
    assert OwnSpec.from_json(spec.to_json()) == spec
