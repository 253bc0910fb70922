"""Greedy answers of transformers on real weights, and what it means to equal them."""

from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from parspec.models.locate import locate

TARGET = "qwen2.5-coder-1.5b"
_NEAR_TIE = 1e-2
"""A different order of the same sums moves a float32 logit by up to 1e-3 here; two tokens closer than this may swap."""


class Greedy(NamedTuple):
    """An answer's tokens, and how far apart the two best were at each."""

    tokens: list[int]
    gaps: list[float]


def load_target() -> PreTrainedModel:
    """The target as transformers runs it."""
    torch.set_num_threads(2)
    return AutoModelForCausalLM.from_pretrained(locate(TARGET), dtype=torch.float32)


def lay_out(texts: list[str]) -> list[list[int]]:
    """Token ids of questions, laid out by the chat template."""
    tokenizer = AutoTokenizer.from_pretrained(locate(TARGET))
    return [
        tokenizer(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
            ),
            add_special_tokens=False,
        )["input_ids"]
        for text in texts
    ]


def generate(model: PreTrainedModel, prompt: list[int], max_tokens: int, **options: Any) -> Greedy:
    """What ``generate`` says."""
    result = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        do_sample=False,
        max_new_tokens=max_tokens,
        output_scores=True,
        return_dict_in_generate=True,
        **options,
    )
    gaps = [float(top[0, 0] - top[0, 1]) for top in (step.topk(2).values for step in result.scores)]
    return Greedy(result.sequences[0, len(prompt) :].tolist(), gaps)


def flips(actual: list[int], expected: Greedy, what: str) -> int:
    """0 if the tokens are equal, 1 if they differ from a place on where the two best nearly tie; else a failure."""
    first = next((i for i, (a, b) in enumerate(zip(actual, expected.tokens, strict=False)) if a != b), None)
    if first is None:
        assert len(actual) == len(expected.tokens), what
        return 0
    gap = expected.gaps[first]
    assert gap < _NEAR_TIE, f"{what}: token {first} differs where the two best are {gap:.4f} apart"
    return 1
