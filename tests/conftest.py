"""Measured numbers (distances, p-values, errors) are printed at the end of every run, passed tests included."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import settings

Measured = Callable[[str], None]


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Measured:
    """``measured(text)`` puts a line into the summary at the end of the run."""
    return lambda text: request.node.user_properties.append(("measured", text))


settings.register_profile("parspec", deadline=None)
settings.load_profile("parspec")


def pytest_configure() -> None:
    # The models of most tests are tiny; a second thread only costs them time. tests/real asks for more.
    torch.set_num_threads(1)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = [
        text
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, [])
        for name, text in report.user_properties
        if name == "measured" and report.when == "call"
    ]
    if lines:
        terminalreporter.section("measured")
        for line in lines:
            terminalreporter.write_line(line)
