"""On real weights: greedy decoding equals transformers' own, token for token, whatever the method."""

import gc

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from parspec import LLM, SamplingParams
from parspec.models.locate import locate

pytestmark = [pytest.mark.real, pytest.mark.timeout(1500)]

TOKENS = 64
NEAR_TIE = 1e-2
"""A different order of the same sums moves a float32 logit by up to 1e-3 here; two tokens closer than this may swap."""
PROMPTS = [
    "Write a Python function that returns the n-th Fibonacci number.",
    "Explain in two sentences what a hash map is.",
    "A train travels 180 km in 2.5 hours. What is its average speed?",
    "Schreibe ein kurzes Gedicht über den Herbst.",
    "def quicksort(items):",
]


@pytest.fixture(scope="module")
def chat_prompts() -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(locate("qwen2.5-coder-1.5b"))
    return [
        tokenizer(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
            ),
            add_special_tokens=False,
        )["input_ids"]
        for text in PROMPTS
    ]


@pytest.fixture(scope="module")
def reference(chat_prompts: list[list[int]]) -> list[tuple[list[int], list[float]]]:
    """What ``generate`` says: the tokens, and the gap between the two largest logits at each."""
    torch.set_num_threads(2)
    folder = locate("qwen2.5-coder-1.5b")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    answers = []
    for prompt in chat_prompts:
        result = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            do_sample=False,
            max_new_tokens=TOKENS,
            output_logits=True,
            return_dict_in_generate=True,
        )
        gaps = [float(top[0, 0] - top[0, 1]) for top in (step.topk(2).values for step in result.logits)]
        answers.append((result.sequences[0, len(prompt) :].tolist(), gaps))
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
    flips = 0
    for output, (expected, gaps) in zip(outputs, reference, strict=True):
        actual = output.token_ids
        first = next((i for i, (a, b) in enumerate(zip(actual, expected, strict=False)) if a != b), None)
        if first is None:
            assert len(actual) == len(expected)
        else:
            assert gaps[first] < NEAR_TIE, f"token {first} differs where the two best are {gaps[first]:.4f} apart"
            flips += 1
    cycles = sum(output.metrics.tokens_per_cycle for output in outputs) / len(outputs)
    measured(f"greedy {method}, N={particles}: {flips} near-tie flips in 5 answers, {cycles:.1f} tokens a cycle")


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
