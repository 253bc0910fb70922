"""Answers that have to be JSON, or to fit something else, as clients ask for them."""

import json
import re
from typing import Any

import openai
import pytest

from tests.server.conftest import MODEL, Server

SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "kind": {"enum": ["a", "b"]}},
    "required": ["ok", "kind"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}


@pytest.mark.parametrize("method", ["smc", "speculative", "autoregressive"])
def test_the_official_client_gets_json_of_its_schema(server: Server, method: str) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Hello"}],
        response_format=FORMAT,
        max_tokens=300,
        n=2,
        seed=5,
        extra_body={"method": method, "num_particles": 3},
    )
    for choice in answer.choices:
        # The tiny model's weights are random: it may fill up the blanks a schema allows.
        if choice.finish_reason == "stop":
            parsed = json.loads(choice.message.content)
            assert list(parsed) == ["ok", "kind"]
        else:
            assert answer.usage.completion_tokens >= 300


def test_a_stream_is_the_same_json(server: Server) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    options: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Hello"}],
        "response_format": FORMAT,
        "max_tokens": 200,
        "seed": 6,
    }
    whole = client.chat.completions.create(**options).choices[0].message.content
    pieces = [chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(**options, stream=True)]
    assert "".join(pieces) == whole


def test_other_constraints(server: Server) -> None:
    for body, pattern in (
        ({"choice": ["yes", "no"]}, "yes|no"),
        ({"regex": "[0-9]{3}-[0-9]{2}"}, "[0-9]{3}-[0-9]{2}"),
        ({"regex": "(ab|ba){2}", "constraint_mode": "global", "method": "smc"}, "(ab|ba){2}"),
        ({"grammar": 'start: "x" /[yz]{2}/'}, "x[yz]{2}"),
    ):
        choice = server.complete(max_tokens=50, **body).json()["choices"][0]
        assert choice["finish_reason"] == "stop"
        assert re.fullmatch(pattern, choice["text"])


UNREADABLE = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "strin"}}}


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type", "json_object"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema goes with"),
        ({"response_format": {"type": "json_object"}, "json_schema": {}}, "json_schema", "use one of them"),
        ({"response_format": {"type": "json_object"}, "regex": "a"}, "regex", "both given"),
        ({"response_format": {"type": "json_object"}, "stop": "x"}, "stop", "contradicts"),
        ({"json_schema": {"type": "nope"}}, "json_schema", "cannot be used"),
        ({"regex": "("}, "regex", "cannot be used"),
        ({"regex": r"[^\s\S]"}, "regex", "no token may come next"),
        ({"regex": "((a{100}){100}){100}", "max_tokens": 9}, "regex", "too large"),
        ({"response_format": UNREADABLE}, "response_format", "response_format cannot be used"),
        ({"response_format": UNREADABLE, "stop": "x"}, "stop", "stop contradicts response_format"),
        ({"regex": "a", "constraint_mode": "global", "method": "speculative"}, "constraint_mode", "smc"),
    ],
)
def test_what_cannot_be_served_is_refused(server: Server, body: dict[str, Any], param: str, words: str) -> None:
    response = server.chat(**body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert words in response.json()["error"]["message"]
