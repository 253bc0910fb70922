"""Which particle becomes the answer."""

import pytest
import torch

from parspec import LLM, InvalidRequestError, SamplingParams
from parspec.decoding.selection import select
from parspec.decoding.task import Particle
from tests.support.models import Pair, tiny_pair

__all__ = ["tiny_pair"]

TEXTS = ["so 1 + 1, the answer is 2", "answer is 3", "the answer is 2", "no idea", "answer is  5"]
WEIGHTS = [0.15, 0.3, 0.2, 0.25, 0.1]
PARTICLES = [Particle([i], weight, True) for i, weight in enumerate(WEIGHTS)]


def chosen(how: str, vote=None, particles: list[Particle] = PARTICLES) -> int:
    return select(particles, how, vote, lambda ids: TEXTS[ids[0]], torch.Generator().manual_seed(0))


def test_the_heaviest_of_the_winners_is_taken() -> None:
    """2 wins with 0.35 of the weight over 3 with 0.3, though no particle of it is the heaviest."""
    assert chosen("best") == 1
    assert chosen("vote", r"answer is\s+(\d+)") == 2
    assert chosen("vote", lambda text: text[-1]) == 2
    assert chosen("vote", r"\d") == 2, "without a group the whole match, the last one, counts"
    assert chosen("vote", r"never") == 1, "nobody votes: the heaviest"
    assert chosen("vote", lambda text: None if "2" in text else 0) == 1
    assert chosen("vote", lambda text: (text.count("answer"), True)) == 1


def test_weights_count_not_heads() -> None:
    heavy = [Particle([1], 0.6, True), Particle([0], 0.2, True), Particle([2], 0.2, True)]
    assert chosen("vote", r"answer is\s+(\d+)", heavy) == 0


def test_what_cannot_be_counted_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="vote returned a list"):
        chosen("vote", lambda text: [text])
    with pytest.raises(InvalidRequestError, match="takes longer"):
        select(PARTICLES, "vote", r"(a|aa)+$", lambda _: "a" * 60 + "b", torch.Generator())


def test_contradictions_are_refused(tiny_pair: Pair) -> None:
    llm = LLM(str(tiny_pair.target), str(tiny_pair.draft), dtype="float32", num_particles=4)
    for params, words in (
        (SamplingParams(select="vote"), 'select "vote" needs vote'),
        (SamplingParams(vote="a"), 'vote needs select "vote"'),
        (SamplingParams(vote="a", select="best"), 'vote needs select "vote"'),
        (SamplingParams(vote="a", select="vote", method="speculative"), 'vote needs method "smc"'),
    ):
        with pytest.raises(InvalidRequestError, match=words):
            llm.generate("Hello", params)
    with pytest.raises(InvalidRequestError, match=r"^vote is '\(': use a valid pattern"):
        SamplingParams(vote="(")
    output = llm.generate("Hello", SamplingParams(vote=r".", select="vote", max_tokens=6, seed=1))[0]
    totals: dict[str, float] = {}
    for particle in output.posterior.particles:
        totals[particle.text[-1:]] = totals.get(particle.text[-1:], 0.0) + particle.weight
    assert totals[output.text[-1:]] == max(totals.values())


def test_n_answers_are_runs_with_seeds_in_a_row(tiny_pair: Pair) -> None:
    llm = LLM(str(tiny_pair.target), str(tiny_pair.draft), dtype="float32", num_particles=4)
    params = SamplingParams(n=3, seed=7, max_tokens=8, regex="[a-z]+")
    first, second = llm.generate(["Hello", "You"], params)
    for output, prompt in ((first, "Hello"), (second, "You")):
        assert [one.seed for one in output.outputs] == [7, 8, 9]
        for one in output.outputs:
            alone = llm.generate(prompt, SamplingParams(seed=one.seed, max_tokens=8, regex="[a-z]+"))[0]
            assert alone.token_ids == one.token_ids
    with pytest.raises(InvalidRequestError, match="n is 3: a stream has one answer"):
        llm.stream("Hello", params)
    assert len(llm.generate("Hello", SamplingParams(n=2, max_tokens=2))[0].outputs) == 2
