"""The snippets of the documentation and the examples run, on tiny models in place of real ones."""

import re
import runpy
from pathlib import Path

import pytest

import parspec
from tests.support.models import Pair, tiny_pair

__all__ = ["tiny_pair"]

ROOT = Path(__file__).parents[1]
SNIPPET = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.fixture
def tiny_llm(tiny_pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever name is loaded, the tiny pair comes."""
    llm = parspec.LLM(str(tiny_pair.target), str(tiny_pair.draft), dtype="float32", num_particles=4)
    monkeypatch.setattr(parspec, "LLM", lambda *_: llm)


@pytest.mark.usefixtures("tiny_llm")
def test_snippets_on_controlled_sampling_run(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "controlled.md").read_text()
    snippets = SNIPPET.findall(text)
    assert len(snippets) == text.count("```python") >= 8
    scope: dict[str, object] = {"__name__": "docs"}
    for snippet in snippets:
        exec(compile(snippet, "docs/controlled.md", "exec"), scope)
    assert capsys.readouterr().out


@pytest.mark.usefixtures("tiny_llm")
def test_steering_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "steering.py"), run_name="__main__")
    assert "steered (reward" in capsys.readouterr().out


def test_what_the_potentials_of_the_examples_say() -> None:
    bullets = runpy.run_path(str(ROOT / "examples" / "regex_potential.py"))["bullets"]
    reward = runpy.run_path(str(ROOT / "examples" / "steering.py"))["reward"]
    texts = ["", "- A", "- A tip of mine", "- A tip of mine\n", "* A tip", "- A tip of mine\n- Another"]
    unfinished = bullets([parspec.Prefix([], text, finished=False) for text in texts])
    finished = bullets([parspec.Prefix([], text, finished=True) for text in texts])
    dead = float("-inf")
    assert unfinished == [0, 0, 0, 0, dead, 0]
    assert finished == [dead, dead, 0, dead, dead, 0]
    happy, sad = (parspec.Prefix([], text, finished=False) for text in ("A sunny, happy day.", "A sad day."))
    assert reward([happy, sad]) == [3.0, -1.5]
