"""Load on a running server: many streams for a while, and what its users would see of it."""

import asyncio
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from parspec.bench.prompts import Prompt
from parspec.errors import InvalidRequestError, ModelError

_MIB = 1024**2
_LOOK_SECONDS = 1.0
_SETTLE_SECONDS = 60.0


@dataclass(frozen=True)
class Load:
    """One way to ask: so many streams, each sending one request after the other.

    Attributes:
        name: How the table names it.
        streams: Requests open at any time.
        fields: Fields of the requests beside the messages.
    """

    name: str
    streams: int
    fields: dict[str, Any]


@dataclass
class Answered:
    """What one client saw of its request; times in seconds."""

    first: float = math.nan
    seconds: float = math.nan
    gaps: list[float] = field(default_factory=list)
    tokens: int = 0
    error: str | None = None


@dataclass(frozen=True)
class LoadResult:
    """What all clients of a load saw, and what the server said of itself.

    Attributes:
        load: What was asked.
        seconds: From the first request to the last answer.
        answered: Every request.
        memory: Resident bytes of the server, every second; empty if it does not say.
        cache: Largest share of the cache memory that was reserved.
        left_open: Requests the server still held a while after the last answer.
    """

    load: Load
    seconds: float
    answered: list[Answered]
    memory: list[float]
    cache: float
    left_open: float

    @property
    def good(self) -> list[Answered]:
        """Requests with a complete answer."""
        return [one for one in self.answered if one.error is None]


async def run_load(
    url: str,
    api_key: str | None,
    loads: Sequence[Load],
    prompts: Sequence[Prompt],
    seconds: float,
    note: Callable[[str], None],
) -> list[LoadResult]:
    """Put loads on a server, one after the other.

    Args:
        url: Of the server, without a path.
        api_key: Its key, if it has one.
        loads: What to ask.
        prompts: Chat messages, taken in turn.
        seconds: How long each load sends new requests; those open then are waited for.
        note: Takes a line of progress.

    Raises:
        ModelError: Nobody answers at the address, or it is not parspec.
    """
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url.rstrip("/"), headers=headers, timeout=None, limits=limits) as client:
        try:
            listed = await client.get("/v1/models")
            model = listed.raise_for_status().json()["data"][0]["id"]
            await _gauges(client)
        except (httpx.HTTPError, ValueError, LookupError) as error:
            raise ModelError(f"{url} does not answer as parspec does ({error}): start parspec serve there") from error
        results = []
        for load in loads:
            note(f"{load.name}, {load.streams} streams for {seconds:g} s")
            results.append(await _one_load(client, model, load, prompts, seconds))
        return results


async def _one_load(
    client: httpx.AsyncClient, model: str, load: Load, prompts: Sequence[Prompt], seconds: float
) -> LoadResult:
    answered: list[Answered] = []
    seen: list[dict[str, float]] = [await _gauges(client)]
    seeds = count()
    start = time.perf_counter()

    async def stream() -> None:
        while time.perf_counter() < start + seconds:
            seed = next(seeds)
            body = {
                "model": model,
                "messages": [{"role": "user", "content": prompts[seed % len(prompts)].text}],
                "seed": seed,
                **load.fields,
            }
            answered.append(await _ask(client, body))

    async def watch() -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            seen.append(await _gauges(client))

    watching = asyncio.create_task(watch())
    await asyncio.gather(*(stream() for _ in range(load.streams)))
    took = time.perf_counter() - start
    watching.cancel()
    deadline = time.perf_counter() + _SETTLE_SECONDS
    while (left := _open(last := await _gauges(client))) and time.perf_counter() < deadline:
        await asyncio.sleep(0.1)
    seen.append(last)
    return LoadResult(
        load,
        took,
        answered,
        [gauges["process_resident_memory_bytes"] for gauges in seen if "process_resident_memory_bytes" in gauges],
        max(gauges["parspec:kv_cache_usage_perc"] for gauges in seen),
        left,
    )


async def _ask(client: httpx.AsyncClient, body: dict[str, Any]) -> Answered:
    """Send a streaming request and follow it to its end."""
    one, start = Answered(), time.perf_counter()
    last: float | None = None
    options = {"stream": True, "stream_options": {"include_usage": True}}
    finished = False
    try:
        async with client.stream("POST", "/v1/chat/completions", json={**body, **options}) as response:
            if response.status_code != 200:
                one.error = f"status {response.status_code}: {(await response.aread()).decode()[:200]}"
                return one
            async for line in response.aiter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    finished |= line == "data: [DONE]"
                    continue
                event = json.loads(line.removeprefix("data: "))
                now = time.perf_counter()
                if "error" in event:
                    one.error = event["error"]["message"]
                elif event.get("usage"):
                    one.tokens = event["usage"]["completion_tokens"]
                elif event["choices"][0]["delta"].get("content"):
                    if last is None:
                        one.first = now - start
                    else:
                        one.gaps.append(now - last)
                    last = now
    except httpx.HTTPError as error:
        one.error = f"{type(error).__name__}: {error}"
    if not finished and one.error is None:
        one.error = "the stream ended without [DONE]"
    one.seconds = time.perf_counter() - start
    return one


async def _gauges(client: httpx.AsyncClient) -> dict[str, float]:
    text = (await client.get("/metrics")).raise_for_status().text
    wanted = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        if family.type == "gauge"
        for sample in family.samples
    }
    if "parspec:num_requests_running" not in wanted:
        raise ValueError("it has no metrics of parspec's")
    return wanted


def _open(gauges: dict[str, float]) -> float:
    return gauges["parspec:num_requests_running"] + gauges["parspec:num_requests_waiting"]


def parse_loads(settings: str, streams: Sequence[int], max_tokens: int, temperature: float) -> list[Load]:
    """Loads from the command line's words.

    Args:
        settings: Separated by commas: ``default``, ``autoregressive``, ``auto``, ``speculative:CHAINS:K`` or
            ``smc:N:K``, the last two optionally with ``:LAG``.
        streams: Each setting is run with each number of streams.
        max_tokens: Length of every answer.
        temperature: Of the sampling.

    Raises:
        InvalidRequestError: A setting is not of this form.
    """
    common = {"max_tokens": max_tokens, "temperature": temperature, "ignore_eos": True}
    loads = []
    for text in settings.split(","):
        method, *numbers = text.strip().split(":")
        names = ("num_particles", "num_draft_tokens", "commit_lag")
        alone = method in ("default", "autoregressive", "auto")
        if not all(number.isdecimal() for number in numbers) or not (
            (alone and not numbers) or (method in ("smc", "speculative") and 2 <= len(numbers) <= 3)
        ):
            raise InvalidRequestError(
                f'setting "{text.strip()}" is not of the form default, auto, autoregressive, '
                "speculative:CHAINS:K or smc:N:K, optionally with :LAG"
            )
        values = dict(zip(names, map(int, numbers), strict=False))
        fields = common | values | ({} if method == "default" else {"method": method})
        shown = [f"{short}={value}" for short, value in zip(("N", "K", "lag"), values.values(), strict=False)]
        loads += [Load(" ".join([method, *shown]), one, fields) for one in streams]
    return loads


def tables(results: Sequence[LoadResult], title: str) -> list[tuple[str, list[str], list[list[str]]]]:
    """Title, header and rows of two tables: what was answered, and how long users waited."""
    header = ["setting", "streams", "answered", "failed", "tokens/s", "each", "cache", "MiB", "left open"]
    times = ["setting", "streams", "first text", "95%", "gap", "95%", "longest"]
    records = as_json(results)
    answers = [
        [
            *(record["setting"], str(record["streams"]), str(record["answered"]), str(record["failed"])),
            *(f"{record['tokens_per_second']:.1f}", f"{record['tokens_per_second_each']:.2f}"),
            f"{record['cache_share']:.0%}",
            " to ".join(f"{number / _MIB:.0f}" for number in (record["memory"][:1] + record["memory"][-1:])) or "-",
            f"{record['left_open']:.0f}",
        ]
        for record in records
    ]
    waits = [
        [record["setting"], str(record["streams"]), *(f"{value:.2f}" for value in (*record["first"], *record["gap"]))]
        for record in records
    ]
    return [(title, header, answers), ("Seconds until the first text and between pieces: median, 95%", times, waits)]


def as_json(results: Sequence[LoadResult]) -> list[dict[str, Any]]:
    """One object a load; times in seconds, memory in bytes."""
    objects = []
    for result in results:
        good = result.good
        gaps = [gap for one in good for gap in one.gaps]
        firsts = [one.first for one in good if not math.isnan(one.first)]
        objects.append(
            {
                "setting": result.load.name,
                "streams": result.load.streams,
                "fields": result.load.fields,
                "seconds": result.seconds,
                "answered": len(good),
                "failed": len(result.answered) - len(good),
                "errors": sorted({one.error for one in result.answered if one.error is not None}),
                "tokens_per_second": sum(one.tokens for one in good) / result.seconds,
                "tokens_per_second_each": _quantile([one.tokens / one.seconds for one in good], 0.5),
                "first": [_quantile(firsts, 0.5), _quantile(firsts, 0.95)],
                "gap": [_quantile(gaps, 0.5), _quantile(gaps, 0.95), max(gaps, default=math.nan)],
                "cache_share": result.cache,
                "memory": result.memory,
                "left_open": result.left_open,
            }
        )
    return objects


def _quantile(values: Sequence[float], share: float) -> float:
    if len(values) < 2:
        return values[0] if values else math.nan
    return statistics.quantiles(values, n=100, method="inclusive")[round(100 * share) - 1]
