"""The official client works against the server as it does against the official one."""

import openai
import pytest

from tests.server.conftest import MODEL, Server

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]


@pytest.fixture
def client(endless_server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{endless_server.url}/v1", api_key="none", max_retries=0)


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "parspec"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-5")


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_completion_tokens=20, seed=3)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.system_fingerprint.startswith("fp_")
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 20
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 20
    again = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=20, seed=3)
    assert again.choices[0].message.content == answer.choices[0].message.content


def test_streamed_chat_is_the_whole_answer(client: openai.OpenAI) -> None:
    options = {"model": MODEL, "messages": MESSAGES, "max_tokens": 60, "seed": 4}
    whole = client.chat.completions.create(**options)
    chunks = list(client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    assert len({chunk.id for chunk in chunks}) == 1
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks[:-1]][-1] == "length"
    assert all(c.choices[0].finish_reason is None for c in chunks[:-2])
    assert all(c.usage is None for c in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert len(chunks) > 5


def test_an_answer_can_be_sent_back_as_it_came(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=4, seed=1)
    messages = [*MESSAGES, answer.choices[0].message, {"role": "user", "content": [{"type": "text", "text": "And?"}]}]
    assert client.chat.completions.create(model=MODEL, messages=messages, max_tokens=4).choices


def test_several_answers(client: openai.OpenAI) -> None:
    options = {"model": MODEL, "messages": MESSAGES, "max_tokens": 12, "n": 3, "seed": 8}
    whole = client.chat.completions.create(**options)
    texts = [choice.message.content for choice in whole.choices]
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert whole.usage.completion_tokens == 36
    streamed = ["", "", ""]
    reasons: dict[int, str] = {}
    for chunk in client.chat.completions.create(**options, stream=True):
        choice = chunk.choices[0]
        streamed[choice.index] += choice.delta.content or ""
        if choice.finish_reason:
            reasons[choice.index] = choice.finish_reason
    assert streamed == texts
    assert reasons == dict.fromkeys(range(3), "length")


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="Hello", seed=1)
    assert answer.object == "text_completion"
    assert answer.usage.completion_tokens == 16, "the official default"
    both = client.completions.create(model=MODEL, prompt=["Hello", "Bye"], n=2, seed=1, max_tokens=5, echo=True)
    assert [choice.index for choice in both.choices] == [0, 1, 2, 3]
    assert [choice.text[:3] for choice in both.choices] == ["Hel", "Hel", "Bye", "Bye"]
    streamed = list(client.completions.create(model=MODEL, prompt="Hello", seed=1, echo=True, stream=True))
    assert "".join(chunk.choices[0].text for chunk in streamed) == "Hello" + answer.choices[0].text
    ids = client.completions.create(model=MODEL, prompt=[1, 2, 3], max_tokens=5)
    assert ids.usage.prompt_tokens == 3
    many = client.completions.create(model=MODEL, prompt=[[1, 2], [3]], max_tokens=5)
    assert many.usage.prompt_tokens == 3
    assert len(many.choices) == 2


@pytest.mark.parametrize("method", ["smc", "speculative", "autoregressive", "auto"])
def test_method_parameters_are_extra_fields(client: openai.OpenAI, method: str) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        max_tokens=12,
        extra_body={
            "method": method,
            "num_particles": 3,
            "num_draft_tokens": 2,
            "cut_threshold": 0.5,
            "commit_lag": 8,
            "return_posterior": True,
        },
    )
    posterior = answer.choices[0].posterior
    assert posterior["method"] == method or method == "auto"
    assert len(posterior["particles"]) == (3 if posterior["method"] == "smc" else 1)
    assert sum(particle["weight"] for particle in posterior["particles"]) == pytest.approx(1)
    assert answer.choices[0].message.content in [particle["text"] for particle in posterior["particles"]]


def test_token_ids(client: openai.OpenAI) -> None:
    options = {"model": MODEL, "prompt": "Hello", "seed": 5, "max_tokens": 9, "extra_body": {"return_token_ids": True}}
    whole = client.completions.create(**options).choices[0]
    assert len(whole.token_ids) == 9
    streamed = [chunk.choices[0] for chunk in client.completions.create(**options, stream=True)]
    assert [token for choice in streamed for token in getattr(choice, "token_ids", None) or []] == whole.token_ids


def test_errors_have_the_clients_types(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=-1)
    assert refused.value.param == "temperature"
    assert refused.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-5", messages=MESSAGES)
    assert missing.value.code == "model_not_found"


@pytest.mark.parametrize("method", ["smc", "speculative", "autoregressive"])
def test_log_probabilities(client: openai.OpenAI, method: str) -> None:
    """Those of the target, whatever decoded the answer, and the same as when the text is scored."""
    body = {"method": method, "return_token_ids": True}
    choice = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=9, logprobs=True, top_logprobs=2, extra_body=body
    ).choices[0]
    ids = [*choice.prompt_token_ids, *choice.token_ids]
    assert len(choice.logprobs.content) == 9
    for entry in choice.logprobs.content:
        assert entry.logprob <= max(top.logprob for top in entry.top_logprobs) + 1e-6
        assert len(entry.top_logprobs) == 2
    echoed = client.completions.create(
        model=MODEL, prompt=ids, max_tokens=1, logprobs=1, echo=True, temperature=0, extra_body=body
    ).choices[0]
    columns = echoed.logprobs
    assert columns.token_logprobs[0] is None
    assert len(columns.tokens) == len(columns.token_logprobs) == len(columns.top_logprobs) == len(ids) + 1
    assert columns.token_logprobs[-10:-1] == pytest.approx([e.logprob for e in choice.logprobs.content], abs=1e-5)
    assert columns.token_logprobs[-1] == max(columns.top_logprobs[-1].values()), "greedy"


@pytest.mark.parametrize("method", ["smc", "speculative"])
def test_log_probabilities_in_streams(client: openai.OpenAI, method: str) -> None:
    """The pieces joined are those of the whole answer."""
    options = {"model": MODEL, "seed": 5, "max_tokens": 9, "extra_body": {"method": method, "num_draft_tokens": 2}}
    chat = {**options, "messages": MESSAGES, "logprobs": True, "top_logprobs": 2}
    whole = client.chat.completions.create(**chat).choices[0].logprobs.content
    pieces = [chunk.choices[0].logprobs for chunk in client.chat.completions.create(**chat, stream=True)]
    assert [entry for piece in pieces if piece for entry in piece.content] == whole
    text = {**options, "prompt": "Hello", "logprobs": 1}
    columns = client.completions.create(**text).choices[0].logprobs
    pieces = [chunk.choices[0].logprobs for chunk in client.completions.create(**text, stream=True)]
    for name in ("tokens", "token_logprobs", "text_offset"):
        assert [value for piece in pieces if piece for value in getattr(piece, name)] == getattr(columns, name)
