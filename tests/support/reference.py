"""What a request does to logits, once more: one position at a time, over whole vocabularies, with plain lists."""

import math
from collections.abc import Callable, Sequence

import torch

from parspec.sampling.params import SamplingParams

Adjust = Callable[[Sequence[int], torch.Tensor], torch.Tensor]
"""An answer's tokens and the logits ``[V]`` after them, to the adjusted logits ``[V]``."""


def reference_adjustments(
    params: SamplingParams, prompt: Sequence[int], stop_ids: Sequence[int], spellings: Sequence[Sequence[int]] = ()
) -> Adjust:
    """The adjustments of one request; ``spellings`` are its bad words as tokens."""

    def adjust(answer: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        answer, values = list(answer), logits.double().tolist()
        for token in range(len(values)):
            if params.allowed_token_ids is not None and token not in params.allowed_token_ids:
                values[token] = -math.inf
            for word in spellings:
                before = list(word[:-1])
                if token == word[-1] and answer[len(answer) - len(before) :] == before and len(answer) >= len(before):
                    values[token] = -math.inf
            if len(answer) < params.min_tokens and token in stop_ids:
                values[token] = -math.inf
            values[token] += (params.logit_bias or {}).get(token, 0.0)
        for processor in params.logits_processors:
            values = processor(answer, torch.tensor(values)).tolist()
        for token in range(len(values)):
            count = answer.count(token)
            if token in prompt or count:
                factor = params.repetition_penalty
                values[token] = values[token] / factor if values[token] > 0 else values[token] * factor
            values[token] -= params.frequency_penalty * count + params.presence_penalty * (count > 0)
        return torch.tensor(values)

    return adjust
