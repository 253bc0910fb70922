"""What rounding a model's weights does to its distributions: the divergence from the model as stored."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from parspec.bench.quality.compare import Estimate, average
from parspec.decoding.prefill import CHUNK
from parspec.engine.engine import Engine
from parspec.llm import LLM
from parspec.models.cache import GroupCache
from parspec.models.device import choose_device, choose_dtype, free_memory
from parspec.models.interface import Forward, LanguageModel
from parspec.models.loader import LoadedModel, load_model
from parspec.models.locate import locate
from parspec.sampling.params import MethodParams, SamplingParams


class Rounding(NamedTuple):
    """A rounded model beside the same one as stored.

    Attributes:
        model: Its name.
        quantization: The format.
        num_tokens: Positions compared.
        divergence: KL(stored || rounded) per token, in nats, mean over texts with its interval.
        same_choice: Share of positions with the same most probable token.
    """

    model: str
    quantization: str
    num_tokens: int
    divergence: Estimate
    same_choice: float


def roundings(
    names: Sequence[str], prompts: Sequence[str], max_tokens: int, cache_dir: Path | None
) -> Iterator[Rounding]:
    """Compare each model with itself in int8, on texts the first one samples at temperature 1.

    Args:
        names: Models that share a tokenizer; the first is the target.
        prompts: What the texts answer.
        max_tokens: Length of a text.
        cache_dir: Where models are kept.

    Raises:
        ParspecError: A model cannot be had or does not fit.
    """
    device = choose_device("auto")
    dtype = choose_dtype("auto", device)
    texts: list[tuple[list[int], int]] = []
    for name in names:
        folder = locate(name, cache_dir=cache_dir)
        stored = load_model(folder, name, device, dtype)
        texts = texts or _texts(stored, prompts, max_tokens)
        rounded = load_model(folder, name, device, dtype, quantization="int8", partner=stored)
        divergences: dict[str, list[float]] = {}
        same: list[bool] = []
        for index, (token_ids, start) in enumerate(texts):
            per_token: list[float] = []
            same_here: list[bool] = []
            # Both in pieces: one model's logits over a whole text would take too much memory.
            for one, other in zip(_logits(stored.model, token_ids), _logits(rounded.model, token_ids), strict=True):
                log_p, log_q = one.float().log_softmax(-1), other.float().log_softmax(-1)
                per_token += (log_p.exp() * (log_p - log_q)).sum(-1).tolist()
                same_here += (log_p.argmax(-1) == log_q.argmax(-1)).tolist()
            divergences[str(index)] = per_token[start:]
            same += same_here[start:]
        yield Rounding(name, "int8", len(same), average(divergences), sum(same) / len(same))


def _texts(target: LoadedModel, prompts: Sequence[str], max_tokens: int) -> list[tuple[list[int], int]]:
    """Token ids of prompts with answers, and where the answers begin."""
    engine = Engine(target, None, MethodParams(method="autoregressive"), free_memory(choose_device("auto")) // 4)
    llm = LLM.of(engine)
    outputs = llm.chat(
        [[{"role": "user", "content": prompt}] for prompt in prompts],
        [SamplingParams(max_tokens=max_tokens, seed=index) for index in range(len(prompts))],
    )
    # The position before the first token of the answer is the first that counts.
    return [(output.prompt_token_ids + output.token_ids, len(output.prompt_token_ids) - 1) for output in outputs]


def _logits(model: LanguageModel, token_ids: Sequence[int]) -> Iterator[Tensor]:
    """Logits ``[T, V]`` that follow all tokens but the last, in pieces."""
    cache = GroupCache(model.cache_shape, 1, len(token_ids), 0)
    read = torch.tensor(token_ids[:-1], device=model.cache_shape.device)
    with torch.inference_mode():
        for piece in read.split(CHUNK):
            [logits] = model.forward([Forward(model, cache, piece[None], len(piece), into_trunk=True)])
            yield logits[0]
