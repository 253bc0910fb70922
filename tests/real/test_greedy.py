"""On real weights: greedy decoding equals transformers' own, token for token, whatever the method."""

import gc

import pytest

from parspec import LLM, SamplingParams
from tests.real.greedy import Greedy, flips, generate, lay_out, load_target

pytestmark = [pytest.mark.real, pytest.mark.timeout(1500)]

TOKENS = 64
PROMPTS = [
    "Write a Python function that returns the n-th Fibonacci number.",
    "Explain in two sentences what a hash map is.",
    "A train travels 180 km in 2.5 hours. What is its average speed?",
    "Schreibe ein kurzes Gedicht über den Herbst.",
    "def quicksort(items):",
]


@pytest.fixture(scope="module")
def chat_prompts() -> list[list[int]]:
    return lay_out(PROMPTS)


@pytest.fixture(scope="module")
def reference(chat_prompts: list[list[int]]) -> list[Greedy]:
    model = load_target()
    answers = [generate(model, prompt, TOKENS) for prompt in chat_prompts]
    del model
    gc.collect()
    return answers


@pytest.fixture(scope="module")
def llm(reference: object) -> LLM:
    """The pair; made after the reference, so that both are never in memory together."""
    return LLM("qwen2.5-coder", dtype="float32")


@pytest.mark.parametrize(("method", "particles"), [("smc", 1), ("smc", 4), ("speculative", 2), ("autoregressive", 1)])
@pytest.mark.filterwarnings("ignore:num_particles=1")
def test_greedy_equals_transformers(llm, chat_prompts, reference, measured, method: str, particles: int) -> None:
    sampling = SamplingParams(
        temperature=0, max_tokens=TOKENS, method=method, num_particles=particles, num_draft_tokens=6
    )
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in chat_prompts], sampling)
    count = sum(flips(output.token_ids, expected, method) for output, expected in zip(outputs, reference, strict=True))
    cycles = sum(output.metrics.tokens_per_cycle for output in outputs) / len(outputs)
    measured(f"greedy {method}, N={particles}: {count} near-tie flips in 5 answers, {cycles:.1f} tokens a cycle")


def test_streamed_text_is_the_answer(llm, chat_prompts) -> None:
    """At temperature 0.7, with a stop string: pieces join to the text, which ends before the stop string."""
    sampling = SamplingParams(temperature=0.7, max_tokens=40, seed=3, num_particles=4, stop="\n\n")
    chunks = list(llm.stream({"prompt_token_ids": chat_prompts[0]}, sampling))
    output = chunks[-1].output
    assert output is not None
    assert "".join(chunk.text for chunk in chunks) == output.text
    assert [i for chunk in chunks for i in chunk.token_ids] == output.token_ids
    assert "\n\n" not in output.text
    again = llm.generate({"prompt_token_ids": chat_prompts[0]}, sampling)[0]
    assert again.token_ids == output.token_ids
