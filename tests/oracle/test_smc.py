"""SMC against the enumerated truth: distance, evidence, and the cases where it must be exact."""

import math
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch

from parspec.engine.outputs import RequestOutput
from parspec.sampling.params import SamplingParams
from parspec.smc.resampling import SCHEMES
from tests.support.exact import chi_square_p_value, enumerate_answers, table_logits, total_variation
from tests.support.table_model import TableModel, loaded

LENGTH, VOCAB = 6, 3
TARGET = TableModel.random(VOCAB, 10, seed=3, sharpness=1.2)
for table in TARGET.tables:
    table[:, 0] -= 2.0  # short answers stay rare enough for the later cycles to matter
NEAR, FAR = TARGET.perturbed(seed=4, size=0.4), TARGET.perturbed(seed=5, size=1.2)
TRUTH = enumerate_answers(table_logits(TARGET), SamplingParams(), LENGTH, [0])
BAD = TARGET.perturbed(seed=5, size=2.0)
RUNS = {2: 1500, 8: 800, 32: 300}


@pytest.fixture
def smc(draw: Callable[..., list[RequestOutput]]) -> Callable[..., list[RequestOutput]]:
    """``smc(draft, runs, **params)``: that many SMC requests for the target above."""

    def run(draft: TableModel, runs: int, **params: object) -> list[RequestOutput]:
        defaults = {"method": "smc", "num_draft_tokens": 2, "max_tokens": LENGTH}
        return draw(loaded(TARGET), loaded(draft), runs, **{**defaults, **params})

    return run


def posterior_mean(outputs: list[RequestOutput]) -> dict[tuple[int, ...], float]:
    """Distribution of a particle drawn by weight from a random run: what ``select="sample"`` returns."""
    mean: dict[tuple[int, ...], float] = {}
    for output in outputs:
        for particle in output.posterior.particles:
            answer = tuple(particle.token_ids)
            mean[answer] = mean.get(answer, 0.0) + particle.weight / len(outputs)
    return mean


def evidence(outputs: list[RequestOutput]) -> tuple[float, float]:
    """Mean of Z-hat and its standard error."""
    z = torch.tensor([o.posterior.log_evidence for o in outputs], dtype=torch.float64).exp()
    return float(z.mean()), float(z.std() / len(z) ** 0.5)


def noise(outputs: list[RequestOutput]) -> float:
    """Distance between the two halves of the runs: the error of measuring a distance with them, doubled."""
    half = len(outputs) // 2
    return total_variation(posterior_mean(outputs[:half]), posterior_mean(outputs[half:])) / 2


@pytest.mark.parametrize("scheme", SCHEMES)
def test_distance_falls_as_particles_grow(smc, scheme: str, measured) -> None:
    """About like 1/N for every cut threshold; and cutting never takes the population further away."""
    distances: dict[tuple[float, int], float] = {}
    errors: dict[tuple[float, int], float] = {}
    for kappa in (0.0, 0.25, 0.5):
        for particles, runs in RUNS.items():
            outputs = smc(
                FAR, runs, num_particles=particles, num_draft_tokens=4, cut_threshold=kappa, resampling=scheme
            )
            distances[kappa, particles] = total_variation(posterior_mean(outputs), TRUTH)
            errors[kappa, particles] = noise(outputs)
        row = ", ".join(f"N={n}: {distances[kappa, n]:.4f} (+-{errors[kappa, n]:.4f})" for n in RUNS)
        measured(f"smc, {scheme}, kappa={kappa}: total variation {row}")
    for kappa in (0.0, 0.25, 0.5):
        for fewer, more in pairwise(RUNS):
            assert distances[kappa, more] < 0.7 * distances[kappa, fewer] + errors[kappa, more]
        assert distances[kappa, 32] < distances[kappa, 2] / 5 + errors[kappa, 32]
    for particles in RUNS:
        assert distances[0.5, particles] <= distances[0.0, particles] + errors[0.5, particles]


def test_caches_follow_the_population(smc, measured) -> None:
    """Resampling after every token: each later token is scored behind the particle it really belongs to."""
    outputs = smc(FAR, 400, num_particles=24, num_draft_tokens=1, resample_threshold=1.0, resampling="multinomial")
    distance = total_variation(posterior_mean(outputs), TRUTH)
    measured(f"resampled at every cycle, N=24: total variation {distance:.4f} (+-{noise(outputs):.4f})")
    assert distance < 0.1


def test_cutting_pays_where_the_draft_is_bad(smc, measured) -> None:
    """At equal N the cut brings the population much closer when weights collapse inside a block."""
    for particles, runs in ((4, 1200), (16, 500)):
        distance = {}
        for kappa in (0.0, 0.5):
            outputs = smc(BAD, runs, num_particles=particles, num_draft_tokens=5, cut_threshold=kappa)
            distance[kappa] = total_variation(posterior_mean(outputs), TRUTH)
            kept = sum(o.metrics.num_kept for o in outputs) / sum(o.metrics.num_drafted for o in outputs)
            measured(
                f"badly matched, N={particles}, kappa={kappa}: total variation {distance[kappa]:.4f} "
                f"(+-{noise(outputs):.4f}), {kept:.0%} of drafted tokens kept"
            )
        assert distance[0.5] < 0.85 * distance[0.0]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kappa", [0.0, 0.25, 0.5])
@pytest.mark.parametrize("lag", [math.inf, 1])
def test_evidence_is_unbiased(smc, scheme: str, kappa: float, lag: float, measured) -> None:
    """E[Z-hat] is the total mass, here 1, whatever the draft, cut, scheme, and forced commits."""
    # Draws of its own for every case: with shared seeds the 24 of them would be nearly one measurement.
    case = (list(SCHEMES).index(scheme) * 3 + int(4 * kappa)) * 2 + (lag == 1)
    outputs = smc(
        FAR,
        700,
        first_seed=10_000 * (case + 1),
        num_particles=4,
        cut_threshold=kappa,
        resampling=scheme,
        commit_lag=lag,
    )
    mean, error = evidence(outputs)
    measured(f"{scheme}, kappa={kappa}, lag={lag}: E[Z-hat] = {mean:.4f} +- {error:.4f}")
    assert abs(mean - 1.0) < 4 * error


@pytest.mark.parametrize("kappa", [0.0, 0.5])
@pytest.mark.parametrize(
    ("alpha", "runs"), [(0.5, {2: 600, 32: 600}), (2.0, {2: 600, 32: 600}), (4.0, {8: 600, 256: 60})]
)
def test_power_aims_at_the_raised_distribution(smc, alpha: float, runs: dict[int, int], kappa: float, measured) -> None:
    """High powers take more particles: what is most probable as a whole may begin improbably."""
    mass = sum(p**alpha for p in TRUTH.values())
    raised = {answer: p**alpha / mass for answer, p in TRUTH.items()}
    distances = []
    for particles, count in runs.items():
        outputs = smc(NEAR, count, num_particles=particles, cut_threshold=kappa, power=alpha)
        mean, error = evidence(outputs)
        distances.append(total_variation(posterior_mean(outputs), raised))
        measured(
            f"alpha={alpha:g}, kappa={kappa}, N={particles}: Z-hat {mean:.4f} +- {error:.4f}, exact {mass:.4f}; "
            f"total variation {distances[-1]:.4f}"
        )
        assert abs(mean - mass) < 4 * error
    assert distances[1] < distances[0] / 4


@pytest.mark.parametrize("kappa", [0.0, 0.5])
def test_potentials_reweight_whole_answers(smc, kappa: float, measured) -> None:
    """A soft potential on every prefix; the mass is that of its value on complete answers."""

    def likes_ones(prefixes):
        return [0.7 * p.token_ids.count(1) - 0.4 * len(p.token_ids) for p in prefixes]

    value = {a: math.exp(0.7 * a.count(1) - 0.4 * len(a)) for a in TRUTH}
    mass = sum(TRUTH[a] * value[a] for a in TRUTH)
    tilted = {a: TRUTH[a] * value[a] / mass for a in TRUTH}
    distances = []
    for particles in (2, 32):
        outputs = smc(NEAR, 600, num_particles=particles, cut_threshold=kappa, potentials=[likes_ones])
        mean, error = evidence(outputs)
        distances.append(total_variation(posterior_mean(outputs), tilted))
        measured(
            f"potential, kappa={kappa}, N={particles}: Z-hat {mean:.4f} +- {error:.4f}, exact {mass:.4f}; "
            f"total variation {distances[-1]:.4f}"
        )
        assert abs(mean - mass) < 4 * error
    assert distances[1] < distances[0] / 3


@pytest.mark.parametrize("particles", [1, 2, 5])
def test_exact_when_the_draft_is_the_target(smc, particles: int, measured) -> None:
    outputs = smc(TableModel(TARGET.tables), 2000, num_particles=particles, num_draft_tokens=3)
    assert all(o.metrics.resamplings == 0 for o in outputs)
    assert all(p.weight == pytest.approx(1 / particles) for o in outputs for p in o.posterior.particles)
    assert all(abs(o.posterior.log_evidence) < 1e-5 for o in outputs)
    p = chi_square_p_value([tuple(o.token_ids) for o in outputs], TRUTH)
    measured(f"q = p, N={particles}: chi-square p = {p:.3f}")
    assert p > 1e-4


def test_without_drafting_it_is_plain_sampling(smc, measured) -> None:
    """K = 0: N independent target samples."""
    outputs = smc(FAR, 1500, num_particles=3, num_draft_tokens=0)
    assert all(o.metrics.resamplings == 0 for o in outputs)
    draws = [tuple(p.token_ids) for o in outputs for p in o.posterior.particles]
    p = chi_square_p_value(draws, TRUTH)
    measured(f"K=0: chi-square p = {p:.3f} over all {len(draws)} particles")
    assert p > 1e-4


def test_first_tokens_are_drawn_independently(smc, measured) -> None:
    """Two particles' first tokens are a pair of independent target draws, not one draw copied."""
    outputs = smc(FAR, 3000, num_particles=2, max_tokens=1)
    first = torch.log_softmax(TARGET.tables[0][0].double(), -1).exp().tolist()
    truth = {(a, b): first[a] * first[b] for a in range(VOCAB) for b in range(VOCAB)}
    pairs = [tuple(p.token_ids[0] for p in o.posterior.particles) for o in outputs]
    p = chi_square_p_value(pairs, truth)
    measured(f"first tokens of two particles: chi-square p = {p:.3f}")
    assert p > 1e-4


def test_truncated_sampling_never_leaves_the_support(smc, measured) -> None:
    """top-k rules out drafted tokens: those particles die, the others go on, and no answer is impossible."""
    sampling = {"top_k": 2, "temperature": 0.8}
    truth = enumerate_answers(table_logits(TARGET), SamplingParams(**sampling), LENGTH, [0])
    outputs = smc(FAR, 400, num_particles=8, num_draft_tokens=3, cut_threshold=0.25, **sampling)
    alive = {tuple(p.token_ids) for o in outputs for p in o.posterior.particles if p.weight > 0}
    assert alive <= set(truth)
    assert all(tuple(o.token_ids) in truth for o in outputs)
    measured(f"top-k 2: total variation {total_variation(posterior_mean(outputs), truth):.4f}")


def test_chi2_estimate_tracks_the_true_divergence(smc, measured) -> None:
    """One draft position, many particles: N / ESS - 1 estimates chi2(p || q) of that position."""
    outputs = smc(
        NEAR, 200, num_particles=64, num_draft_tokens=1, max_tokens=3, resample_threshold=1.0, ignore_eos=True
    )
    p = torch.log_softmax(TARGET.tables[0][0].double(), -1).exp()
    expected = 0.0
    for first in range(VOCAB):
        target = TARGET.tables[1][first].double().softmax(-1)
        draft = NEAR.tables[1][first].double().softmax(-1)
        expected += float(p[first] * (target.square() / draft).sum())
    estimate = sum(1 + o.posterior.intervals[0].chi2 for o in outputs) / len(outputs)
    measured(f"1 + chi2: estimated {estimate:.4f}, exact {expected:.4f}")
    assert estimate == pytest.approx(expected, rel=0.05)
