"""The running of generated code, and comparisons whose answers are known."""

import os
import time
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from parspec.bench.quality.compare import average, difference, same_distribution, sequence_distance
from parspec.bench.quality.sandbox import run_program

SUM = "def add(a, b):\n    return a + b\n"


def test_a_program_that_ends_has_passed() -> None:
    assert run_program(SUM + "assert add(1, 2) == 3\n").passed
    assert run_program("# é ☃ \ud800\nprint('x' * 10)\n").passed


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (SUM + "assert add(1, 2) == 4", "AssertionError"),
        ("def broken(:\n    pass", "SyntaxError"),
        ("import sys\nsys.exit(0)", "exit status 0"),
        ("import os\nos._exit(0)", "exit status 0"),
        ("raise SystemExit", "exit status 0"),
        ("x = [0] * (10 ** 10)", "MemoryError"),
        ("while True:\n    pass", "timeout"),
        ("import time\ntime.sleep(60)", "timeout"),
        ("input()", "EOFError"),
        ("open('big', 'w').write('x' * 10 ** 7)", "File too large"),
        ("raise ValueError('x' * 10 ** 5)", "ValueError"),
        ("import numpy_is_not_there", "ModuleNotFoundError"),
    ],
)
def test_what_fails_says_why(source: str, reason: str) -> None:
    verdict = run_program(source, seconds=2)
    assert not verdict.passed
    assert reason in verdict.reason or (reason == "File too large" and "OSError" in verdict.reason)
    assert len(verdict.reason) <= 300


def test_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither processes it has started, nor files."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mark = tmp_path / "pid"
    child = (
        f"import os, time\nmark = {str(mark)!r}\nif os.fork() == 0:\n    open(mark, 'w').write(str(os.getpid()))\n"
        "    time.sleep(60)\nwhile not os.path.exists(mark): time.sleep(0.01)\ntime.sleep(0.1)\n"
    )
    assert run_program(child).passed
    pid = int(mark.read_text())
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            break
        # It may wait, dead, for its parent.
        if Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
            break
        time.sleep(0.02)
    else:
        pytest.fail("the child lives on")
    mark.unlink()
    assert not list(tmp_path.iterdir())


def test_accuracy_is_over_items_not_answers() -> None:
    """Many seeds of few items do not make the interval narrow."""
    few = average({"a": [1, 1, 1, 1], "b": [0, 0, 0, 0], "c": [1, 1, 1, 1]})
    assert few.mean == pytest.approx(2 / 3)
    assert few.num_items == 3
    assert few.high - few.low > 2
    one = average({str(i): [float(i % 4 == 0)] for i in range(400)})
    assert (one.low, one.high) == pytest.approx((0.25 - 0.0426, 0.25 + 0.0426), abs=1e-3)


def test_intervals_of_differences_cover_the_truth() -> None:
    """Two settings that agree on most items: pairing makes the interval narrow, and it holds in 95% of trials."""
    rng = np.random.default_rng(1)
    covered, widths, unpaired = 0, [], []
    for _ in range(300):
        hard = rng.random(150)
        first = {str(i): [float(rng.random() < p) for _ in range(2)] for i, p in enumerate(hard)}
        second = {str(i): [float(rng.random() < max(0, p - 0.05)) for _ in range(2)] for i, p in enumerate(hard)}
        estimate = difference(first, second).estimate
        truth = float(np.mean(hard - np.maximum(0, hard - 0.05)))
        # The items are fixed here, so the interval, which is over items too, may cover more often.
        covered += estimate.low <= truth <= estimate.high
        widths.append(estimate.high - estimate.low)
        both = [average(first), average(second)]
        unpaired.append(np.hypot(*(one.high - one.low for one in both)))
    assert covered / 300 > 0.92
    assert np.mean(widths) < 0.85 * np.mean(unpaired)


def test_the_paired_test_is_uniform_without_a_difference() -> None:
    rng = np.random.default_rng(2)
    values = []
    for _ in range(60):
        scores = [{str(i): [float(x)] for i, x in enumerate(rng.normal(size=30))} for _ in range(2)]
        values.append(difference(*scores).p_value)
    assert stats.kstest(values, "uniform").pvalue > 0.01


def test_only_common_items_count() -> None:
    same = difference({"a": [1], "b": [0], "x": [1]}, {"a": [1], "b": [0], "y": [0]})
    assert same.estimate.num_items == 2
    assert same.p_value == 1.0
    clear = difference({str(i): [1] for i in range(20)}, {str(i): [0] for i in range(20)})
    assert clear.p_value < 1e-3
    with pytest.raises(ValueError, match="no items"):
        difference({"a": [1]}, {"b": [1]})


def drawn(seed: int, mean: float, count: int = 6, items: int = 40) -> dict[str, list[float]]:
    rng = np.random.default_rng(seed)
    return {str(item): list(rng.normal(mean + item % 7, 1, count)) for item in range(items)}


def test_the_same_distribution_is_called_so() -> None:
    p_values = [same_distribution(drawn(2 * seed, 0), drawn(2 * seed + 1, 0)) for seed in range(60)]
    assert stats.kstest(p_values, "uniform").pvalue > 0.001
    assert same_distribution(drawn(1, 0), drawn(2, 0.5)) < 0.01
    wider = {item: [3 * value for value in values] for item, values in drawn(2, 0).items()}
    assert same_distribution(drawn(1, 0), wider) < 0.01
    ties = {"a": [1.0, 2.0, 2.0], "b": [2.0]}
    assert same_distribution(ties, ties) == 1.0
    with pytest.raises(ValueError, match="no items"):
        same_distribution({"a": [1.0]}, {"b": [1.0]})


def sequences(seed: int, probability: float, count: int = 20) -> dict[str, list[list[int]]]:
    """Two tokens: the first even, the second equal to it with some probability."""
    rng = np.random.default_rng(seed)
    found: dict[str, list[list[int]]] = {}
    for item in "abc":
        first = rng.integers(0, 2, count)
        second = np.where(rng.random(count) < probability, first, 1 - first)
        found[item] = [[int(x), int(y)][: 1 + int(rng.random() < 0.9)] for x, y in zip(first, second, strict=True)]
    return found


def test_sequences_of_the_same_distribution_are_no_distance_apart() -> None:
    found = [sequence_distance(sequences(2 * seed, 0.5), sequences(2 * seed + 1, 0.5)) for seed in range(40)]
    assert stats.kstest([distance.p_value for distance in found], "uniform").pvalue > 0.001
    energies = [distance.energy for distance in found]
    assert abs(np.mean(energies)) < 3 * np.std(energies) / np.sqrt(len(energies))
    # A difference in the first token shows; so does a different length.
    assert sequence_distance(sequences(1, 0.5), {k: [[1, 1]] * 20 for k in "abc"}).p_value < 0.01
    cut = {item: [one[:1] for one in many] for item, many in sequences(2, 0.5).items()}
    assert sequence_distance(sequences(1, 0.5), cut).p_value < 0.01
    with pytest.raises(ValueError, match="no items"):
        sequence_distance({"a": [[1]]}, {"a": [[1], [2]]})
