"""Lossless speculative decoding: the draft proposes chains, rejection keeps the target's distribution exactly."""

from dataclasses import replace

import torch
from torch import Tensor

from parspec.decoding.logprobs import TokenLogProb
from parspec.decoding.prefill import read_prompt
from parspec.decoding.task import CycleReport, Decoding, Outcome, Particle, Task, Trace
from parspec.decoding.verification import verify
from parspec.models.interface import Forward
from parspec.sampling.processors import sample


def speculative(task: Task) -> Decoding:
    """Draft ``num_particles`` independent chains of ``num_draft_tokens`` a cycle and keep what rejection accepts.

    Args:
        task: The request, with a draft.

    Yields:
        The forward passes it needs.

    Returns:
        A single particle of weight 1.
    """
    draft, draft_cache, target_cache = task.draft, task.draft_cache, task.target_cache
    assert draft is not None
    assert draft_cache is not None
    num_chains, prompt_length = task.method.rows, len(task.prompt)
    device = task.prompt.device

    logits, prompt_log_probs = yield from read_prompt(task)
    prompt = task.prompt.tolist()
    tokens: list[int] = []
    recorded: list[TokenLogProb] = []
    log_prob = 0.0
    answers = torch.empty(1, 0, dtype=torch.int64)
    log_p = task.log_probs(logits, answers)
    block = [int(sample(log_p, task.generator))]
    drafted = accepted = chain = 0
    proposed: list[list[int]] = [[]]
    while True:
        end = int(task.stop.first_end(torch.tensor([block]), lambda: [tokens]))
        stopped = end <= len(block)
        new = block[:end]
        # The block's own rows: of the chain that was accepted, up to the end.
        added = torch.tensor([new], device=device)
        log_prob += float(log_p[chain : chain + 1, : len(new)].gather(-1, added[..., None]).sum())
        entries = task.entries(
            logits[chain : chain + 1, : len(new)], added, torch.tensor([tokens + new[:-1]], dtype=torch.int64)
        )
        log_probs = None if entries is None else entries.row(0, new)
        recorded += log_probs or []
        tokens.extend(new)
        finished = stopped or len(tokens) == task.max_tokens
        kept, trace = min(accepted, len(new)), None
        if task.watched:
            cut_weights = [float(i == chain) for i in range(len(proposed))]
            trace = Trace(proposed, cut_weights, [chain], [new], [1.0], [finished])
        report = CycleReport(new, len(new), drafted, kept, num_particles=len(proposed), trace=trace)
        task.report(replace(report, log_probs=log_probs))
        if finished:
            particle = Particle(tokens, 1.0, stopped, log_prob, None if log_probs is None else recorded)
            return Outcome([particle], prompt_log_probs=prompt_log_probs)

        remaining = task.max_tokens - len(tokens)
        drafted = min(task.draft_length(), remaining - 1, task.draft_room(len(tokens)))
        chains: list[Tensor] = []
        log_q: list[Tensor] = []
        answer = torch.tensor([tokens], device=device)
        if drafted:
            # All chains start from the same text: what the draft has not read of it, at first the whole prompt,
            # runs once, as part of the trunk.
            known = prompt_length + len(tokens)
            for _ in range(drafted):
                answers = torch.cat([answer.expand(num_chains, -1), *chains], dim=1)
                token = task.forced(answers)
                if token is None:
                    if draft_cache.length < known:
                        pending = torch.tensor([(prompt + tokens)[draft_cache.length :]], device=device)
                        logits = yield Forward(draft, draft_cache, pending, 1, into_trunk=True)
                        logits = logits.expand(num_chains, -1, -1)
                    if draft_cache.length < prompt_length + answers.shape[1]:
                        logits = yield Forward(draft, draft_cache, answers[:, draft_cache.length - prompt_length :], 1)
                    log_q.append(task.log_probs(logits, answers))
                    token = sample(log_q[-1], task.generator)
                else:  # for free: the draft reads it with the next token it is asked for
                    certain = torch.full((num_chains, 1, task.vocab_size), -torch.inf, device=device)
                    log_q.append(certain.scatter_(-1, token[..., None], 0.0))
                chains.append(token)
        answers = torch.cat([answer.expand(num_chains if drafted else 1, -1), *chains], dim=1)
        proposal = answers[:, len(tokens) - 1 :]  # the last token and the chains
        logits = yield Forward(task.target, target_cache, proposal, drafted + 1)

        log_p = task.log_probs(logits, answers)
        verdict = verify(
            log_p,
            torch.cat(log_q, dim=1) if drafted else logits.new_empty(1, 0, task.vocab_size),
            proposal[:, 1:],
            task.generator,
        )
        accepted, chain, proposed = verdict.accepted, verdict.chain, proposal[:, 1:].tolist()
        known = prompt_length + len(tokens) + accepted  # positions whose keys and values are those of the answer
        for cache in (target_cache, draft_cache):
            cache.truncate(known)
            cache.commit(known, chain)
        block = [*proposed[chain][:accepted], verdict.token]
