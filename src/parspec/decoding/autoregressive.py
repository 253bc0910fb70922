"""Plain decoding: the target alone, one token a forward pass."""

import torch

from parspec.decoding.task import CycleReport, Decoding, Outcome, Particle, Task, Trace
from parspec.models.interface import Forward
from parspec.sampling.processors import sample


def autoregressive(task: Task) -> Decoding:
    """Sample every token from the target's own distribution.

    Args:
        task: The request; its draft is not used.

    Yields:
        The forward passes it needs.

    Returns:
        A single particle of weight 1.
    """
    tokens: list[int] = []
    pending = task.prompt[None]
    while True:
        logits = yield Forward(task.target, task.target_cache, pending, 1, into_trunk=True)
        pending = sample(task.log_probs(logits, torch.tensor([tokens], dtype=torch.int64)), task.generator)
        stopped = bool(task.stop.first_end(pending.cpu(), lambda: [tokens]) == 1)
        tokens.append(int(pending))
        finished = stopped or len(tokens) == task.max_tokens
        trace = Trace.single(tokens[-1:], finished) if task.watched else None
        task.report(CycleReport(final=tokens[-1:], advanced=1, trace=trace))
        if finished:
            return Outcome([Particle(tokens, 1.0, stopped)])
