"""Reading instead of writing: what the target thinks of the tokens of a given text."""

import torch

from parspec.decoding.task import Decoding, Outcome, Particle, Task, TokenLogProb
from parspec.models.interface import Forward

CHUNK = 64
"""Tokens read at a time: their logits exist at once, over the whole vocabulary."""


def score(task: Task) -> Decoding:
    """Give every token of a text but the first its log-probability under the target, in order.

    The model's own distribution, without temperature, truncation or power.

    Args:
        task: The request: its prompt is the text less the last token, which `Task.scored` names.

    Yields:
        The forward passes it needs.

    Returns:
        A single empty particle, and the log-probabilities.
    """
    assert task.scored is not None
    log_probs: list[TokenLogProb] = []
    text = torch.cat([task.prompt, task.prompt.new_tensor([task.scored.last_token])])
    for start in range(0, len(task.prompt), CHUNK):
        read = task.prompt[start : start + CHUNK]
        logits = yield Forward(task.target, task.target_cache, read[None], len(read), into_trunk=True)
        rows = logits[0, :, : task.vocab_size].float().log_softmax(-1)
        tokens = text[start + 1 : start + 1 + len(read)]
        own = rows.gather(-1, tokens[:, None])[:, 0].tolist()
        top = rows.topk(min(task.scored.num_top, rows.shape[-1]), dim=-1)
        tops = zip(top.indices.tolist(), top.values.tolist(), strict=True)
        for token, value, (ids, values) in zip(tokens.tolist(), own, tops, strict=True):
            log_probs.append(TokenLogProb(token, value, list(zip(ids, values, strict=True))))
    return Outcome([Particle([], 1.0, True)], log_probs=log_probs)
