"""Plain decoding: the target alone, one token a forward pass."""

import torch

from parspec.decoding.logprobs import TokenLogProb
from parspec.decoding.prefill import read_prompt
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
    recorded: list[TokenLogProb] = []
    log_prob = 0.0
    logits, prompt_log_probs = yield from read_prompt(task)
    while True:
        answer = torch.tensor([tokens], dtype=torch.int64)
        log_p = task.log_probs(logits, answer)
        pending = sample(log_p, task.generator)
        log_prob += float(log_p[0, 0, pending])
        entries = task.entries(logits, pending, answer)
        new = None if entries is None else entries.row(0, [int(pending)])
        recorded += new or []
        stopped = bool(task.stop.first_end(pending.cpu(), lambda: [tokens]) == 1)
        tokens.append(int(pending))
        finished = stopped or len(tokens) == task.max_tokens
        trace = Trace.single(tokens[-1:], finished) if task.watched else None
        task.report(CycleReport(final=tokens[-1:], advanced=1, trace=trace, log_probs=new))
        if finished:
            particle = Particle(tokens, 1.0, stopped, log_prob, None if new is None else recorded)
            return Outcome([particle], prompt_log_probs=prompt_log_probs)
        logits = yield Forward(task.target, task.target_cache, pending, 1, into_trunk=True)
