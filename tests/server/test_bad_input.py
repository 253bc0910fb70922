"""Bad input is refused with status 4xx, the official error object, and the name of the field."""

import json
from typing import Any

import pytest

from tests.server.conftest import MODEL, Server

USER = [{"role": "user", "content": "Hello"}]


def refused(response: Any, status: int, *, param: str | None = None, code: str | None = None, words: str = "") -> None:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == ("invalid_request_error" if status != 429 else "rate_limit_error")
    assert "\n" not in error["message"]
    assert words in error["message"]
    if param is not None:
        assert error["param"] == param
    if code is not None:
        assert error["code"] == code


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.5),
        ("temperature", 1e9),
        ("temperature", "0.7"),
        ("temperature", [1]),
        ("top_p", 0),
        ("top_p", 2),
        ("top_k", -7),
        ("top_k", 1.5),
        ("min_p", -1),
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", True),
        ("max_completion_tokens", -3),
        ("n", 0),
        ("n", 129),
        ("n", 1.5),
        ("seed", -1),
        ("seed", 2**80),
        ("stop", ""),
        ("stop", [1]),
        ("stop", {"a": 1}),
        ("stop_token_ids", [100000]),
        ("stop_token_ids", [-1]),
        ("stream", "yes"),
        ("stream_options", {"include_usage": 1}),
        ("method", "magic"),
        ("num_particles", 0),
        ("num_particles", 10**6),
        ("num_draft_tokens", -1),
        ("cut_threshold", 2),
        ("resample_threshold", -1),
        ("resampling", "roulette"),
        ("commit_lag", 0),
        ("select", "worst"),
        ("power", 0),
        ("messages", []),
        ("messages", "Hello"),
        ("messages", [{"role": "wizard", "content": "Hello"}]),
        ("messages", [{"role": "user"}]),
        ("messages", [{"content": "Hello"}]),
        ("messages", [{"role": "user", "content": 5}]),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
        ("messages", [{"role": "user", "content": "Hello", "mood": "good"}]),
        ("messages", [None]),
        ("model", None),
        ("model", 3),
    ],
)
def test_wrong_values(server: Server, field: str, value: Any) -> None:
    body = {"messages": USER, field: value}
    response = server.post("/v1/chat/completions", **body)
    refused(response, 400)
    named = (response.json()["error"]["param"] or "").split(".")[0]
    assert named == ("max_tokens" if field == "max_completion_tokens" else field)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("audio", {"voice": "x"}),
        ("modalities", ["audio"]),
        ("prediction", {"type": "content", "content": "x"}),
        ("reasoning_effort", "high"),
        ("store", True),
        ("web_search_options", {}),
    ],
)
def test_what_the_official_api_has_and_we_do_not(server: Server, field: str, value: Any) -> None:
    refused(server.chat(**{field: value}), 400, param=field, code="unsupported_parameter", words="not supported")


def test_official_fields_that_ask_for_nothing_are_taken(server: Server) -> None:
    response = server.chat(
        max_tokens=4,
        tools=[],
        tool_choice="auto",
        logprobs=False,
        top_logprobs=None,
        logit_bias={},
        presence_penalty=0,
        frequency_penalty=0.0,
        response_format={"type": "text"},
        modalities=["text"],
        user="me",
        metadata={"a": "b"},
        store=False,
        stop=None,
        n=None,
        seed=None,
        service_tier="auto",
        parallel_tool_calls=True,
    )
    assert response.status_code == 200, response.text


def test_unknown_fields_are_refused_by_name(server: Server) -> None:
    refused(server.chat(temprature=1), 400, param="temprature", code="unknown_parameter", words="temprature")
    refused(server.complete(messages=USER), 400, param="messages", code="unknown_parameter")


@pytest.mark.parametrize("prompt", ["", [], [[]], ["a", ""], [-1], [10**6], [1.5], None, 5, [[1], "a"], [True]])
def test_wrong_prompts(server: Server, prompt: Any) -> None:
    refused(server.complete(prompt), 400)


def test_prompt_beyond_the_context(server: Server) -> None:
    refused(server.chat("word " * 2000), 400, param="prompt", code="context_length_exceeded", words="shorten")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"5",
        b'"text"',
        b"\xff\xfe",
        b'{"model": "\xff"}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"model": "tiny", "prompt": "a", "temperature": NaN}',
        b'{"model": "tiny", "prompt": "a", "temperature": Infinity}',
        b'{"model": "tiny", "prompt": "a", "temperature": 1e999}',
        b'{"model": "tiny", "prompt": "a", "max_tokens": ' + b"9" * 10_000 + b"}",
        b'{"model": "tiny", "prompt": "\\ud800"}',
        b'{"model": "\\ud800", "prompt": "a"}',
        b'{"model": "tiny", "prompt": "a", "stop": "\\udfff"}',
        b'{"model": "tiny", "prompt": "a", "\\ud800": 1}',
        b'{"model": "tiny", "prompt": "a", "\\n\\u2028": 1}',
    ],
    ids=lambda content: repr(content[:40]),
)
def test_bodies_that_are_no_request(server: Server, content: bytes) -> None:
    with server.client() as client:
        for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
            response = client.post(path, content=content, headers={"Content-Type": "application/json"})
            refused(response, 400)


def test_other_content_types_are_refused(server: Server) -> None:
    """A web page may send plain text to a server on this machine without asking; it must not be obeyed."""
    text = json.dumps({"model": MODEL, "prompt": "a"})
    with server.client() as client:
        for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
            response = client.post("/v1/completions", content=text, headers={"Content-Type": kind} if kind else {})
            assert response.status_code == 400


def test_bodies_that_are_too_large(server: Server) -> None:
    refused(server.complete("a" * 10_000_000), 413)
    with server.client() as client:  # without a length in the header
        parts = (b"a" * 2**20 for _ in range(10))
        refused(client.post("/v1/completions", content=parts, headers={"Content-Type": "application/json"}), 413)


def test_addresses_that_do_not_exist(server: Server) -> None:
    with server.client() as client:
        refused(client.get("/v1/nothing"), 404)
        refused(client.get("/v1/completions"), 405)
        refused(client.get("/page/../../../etc/passwd"), 404)
        refused(client.get("/page/%2e%2e/app.py"), 404)


def test_options_that_contradict(server: Server) -> None:
    refused(server.chat(stream_options={"include_usage": True}), 400, param="stream_options")
    refused(server.chat(top_logprobs=2), 400, param="top_logprobs", words="logprobs")
    echoed = server.complete("Hello", logprobs=1, echo=True, stream=True)
    refused(echoed, 400, param="echo", code="unsupported_parameter")
    refused(server.chat(logprobs=True, top_logprobs=21), 400, param="top_logprobs")
    refused(server.chat(power=2, method="speculative"), 400, param="power")
    refused(server.post("/tokenize", prompt="a", messages=USER), 400)
    refused(server.post("/tokenize"), 400)
    refused(server.post("/detokenize", tokens=[-1]), 400, param="tokens")
    refused(server.post("/detokenize", tokens=[10**30]), 400)


def test_nothing_is_left_behind(server: Server) -> None:
    """Of all the above, and of a batch whose last prompt is bad, nothing runs."""
    refused(server.complete(["good", "good", ""], max_tokens=400), 400)
    assert server.llm.num_open == 0
    assert server.llm.failure is None
    assert server.chat(max_tokens=4).status_code == 200
