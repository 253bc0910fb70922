"""SMC speculative decoding: draft, score, weigh, cut, resample, bonus, commit (arXiv 2604.15672).

The draft proposes K tokens for each of N particles, the target scores them all in one pass, and the population is
reweighted and resampled instead of rejected at the first mismatch. docs/method.md derives each step.
"""

from dataclasses import replace
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from parspec.decoding.population import Population
from parspec.decoding.prefill import read_prompt
from parspec.decoding.selection import select
from parspec.decoding.task import CycleReport, Decoding, Outcome, Task, Trace
from parspec.errors import ParspecError
from parspec.models.interface import Forward
from parspec.sampling.potentials import Prefix, evaluate
from parspec.sampling.processors import power, sample
from parspec.smc.cut import Cut, choose_cut
from parspec.smc.diagnostics import interval
from parspec.smc.genealogy import compose
from parspec.smc.weights import log_mean_exp, normalise


def smc(task: Task) -> Decoding:
    """Run a population of ``num_particles`` until all of them have finished.

    Args:
        task: The request, with a draft.

    Yields:
        The forward passes it needs.

    Returns:
        The whole population with its weights, and the particle selected as the answer.
    """
    method, draft, draft_cache, target_cache = task.method, task.draft, task.draft_cache, task.target_cache
    assert draft is not None
    assert draft_cache is not None
    device, prompt_length = task.prompt.device, len(task.prompt)
    alpha = task.sampling.power
    num_top = None if task.sampling.logprobs is None else min(task.sampling.logprobs, task.vocab_size)
    population = Population(method.rows, task.max_tokens, method.resampling, task.host_generator, num_top)

    # Start: every particle draws its own first token from the target.
    logits, prompt_log_probs = yield from read_prompt(task)
    yield Forward(draft, draft_cache, task.prompt[None], 0, into_trunk=True)
    nothing = torch.empty(1, 0, dtype=torch.int64)
    start = _Start.of(population, nothing[:0], population.lengths[:0])
    _draw_bonus(task, population, logits, nothing, population.active)
    _finish_cycle(task, population, [], CycleReport([], 1, num_particles=method.rows), start)

    while len(active := population.active):
        length, num_active = population.length, len(active)
        num_drafted = min(task.draft_length(), task.max_tokens - length - 1, task.draft_room(length))

        # Draft: K tokens a particle, with the log-probability each was drawn with.
        answers = population.tokens[:num_active, :length].to(device)
        block_log_q: list[Tensor] = []
        for _ in range(num_drafted):
            token = task.forced(answers)
            if token is None:
                logits = yield Forward(draft, draft_cache, answers[:, draft_cache.length - prompt_length :], 1)
                # Raised like the target: what has most of the mass then would else be rarely proposed.
                log_q, _ = power(task.log_probs(logits, answers), alpha)
                token = sample(log_q, task.generator)
                block_log_q.append(log_q.gather(-1, token[..., None])[..., 0])
            else:  # for free: the draft reads it with the next token it is asked for
                block_log_q.append(torch.zeros(num_active, 1, device=device))
            answers = torch.cat([answers, token], dim=1)

        # Score: one pass of the target over the last token and the block.
        logits = yield Forward(task.target, target_cache, answers[:, length - 1 :], num_drafted + 1)

        # Weigh. Positions behind a particle's own end, and finished particles, contribute nothing.
        drafted = answers[:, length:]
        scored = logits[:, :num_drafted], answers[:, :-1]
        entries = task.entries(scored[0], drafted, scored[1])
        log_p = task.log_probs_at(scored[0], drafted, scored[1]) + task.log_mass(*scored)
        increments = alpha * log_p
        if num_drafted:
            increments = increments - torch.cat(block_log_q, dim=1)
        drafted, log_p, increments = drafted.cpu(), log_p.cpu().double(), increments.cpu().double()
        ends = task.stop.first_end(drafted, lambda rows=active: population.histories(rows))  # type: ignore[misc]
        behind = torch.arange(1, num_drafted + 1) > ends[:, None]
        increments[behind] = log_p[behind] = 0.0
        all_increments = increments.new_zeros(method.rows, num_drafted)
        all_increments[:num_active] = increments

        # Cut, then keep what lies before it.
        cut = choose_cut(population.log_weights, all_increments, method.cut_threshold)
        if task.sampling.potentials:
            cut = _weigh_potentials(task, population, drafted, ends, all_increments, cut)
        population.apply_cut(cut)
        start = _Start.of(population, drafted, ends)
        kept = slice(cut.position)
        population.extend(
            active,
            drafted[:, kept],
            ends,
            log_p[:, kept].sum(1),
            None if entries is None else entries.cut(cut.position),
        )
        for cache in (target_cache, draft_cache):
            cache.truncate(prompt_length + length + cut.position)

        # Resample.
        moves: list[Tensor] = []
        ess = population.ess()
        if resampled := ess < method.resample_threshold * method.rows:
            moves.append(population.resample())

        # Bonus: one more token from the target's row at the cut, for every unfinished particle.
        active = population.active
        if len(active):
            ancestors = moves[0][active] if moves else active
            at_cut = logits[ancestors.to(device), cut.position : cut.position + 1]
            answers = population.tokens[active, : population.length]
            _draw_bonus(task, population, at_cut, answers, active)
        advanced = cut.position + (1 if len(active) else 0)
        report = CycleReport([], advanced, num_drafted, cut.position, ess, resampled, method.rows)
        _finish_cycle(task, population, moves, report, start)

    if task.sampling.potentials:
        _settle_potentials(task, population)
    population.intervals.append(interval(population.length, population.log_weights))
    particles = population.particles()
    return Outcome(
        particles,
        select(particles, method.select, task.sampling.vote, task.decode, task.host_generator),
        population.log_evidence + float(log_mean_exp(population.log_weights)),
        population.intervals,
        population.unique_ancestors(),
        prompt_log_probs,
    )


def _draw_bonus(task: Task, population: Population, logits: Tensor, answers: Tensor, rows: Tensor) -> None:
    """Draw one token per unfinished particle from p^alpha / Z and add log Z to its weight.

    Under a global constraint p is what the constraint leaves of the target, times the mass it leaves.

    Args:
        task: The request.
        population: Extended in place.
        logits: ``[R, 1, V]`` the target's at each particle's end, or ``[1, 1, V]`` for all.
        answers: ``[R, L]`` their tokens so far, or ``[1, L]``.
        rows: ``[R]`` indices of the unfinished particles.
    """
    log_p, log_mass = task.log_probs(logits, answers)[:, -1], task.log_mass(logits, answers)[:, -1]
    raised, log_z = power(log_p, task.sampling.power)
    bonus = sample(raised.expand(len(rows), -1), task.generator)[:, None]
    entries = task.entries(logits.expand(len(rows), -1, -1), bonus, answers.expand(len(rows), -1))
    log_p = log_p.expand(len(rows), -1).gather(-1, bonus)[:, 0] + log_mass
    population.log_weights[rows] += (log_z + task.sampling.power * log_mass).cpu().double()
    bonus = bonus.cpu()
    ends = task.stop.first_end(bonus, lambda: population.histories(rows))
    population.extend(rows, bonus, ends, log_p.cpu().double(), entries)


class _Start(NamedTuple):
    """What a trace needs to know of a cycle's beginning; nothing here is changed in place later.

    Attributes:
        drafted: ``[num_active, K]``.
        ends: ``[num_active]``, see `StopCondition.first_end`.
        lengths: ``[N]`` before the cycle.
        log_weights: ``[N]`` at the cut.
    """

    drafted: Tensor
    ends: Tensor
    lengths: Tensor
    log_weights: Tensor

    @classmethod
    def of(cls, population: Population, drafted: Tensor, ends: Tensor) -> "_Start":
        return cls(drafted, ends, population.lengths.clone(), population.log_weights.clone())


def _trace(population: Population, start: _Start, ancestors: Tensor) -> Trace:
    """What the cycle did, told from its beginning and its end."""
    rows = start.drafted.tolist()
    drafted = [row[:end] for row, end in zip(rows, start.ends.tolist(), strict=True)]
    known = start.lengths[ancestors].tolist()
    return Trace(
        drafted=drafted + [[]] * (population.size - len(rows)),
        cut_weights=normalise(start.log_weights).tolist(),
        ancestors=ancestors.tolist(),
        appended=[
            population.tokens[i, known[i] : length].tolist() for i, length in enumerate(population.lengths.tolist())
        ],
        weights=normalise(population.log_weights).tolist(),
        finished=population.finished.tolist(),
    )


def _finish_cycle(task: Task, population: Population, moves: list[Tensor], report: CycleReport, start: _Start) -> None:
    """Commit what has become final, bring the caches in line with the population, and report.

    Args:
        task: The request.
        population: Its tokens and weights are those of the cycle's end.
        moves: Ancestor maps the population has been through since the caches were last in line.
        report: The cycle's report, less the tokens that became final.
        start: The cycle's beginning.
    """
    known = population.final_length
    final, ancestors = population.commit(task.method.max_open_tokens)
    log_probs = population.recorded(0, known, population.final_length)
    if ancestors is not None:
        moves.append(ancestors)
    order = population.put_active_first()
    if order is not None:
        moves.append(order)
    assert task.draft_cache is not None
    total = reduce(compose, moves, torch.arange(population.size))
    for cache in (task.target_cache, task.draft_cache):
        if moves:
            cache.gather(total.to(task.prompt.device))
        cache.commit(len(task.prompt) + population.final_length)
    trace = _trace(population, start, total) if task.watched else None
    resampled = report.resampled or ancestors is not None
    task.report(replace(report, final=final, resampled=resampled, trace=trace, log_probs=log_probs))


def _prefixes(
    task: Task, population: Population, drafted: Tensor | None, ends: Tensor | None, kept: int
) -> list[Prefix]:
    """The population's prefixes, the unfinished ones continued by their first ``kept`` drafted tokens."""
    finished = population.finished.tolist()
    prefixes = []
    for i, length in enumerate(population.lengths.tolist()):
        ids = population.tokens[i, :length].tolist()
        ended = finished[i]
        if drafted is not None and ends is not None and i < len(drafted):
            ids += drafted[i, : min(kept, int(ends[i]))].tolist()
            ended = int(ends[i]) <= kept
        prefixes.append(Prefix(ids, task.decode(ids), ended))
    return prefixes


def _weigh_potentials(
    task: Task, population: Population, drafted: Tensor, ends: Tensor, increments: Tensor, cut: Cut
) -> Cut:
    """Add the potentials' change since the last cycle to the weights at the cut.

    If the potentials rule out every particle, the cut is moved forward until one is left.

    Raises:
        ParspecError: No particle is left even before the block.
    """
    position = cut.position
    while True:
        log_potentials = evaluate(task.sampling.potentials, _prefixes(task, population, drafted, ends, position))
        log_weights = population.log_weights + increments[:, :position].sum(1)
        log_weights = _change_potential(log_weights, population.log_potentials, log_potentials)
        if torch.isfinite(log_weights).any():
            population.log_potentials = log_potentials
            return Cut(position, log_weights)
        if position == 0:
            raise ParspecError(
                "every particle has potential 0: raise num_particles, or use a potential that is positive "
                "on some continuation of the prompt"
            )
        position //= 2


def _settle_potentials(task: Task, population: Population) -> None:
    """Bring the weights of the finished sequences up to the potentials of the whole sequences."""
    log_potentials = evaluate(task.sampling.potentials, _prefixes(task, population, None, None, 0))
    log_weights = _change_potential(population.log_weights, population.log_potentials, log_potentials)
    if not torch.isfinite(log_weights).any():
        raise ParspecError("every finished particle has potential 0: raise num_particles or max_tokens")
    population.log_weights, population.log_potentials = log_weights, log_potentials


def _change_potential(log_weights: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """Weights after the potentials changed; a particle of weight 0 stays at 0 (no inf - inf)."""
    return torch.where(log_weights == -torch.inf, log_weights, log_weights + after - before)
