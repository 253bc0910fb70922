"""On real weights: sampling parameters mean what they mean in transformers, greedy, token for token."""

import gc
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, LogitsProcessor, LogitsProcessorList

from parspec import LLM, SamplingParams
from parspec.models.locate import locate
from tests.real.greedy import TARGET, Greedy, flips, generate, lay_out, load_target

pytestmark = [pytest.mark.real, pytest.mark.timeout(1500)]

TOKENS = 32
PROMPTS = ["Write a Python function that adds the numbers of a list.", "Answer with one word: what is 2 + 2?"]


class OnAnswer(LogitsProcessor):
    """A function of the answer's tokens and the logits, in transformers' form."""

    def __init__(self, change: Callable[[list[int], torch.Tensor], torch.Tensor], prompt_length: int) -> None:
        self.change, self.prompt_length = change, prompt_length

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return torch.stack(
            [self.change(ids[self.prompt_length :].tolist(), row) for ids, row in zip(input_ids, scores, strict=True)]
        )


def penalised(answer: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
    """Presence penalty 0.6 and frequency penalty 0.9 by the formula of the official API."""
    logits = logits.clone()
    for token in answer:
        logits[token] -= 0.9
    for token in set(answer):
        logits[token] -= 0.6
    return logits


def no_repeats(answer: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
    """A processor as users write them: no token twice within four."""
    logits = logits.clone()
    logits[list(answer[-4:])] = -torch.inf
    return logits


def cases(tokenizer: Any) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Name to parspec's parameters and ``generate``'s; "change" is a function to be wrapped for the latter."""
    words = ["def", "return sum"]
    spellings = [tokenizer(text, add_special_tokens=False)["input_ids"] for w in words for text in (w, f" {w}")]
    common = sorted(set(range(1000)) | {tokenizer.eos_token_id})
    bias = {tokenizer("def")["input_ids"][0]: -5.0, tokenizer("```")["input_ids"][0]: -7.5, 19: -6.0}
    as_sequences = {(token,): value for token, value in bias.items()}
    return {
        "repetition_penalty": ({"repetition_penalty": 1.3}, {"repetition_penalty": 1.3}),
        "penalties": ({"presence_penalty": 0.6, "frequency_penalty": 0.9}, {"change": penalised}),
        "logit_bias": ({"logit_bias": bias}, {"sequence_bias": as_sequences}),
        "bad_words": ({"bad_words": words}, {"bad_words_ids": spellings}),
        "min_tokens": ({"min_tokens": 20}, {"min_new_tokens": 20}),
        "allowed_token_ids": ({"allowed_token_ids": common}, {"prefix_allowed_tokens_fn": lambda *_: common}),
        "logits_processors": ({"logits_processors": [no_repeats]}, {"change": no_repeats}),
        "several": (
            {"repetition_penalty": 1.2, "min_tokens": 12, "bad_words": words},
            {"repetition_penalty": 1.2, "min_new_tokens": 12, "bad_words_ids": spellings},
        ),
    }


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(locate(TARGET))


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    return lay_out(PROMPTS)


@pytest.fixture(scope="module")
def reference(tokenizer: Any, prompts: list[list[int]]) -> dict[str, list[Greedy]]:
    """What ``generate`` says for every case and prompt."""
    model = load_target()
    answers: dict[str, list[Greedy]] = {}
    for name, (_, options) in cases(tokenizer).items():
        answers[name] = []
        for prompt in prompts:
            given = dict(options)
            if change := given.pop("change", None):
                given["logits_processor"] = LogitsProcessorList([OnAnswer(change, len(prompt))])
            answers[name].append(generate(model, prompt, TOKENS, **given))
    del model
    gc.collect()
    return answers


@pytest.fixture(scope="module")
def llm(reference: object) -> LLM:
    """The pair; made after the reference, so that both are never in memory together."""
    return LLM("qwen2.5-coder", dtype="float32")


@pytest.mark.parametrize("method", ["autoregressive", "speculative", "smc"])
def test_greedy_equals_transformers(llm, tokenizer, prompts, reference, measured, method: str) -> None:
    asked = cases(tokenizer)
    outputs = iter(
        llm.generate(
            [{"prompt_token_ids": prompt} for _ in asked for prompt in prompts],
            [
                SamplingParams(
                    temperature=0, max_tokens=TOKENS, method=method, num_particles=2, num_draft_tokens=4, **params
                )
                for params, _ in asked.values()
                for _ in prompts
            ],
        )
    )
    count, answers = 0, set()
    for name in asked:
        for expected in reference[name]:
            actual = next(outputs).token_ids
            answers.add(tuple(actual))
            count += flips(actual, expected, name)
    measured(f"{method}: {len(asked)} parameters, {count} near-tie flips, {len(answers)} different answers")
    assert len(answers) > len(asked), "the parameters change something"
