"""Exact distributions over whole answers, and distances to them."""

from collections import Counter
from collections.abc import Callable, Iterable

import torch
from scipy import stats

from parspec.sampling.params import SamplingParams
from parspec.sampling.processors import process
from tests.support.reference import Adjust

Sequence = tuple[int, ...]
NextLogits = Callable[[Sequence], torch.Tensor]
"""Logits ``[V]`` after an answer's first tokens."""


def enumerate_answers(
    next_logits: NextLogits,
    sampling: SamplingParams,
    max_tokens: int,
    eos_ids: Iterable[int],
    adjust: Adjust = lambda answer, logits: logits,
) -> dict[Sequence, float]:
    """Probability of every complete answer under the adjusted and processed distribution."""
    ends = set(eos_ids)
    complete: dict[Sequence, float] = {}
    open_: list[tuple[Sequence, float]] = [((), 1.0)]
    while open_:
        prefix, mass = open_.pop()
        probs = process(adjust(prefix, next_logits(prefix)), sampling).double().exp()
        for token, p in enumerate(probs.tolist()):
            if p == 0.0:
                continue
            answer = (*prefix, token)
            if token in ends or len(answer) == max_tokens:
                complete[answer] = mass * p
            else:
                open_.append((answer, mass * p))
    return complete


def table_logits(model) -> NextLogits:
    """The next-token function of a TableModel."""

    def next_logits(prefix: Sequence) -> torch.Tensor:
        code = sum(token * model.vocab_size**i for i, token in enumerate(prefix))
        return model.tables[len(prefix)][code]

    return next_logits


def chi_square_p_value(draws: Iterable[Sequence], exact: dict[Sequence, float]) -> float:
    """Goodness of fit of independent draws; cells expected fewer than 5 times are pooled."""
    counts = Counter(draws)
    assert not set(counts) - set(exact), "drew an answer of probability 0"
    total = sum(counts.values())
    observed, expected, rest = [], [], [0.0, 0.0]
    for answer, p in exact.items():
        if p * total >= 5:
            observed.append(counts[answer])
            expected.append(p * total)
        else:
            rest[0] += counts[answer]
            rest[1] += p * total
    if rest[1] > 0:
        observed.append(rest[0])
        expected.append(rest[1])
    scale = sum(observed) / sum(expected)  # removes float rounding only
    return float(stats.chisquare(observed, [e * scale for e in expected]).pvalue)


def total_variation(weights: dict[Sequence, float], exact: dict[Sequence, float]) -> float:
    """Half the L1 distance between two distributions over answers."""
    return 0.5 * sum(abs(weights.get(a, 0.0) - exact.get(a, 0.0)) for a in weights.keys() | exact.keys())
