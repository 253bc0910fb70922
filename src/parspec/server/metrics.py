"""Prometheus metrics, named as vLLM names its own where both measure the same."""

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from parspec.async_llm import AsyncLLM
from parspec.llm import Chunk

T = TypeVar("T", Counter, Histogram)

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)
_SHORT_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20)
_TOKENS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64)
_SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


class Metrics:
    """Everything that is counted, in a registry of its own.

    Args:
        llm: Asked for the state of its queue and memory whenever metrics are read.
    """

    def __init__(self, llm: AsyncLLM) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        engine = llm.llm.engine

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"parspec:{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"parspec:{name}", text, buckets=buckets, registry=registry)

        def gauge(name: str, text: str, read: Callable[[], float]) -> None:
            Gauge(f"parspec:{name}", text, registry=registry).set_function(read)

        gauge("num_requests_running", "Requests being answered.", lambda: llm.num_running)
        gauge("num_requests_waiting", "Requests waiting for their turn.", lambda: llm.num_waiting)
        gauge(
            "kv_cache_usage_perc",
            "Share of the memory for caches that running requests hold; 1 is all.",
            lambda: engine.scheduler.reserved / max(1, engine.scheduler.budget),
        )
        gauge("engine_healthy", "1 while the engine is well.", lambda: float(llm.failure is None))
        self.requests = counter("request_success", "Answered requests, by finish reason.", "finished_reason")
        self.failed = counter("request_failure", "Requests without an answer, by cause.", "cause")
        self.prompt_tokens = counter("prompt_tokens", "Tokens of prompts.")
        self.generation_tokens = counter("generation_tokens", "Tokens of answers, as they became final.")
        self.queue_time = histogram("request_queue_time_seconds", "From arrival until the request ran.", _SECONDS)
        self.first_token = histogram("time_to_first_token_seconds", "From arrival to the first text.", _SECONDS)
        self.latency = histogram("e2e_request_latency_seconds", "From arrival to the end.", _SECONDS)
        self.token_gap = histogram(
            "inter_token_latency_seconds", "Seconds between pieces, over the tokens of the later one.", _SHORT_SECONDS
        )
        self.chunk_gap = histogram("inter_chunk_latency_seconds", "Seconds between pieces.", _SHORT_SECONDS)
        self.cycles = counter("cycles", "Draft-and-score rounds.")
        self.tokens_per_cycle = histogram("tokens_per_cycle", "Tokens a request grew by in a cycle.", _TOKENS)
        self.resamplings = counter("resamplings", "Resamplings of populations.")
        self.ess = histogram("effective_sample_share", "Effective sample size over particles, at the cut.", _SHARES)
        self.cut = histogram("cut_position", "Drafted tokens that the population kept in a cycle.", (0, *_TOKENS))
        self.drafts = counter("spec_decode_num_drafts", "Drafts verified by rejection.")
        self.draft_tokens = counter("spec_decode_num_draft_tokens", "Tokens of drafts verified by rejection.")
        self.accepted_tokens = counter("spec_decode_num_accepted_tokens", "Tokens of drafts accepted.")

    def render(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def follow(self) -> "RequestClock":
        """Start to measure a request that has just arrived."""
        return RequestClock(self)

    def total(self, counter: Counter) -> float:
        """The value of a counter without labels."""
        samples: Iterator[float] = (s.value for m in counter.collect() for s in m.samples if s.name.endswith("_total"))
        return sum(samples)


class RequestClock:
    """Measures one request from its arrival."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._arrived = time.perf_counter()
        self._last: float | None = None

    def observe(self, chunk: Chunk) -> None:
        """Count a piece of the answer at the moment it goes out."""
        metrics, now = self._metrics, time.perf_counter()
        if chunk.token_ids:
            metrics.generation_tokens.inc(len(chunk.token_ids))
            if self._last is None:
                metrics.first_token.observe(now - self._arrived)
            else:
                metrics.chunk_gap.observe(now - self._last)
                metrics.token_gap.observe((now - self._last) / len(chunk.token_ids))
            self._last = now
        for report in chunk.cycles:
            metrics.cycles.inc()
            metrics.tokens_per_cycle.observe(report.advanced)
            if report.ess is not None:
                metrics.ess.observe(report.ess / report.num_particles)
                metrics.cut.observe(report.kept)
                metrics.resamplings.inc(report.resampled)
            elif report.drafted:
                metrics.drafts.inc()
                metrics.draft_tokens.inc(report.drafted)
                metrics.accepted_tokens.inc(report.kept)
        if chunk.output is not None:
            metrics.requests.labels(chunk.output.finish_reason).inc()
            metrics.prompt_tokens.inc(chunk.output.metrics.num_prompt_tokens)
            metrics.queue_time.observe(chunk.output.metrics.queue_seconds)
            metrics.latency.observe(now - self._arrived)

    def fail(self, cause: str) -> None:
        """The request ended without an answer: "abort", "rejected" or "error"."""
        self._metrics.failed.labels(cause).inc()
