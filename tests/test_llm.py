"""The public interface on a tiny pair with a tokenizer."""

import subprocess
import sys
from pathlib import Path

import pytest

from parspec import LLM, InvalidRequestError, ModelError, SamplingParams
from tests.support.models import chat_tokenizer, make_folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("pair")
    tokenizer = chat_tokenizer()
    size = max(tokenizer.get_vocab().values()) + 1
    target = make_folder(root / "target", seed=0, tokenizer=tokenizer, vocab_size=size + 5)
    draft = make_folder(root / "draft", seed=1, tokenizer=tokenizer, vocab_size=size + 2, context=400)
    return target, draft


@pytest.fixture(scope="module")
def llm(folders: tuple[Path, Path]) -> LLM:
    return LLM(str(folders[0]), draft=str(folders[1]), num_particles=4, num_draft_tokens=3)


def params(**changes: object) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.8, "max_tokens": 12, "seed": 1, **changes})  # type: ignore[arg-type]


def test_one_prompt_or_many_in_order(llm: LLM) -> None:
    prompts = ["one", {"prompt": "two words"}, {"prompt_token_ids": [5, 6, 7]}]
    each = [params(seed=i, max_tokens=4 + 3 * i, method=m) for i, m in enumerate(("smc", "speculative", "smc"))]
    together = llm.generate(prompts, each)
    assert [len(o.token_ids) <= 4 + 3 * i for i, o in enumerate(together)] == [True] * 3
    assert together[2].prompt_token_ids == [5, 6, 7]
    for prompt, one, output in zip(prompts, each, together, strict=True):
        assert llm.generate(prompt, one)[0].token_ids == output.token_ids


def test_everything_a_result_promises(llm: LLM) -> None:
    output = llm.generate("hello", params(max_tokens=20))[0]
    assert output.text == llm.tokenizer.decode(output.token_ids, skip_special_tokens=True)
    assert output.finish_reason in ("stop", "length")
    posterior, metrics = output.posterior, output.metrics
    assert len(posterior.particles) == 4
    assert sum(p.weight for p in posterior.particles) == pytest.approx(1.0)
    assert output.token_ids in [p.token_ids for p in posterior.particles]
    assert len(posterior.ess) == metrics.cycles - 1
    assert posterior.intervals[-1].chi2 >= -1e-9
    assert metrics.num_tokens == len(output.token_ids)
    assert metrics.tokens_per_second > 0
    assert 1 <= posterior.unique_ancestors <= 4


def test_chat_uses_the_template_once(llm: LLM) -> None:
    conversation = [{"role": "user", "content": "hi"}]
    expected = llm.tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    first, second = llm.chat([conversation, conversation], params())
    assert llm.tokenizer.decode(first.prompt_token_ids) == expected
    assert first.token_ids == second.token_ids == llm.chat(conversation, params())[0].token_ids


@pytest.mark.parametrize("method", ["autoregressive", "speculative", "smc"])
def test_streamed_pieces_join_to_the_answer(llm: LLM, method: str) -> None:
    for seed in range(8):
        sampling = params(method=method, seed=seed, max_tokens=40, stop=["e", "qu"], commit_lag=6)
        chunks = list(llm.stream("the", sampling))
        output = chunks[-1].output
        assert output is not None
        assert "".join(c.text for c in chunks) == output.text
        assert [i for c in chunks for i in c.token_ids] == output.token_ids
        assert "e" not in output.text
        assert "qu" not in output.text


def test_a_stream_refuses_bad_input_at_once(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="prompt is empty"):
        llm.stream("")


def test_leaving_a_stream_early_frees_the_engine(llm: LLM) -> None:
    stream = llm.stream("abc", params(max_tokens=200, method="autoregressive", ignore_eos=True))
    next(stream)
    stream.close()
    assert not llm.engine.has_work


def test_the_same_seed_in_a_new_process(llm: LLM, folders: tuple[Path, Path]) -> None:
    code = (
        "import sys; from parspec import LLM, SamplingParams\n"
        "llm = LLM(sys.argv[1], draft=sys.argv[2], num_particles=4, num_draft_tokens=3)\n"
        "print(llm.generate('again', SamplingParams(temperature=0.8, max_tokens=12, seed=1))[0].token_ids)"
    )
    command = [sys.executable, "-c", code, *map(str, folders)]
    fresh = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert fresh.strip() == str(llm.generate("again", params())[0].token_ids)


def test_a_folder_without_a_tokenizer_works_with_token_ids(tmp_path: Path) -> None:
    bare = LLM(str(make_folder(tmp_path / "t", seed=0)), draft=str(make_folder(tmp_path / "d", seed=1)))
    output = bare.generate({"prompt_token_ids": [1, 2]}, params())[0]
    assert output.text == ""
    assert len(output.token_ids) == 12
    with pytest.raises(ModelError, match="prompt_token_ids"):
        bare.generate("text", params())
    with pytest.raises(InvalidRequestError, match="no chat template"):
        bare.chat([{"role": "user", "content": "x"}])


def test_one_particle_comes_with_a_warning(llm: LLM) -> None:
    with pytest.warns(UserWarning, match="never resamples"):
        llm.generate("x", params(num_particles=1))


@pytest.mark.parametrize(
    ("prompts", "sampling", "message"),
    [
        ("", params(), "prompt is empty"),
        ({"prompt_token_ids": []}, params(), "prompt is empty"),
        ({"prompt_token_ids": ["a"]}, params(), "list of integers"),
        ({"prompt_token_ids": [10**6]}, params(), "outside the vocabulary"),
        ({"text": "x"}, params(), "prompt is"),
        (7, params(), "prompt"),
        ({"prompt_token_ids": [1] * 450}, params(), "takes at most 400"),
        ({"prompt_token_ids": [1] * 600}, params(method="autoregressive"), "takes at most 511"),
        (["a", "b"], [params()], "1 sampling_params for 2 prompts"),
        ("a", {"temperature": 1}, "must be SamplingParams"),
        ("\ud800", params(), "half a character"),
    ],
)
def test_bad_prompts(llm: LLM, prompts, sampling, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        llm.generate(prompts, sampling)
    assert not llm.engine.has_work


@pytest.mark.parametrize("messages", [[], [{}], ["hi"], [{"role": "user"}]])
def test_bad_conversations(llm: LLM, messages) -> None:
    with pytest.raises(InvalidRequestError, match="conversation is a list of messages"):
        llm.chat(messages, params())


def test_a_bad_prompt_among_good_ones_runs_none(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError):
        llm.generate(["good", ""], params())
    assert not llm.engine.has_work


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "magic"}, "method"),
        ({"num_particles": 0}, "num_particles"),
        ({"max_model_len": 1}, "max_model_len"),
        ({"cache_memory": 0}, "cache_memory"),
        ({"device": "cuda:99"}, "device"),
        ({"dtype": "int3"}, "dtype"),
    ],
)
def test_bad_engine_parameters(folders: tuple[Path, Path], arguments: dict, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        LLM(str(folders[0]), draft=str(folders[1]), **arguments)


def test_smc_without_a_draft(folders: tuple[Path, Path]) -> None:
    with pytest.raises(InvalidRequestError, match="needs a draft model"):
        LLM(str(folders[0]), method="smc")
    assert LLM(str(folders[0])).generate("x", params())[0].method == "autoregressive"
