"""The endpoints beside completions: state, metrics, tokenizer, keys."""

from collections.abc import Callable

import httpx
from prometheus_client.parser import text_string_to_metric_families

from parspec import LLM
from tests.server.conftest import MODEL, Server, running


def metrics(server: Server) -> dict[str, float]:
    """All samples, without labels' names."""
    text = httpx.get(f"{server.url}/metrics").text
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_state(server: Server) -> None:
    assert httpx.get(f"{server.url}/health").json() == {"status": "ok"}
    assert httpx.get(f"{server.url}/ready").json() == {"status": "ready"}


def test_metrics_count_what_happened(endless_llm: Callable[[], LLM]) -> None:
    with running(endless_llm()) as server:
        server.chat(max_tokens=40, method="smc", num_particles=4)
        server.chat(max_tokens=40, method="speculative")
        server.chat(max_tokens=40, method="autoregressive", n=2)
        server.chat(temperature=-1)
        values = metrics(server)
    assert values["parspec:request_success_total length"] == 4
    assert values["parspec:request_failure_total rejected"] == 1
    assert values["parspec:generation_tokens_total"] == 160
    assert values["parspec:prompt_tokens_total"] > 40
    assert values["parspec:num_requests_running"] == values["parspec:num_requests_waiting"] == 0
    assert values["parspec:kv_cache_usage_perc"] == 0
    assert values["parspec:engine_healthy"] == 1
    for name in ("request_queue_time", "time_to_first_token", "e2e_request_latency"):
        assert values[f"parspec:{name}_seconds_count"] == 4
    assert values["parspec:inter_token_latency_seconds_count"] > 0
    assert values["parspec:cycles_total"] == values["parspec:tokens_per_cycle_count"] > 80
    assert values["parspec:effective_sample_share_count"] == values["parspec:cut_position_count"] > 0
    assert values["parspec:effective_sample_share_sum"] <= values["parspec:effective_sample_share_count"]
    assert values["parspec:resamplings_total"] > 0
    drafts, drafted = (
        values["parspec:spec_decode_num_drafts_total"],
        values["parspec:spec_decode_num_draft_tokens_total"],
    )
    assert 0 < drafts < drafted
    assert 0 <= values["parspec:spec_decode_num_accepted_tokens_total"] < drafted


def test_tokenizer(server: Server) -> None:
    found = server.post("/tokenize", prompt="Hello wörld", return_token_strs=True).json()
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
    assert found["max_model_len"] == 512
    assert server.post("/detokenize", tokens=found["tokens"]).json() == {"prompt": "Hello wörld"}
    chat = server.post("/tokenize", messages=[{"role": "user", "content": "Hi"}]).json()
    assert "assistant" in server.post("/detokenize", tokens=chat["tokens"]).json()["prompt"]
    used = server.chat("Hi", max_tokens=1).json()["usage"]["prompt_tokens"]
    assert used == chat["count"]
    assert httpx.get(f"{server.url}/tokenizer_info").json()["eos_token"]


def test_the_key_guards_everything_that_costs_or_tells(tiny_llm: Callable[[], LLM]) -> None:
    with running(tiny_llm(), api_key="secret") as server:
        body = {"model": MODEL, "prompt": "a", "max_tokens": 2}
        with server.client() as client:
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic secret"}):
                for response in (
                    client.post("/v1/completions", json=body, headers=headers),
                    client.get("/v1/models", headers=headers),
                    client.post("/tokenize", json={"prompt": "a"}, headers=headers),
                    client.get("/tokenizer_info", headers=headers),
                ):
                    assert response.status_code == 401
                    assert response.json()["error"]["code"] == "invalid_api_key"
                    assert response.headers["WWW-Authenticate"] == "Bearer"
            for path in ("/health", "/ready", "/metrics", "/"):
                assert client.get(path).status_code == 200
            good = client.post("/v1/completions", json=body, headers={"Authorization": "Bearer secret"})
            assert good.status_code == 200


def test_other_origins_only_if_asked(tiny_llm: Callable[[], LLM]) -> None:
    asked = {"Origin": "http://example.org", "Access-Control-Request-Method": "POST"}
    with running(tiny_llm()) as server:
        response = httpx.options(f"{server.url}/v1/completions", headers=asked)
        assert "access-control-allow-origin" not in response.headers
    with running(tiny_llm(), cors_origins=("http://example.org",)) as server:
        response = httpx.options(f"{server.url}/v1/completions", headers=asked)
        assert response.headers["access-control-allow-origin"] == "http://example.org"


def test_requests_are_logged_only_if_asked(tiny_llm: Callable[[], LLM], caplog) -> None:
    for wanted in (False, True):
        caplog.clear()
        with caplog.at_level("DEBUG"), running(tiny_llm(), log_requests=wanted) as server:
            server.chat("the secret word", max_tokens=3)
            server.chat("the secret word", temperature=-1)
        logged = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("parspec"))
        assert ("the secret word" in logged) is wanted
