"""Many streams at once: all are answered, correctly, and nothing stays behind."""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from parspec import LLM, SamplingParams
from parspec.engine.engine import Engine
from parspec.sampling.params import MethodParams
from tests.server.conftest import DRAFT, TARGET, Server, running
from tests.support.exact import chi_square_p_value, enumerate_answers, table_logits
from tests.support.table_model import TableModel, loaded

STREAMS, DRAWS, LENGTH, SIGNIFICANCE = 64, 3000, 4, 1e-4


def table_llm(draft: TableModel = DRAFT) -> LLM:
    return LLM.of(Engine(loaded(TARGET), loaded(draft), MethodParams(num_particles=3), 1 << 30))


def answer(server: Server, seed: int, method: str) -> tuple[int, ...]:
    response = server.complete([1], seed=seed, max_tokens=LENGTH, method=method, return_token_ids=True)
    assert response.status_code == 200, response.text
    return tuple(response.json()["choices"][0]["token_ids"])


@pytest.mark.parametrize("method", ["speculative", "autoregressive", "smc"])
def test_answers_under_load_follow_the_exact_distribution(method: str, measured) -> None:
    """Seeded requests in a crowd of 64 get what they get alone, and together they are the model's distribution.

    For SMC the draft is the target itself: then it is exact for any number of particles.
    """
    exact = enumerate_answers(table_logits(TARGET), SamplingParams(), LENGTH, (0,))
    draft = TableModel(TARGET.tables) if method == "smc" else DRAFT
    with running(table_llm(draft)) as server, ThreadPoolExecutor(STREAMS) as pool:
        drawn = list(pool.map(lambda seed: answer(server, seed, method), range(DRAWS)))
        server.wait_until_idle()
    p_value = chi_square_p_value(drawn, exact)
    measured(f"{method}, {DRAWS} answers through the server, {STREAMS} at once: chi-square p = {p_value:.3f}")
    assert p_value > SIGNIFICANCE
    params = [SamplingParams(seed=seed, max_tokens=LENGTH, method=method) for seed in range(50)]
    alone = [table_llm(draft).generate({"prompt_token_ids": [1]}, one)[0].token_ids for one in params]
    assert [list(tokens) for tokens in drawn[:50]] == alone


def test_nothing_grows(measured) -> None:
    """Threads, open requests and memory after many answered and many abandoned streams are what they were."""
    process = psutil.Process()
    with running(table_llm()) as server, ThreadPoolExecutor(STREAMS) as pool:

        def leave_early(seed: int) -> None:
            body = {"model": "tiny", "prompt": [1], "seed": seed, "max_tokens": 9, "stream": True}
            with server.client() as client, client.stream("POST", "/v1/completions", json=body) as response:
                next(response.iter_lines())

        def burst(first: int) -> None:
            list(pool.map(lambda seed: answer(server, seed, "smc"), range(first, first + 400)))
            list(pool.map(leave_early, range(first, first + 100)))
            server.wait_until_idle()
            gc.collect()

        burst(0)
        threads, before = threading.active_count(), process.memory_info().rss
        for number in range(1, 5):
            burst(1000 * number)
        grown = process.memory_info().rss - before
        measured(f"memory after 2000 more requests: {grown / 2**20:+.1f} MiB")
        assert threading.active_count() == threads
        assert grown < 20 * 2**20
