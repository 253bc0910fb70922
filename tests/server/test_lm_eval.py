"""lm-eval's API models work against the server unchanged."""

import json

import lm_eval
import pytest

from tests.server.conftest import MODEL, Server

PROMPTS = ["Hello", "What is it?", "Bye"]


@pytest.fixture
def task(tmp_path) -> dict:
    """A task of lm-eval's own kind on a local file."""
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"question": text, "answer": "e"}) + "\n" for text in PROMPTS))
    return {
        "task": "local",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}, "cache_dir": str(tmp_path / "cache")},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["\n\n"], "max_gen_toks": 12, "temperature": 0.7, "do_sample": True},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    }


@pytest.mark.parametrize(
    ("model", "path", "chat"),
    [("local-chat-completions", "chat/completions", True), ("local-completions", "completions", False)],
)
def test_generation(endless_server: Server, task: dict, model: str, path: str, chat: bool, monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    results = lm_eval.simple_evaluate(
        model=model,
        model_args={"base_url": f"{endless_server.url}/v1/{path}", "model": MODEL, "num_concurrent": 2},
        tasks=[task],
        apply_chat_template=chat,
        log_samples=True,
        bootstrap_iters=0,
    )
    samples = results["samples"]["local"]
    assert len(samples) == len(PROMPTS)
    for sample in samples:
        expected = (
            endless_server.chat(sample["doc"]["question"], max_tokens=12, temperature=0.7, seed=1234, stop=["\n\n"])
            if chat
            else endless_server.complete(
                sample["doc"]["question"], max_tokens=12, temperature=0.7, seed=1234, stop=["\n\n"]
            )
        ).json()["choices"][0]
        assert sample["resps"][0][0] == (expected["message"]["content"] if chat else expected["text"])


def test_multiple_choice(endless_server: Server, task: dict, monkeypatch) -> None:
    """Loglikelihoods come from echoed prompts; with none, lm-eval would silently score chance."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    choices = {"doc_to_choice": ["yes", "no", "e"], "doc_to_target": 2, "output_type": "multiple_choice"}
    without_generation = {name: value for name, value in task.items() if name != "generation_kwargs"}
    metric = [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}]
    results = lm_eval.simple_evaluate(
        model="local-completions",
        model_args={"base_url": f"{endless_server.url}/v1/completions", "model": MODEL, "max_length": 400},
        tasks=[{**without_generation, **choices, "metric_list": metric}],
        log_samples=True,
        bootstrap_iters=0,
    )
    for sample in results["samples"]["local"]:
        for choice, resps in zip(choices["doc_to_choice"], sample["resps"], strict=True):
            log_prob, greedy = resps[0]
            text = sample["doc"]["question"] + " " + choice
            echoed = endless_server.complete(text, max_tokens=1, logprobs=1, echo=True, temperature=0)
            columns = echoed.json()["choices"][0]["logprobs"]
            start = endless_server.post("/tokenize", prompt=sample["doc"]["question"]).json()["count"]
            assert float(log_prob) == pytest.approx(sum(columns["token_logprobs"][start:-1]), abs=1e-5)
            assert float(log_prob) < -0.5
            assert str(greedy) in ("True", "False")
