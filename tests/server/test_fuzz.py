"""Schemathesis over the schema the server publishes: whatever fits it, or does not, is never a 5xx."""

import contextlib

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck
from hypothesis.errors import Unsatisfiable
from schemathesis.generation import GenerationMode

from tests.server.conftest import MODEL, Server

SETTINGS = hypothesis.settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_no_request_is_a_server_error(server: Server, mode: GenerationMode) -> None:
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    statuses: dict[str, set[int]] = {}
    for operation in (result.ok() for result in schema.get_all_operations()):
        statuses[operation.label] = set()

        def check(case: schemathesis.Case) -> None:
            if isinstance(case.body, dict) and "model" in case.body:
                case.body["model"] = MODEL  # so that what follows is reached
            response = case.call(timeout=60)
            statuses[operation.label].add(response.status_code)  # noqa: B023 - runs within its turn of the loop
            assert response.status_code < 500, response.text
            if response.status_code >= 400:
                assert set(response.json()["error"]) == {"message", "type", "param", "code"}

        strategy = operation.as_strategy(generation_mode=mode)
        if not strategy.is_empty:
            with contextlib.suppress(Unsatisfiable):  # an operation without parameters has nothing to get wrong
                SETTINGS(hypothesis.given(case=strategy)(check))()
    assert statuses["POST /v1/chat/completions"]
    if mode is GenerationMode.POSITIVE:
        assert statuses["POST /tokenize"] & {200}
    assert server.chat(max_tokens=2).status_code == 200
    assert server.llm.num_open == 0
