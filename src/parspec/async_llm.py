"""The interface for asyncio: the engine runs on a thread of its own, requests come and go at any time."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from parspec.engine.engine import Update
from parspec.engine.loop import EngineLoop
from parspec.engine.outputs import RequestOutput
from parspec.engine.request import Request
from parspec.errors import EngineStoppedError, InvalidRequestError, QueueFullError
from parspec.llm import LLM, Chunk, Chunker, Prompt, check_single, joined
from parspec.sampling.params import SamplingParams

T = TypeVar("T")

_CHECKING_THREADS = 2
"""Long prompts take long to tokenise: neither the event loop nor all short ones should wait for them."""


class _Inbox(NamedTuple):
    """Where the news of an open request goes."""

    event_loop: asyncio.AbstractEventLoop
    queue: "asyncio.Queue[Update | None]"

    def put(self, update: Update) -> None:
        """Leave news; called from the engine's thread."""
        if not self.event_loop.is_closed():
            self.event_loop.call_soon_threadsafe(self.queue.put_nowait, update)


class AsyncLLM:
    """A target model, and optionally a draft, that answer many requests at once under asyncio.

    Use it as ``async with AsyncLLM(...) as llm``, or call `close`: a thread and the models belong to it.

    Args:
        model: As for `LLM`.
        draft: As for `LLM`.
        max_concurrent: Most requests that run at once; None for as many as the memory for caches holds.
        max_queue: Most requests that wait beside them; None for any number.
        **options: All other parameters of `LLM`.

    Attributes:
        llm: The models behind it, for checking and tokenising; its engine must not be run.
        failure: What the engine ended with, or None as long as it is well.
    """

    def __init__(
        self,
        model: str,
        draft: str | None = None,
        *,
        max_concurrent: int | None = None,
        max_queue: int | None = None,
        **options: Any,
    ) -> None:
        _check_limits(max_concurrent, max_queue)  # before minutes of loading
        self._start(LLM(model, draft, **options), max_concurrent, max_queue)

    @classmethod
    def of(cls, llm: LLM, *, max_concurrent: int | None = None, max_queue: int | None = None) -> "AsyncLLM":
        """The asyncio interface to models that are loaded already."""
        _check_limits(max_concurrent, max_queue)
        made = cls.__new__(cls)
        made._start(llm, max_concurrent, max_queue)
        return made

    def _start(self, llm: LLM, max_concurrent: int | None, max_queue: int | None) -> None:
        self.llm = llm
        self.failure: BaseException | None = None
        self.max_concurrent, self.max_queue = max_concurrent, max_queue
        self._closed = False
        self._inboxes: dict[int, _Inbox] = {}
        self._checkers = ThreadPoolExecutor(_CHECKING_THREADS, thread_name_prefix="parspec-check")
        llm.engine.scheduler.max_running = max_concurrent
        self._loop = EngineLoop(llm.engine, self._deliver, self._fail)

    async def __aenter__(self) -> "AsyncLLM":
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Stop the engine; requests still open end with `EngineStoppedError`."""
        self._closed = True
        self._loop.close()
        self._checkers.shutdown(wait=False, cancel_futures=True)
        self._end_all(EngineStoppedError("the engine was closed while the request was open"))

    @property
    def num_open(self) -> int:
        """Requests that have been taken and whose answers are not complete."""
        return len(self._inboxes)

    @property
    def num_running(self) -> int:
        """Requests that are being answered."""
        return len(self.llm.engine.scheduler.running)

    @property
    def num_waiting(self) -> int:
        """Requests that have been taken and have not started."""
        return max(0, self.num_open - self.num_running)

    async def check(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Request:
        """Check a prompt and its parameters, without blocking the event loop.

        Raises:
            InvalidRequestError: They cannot be served.
            OutOfMemoryError: The request exceeds the memory budget.
        """
        sampling = SamplingParams() if sampling_params is None else sampling_params
        return await self.run_blocking(self.llm.check, prompt, sampling)

    async def run_blocking(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function of the models, such as the tokenizer, beside the event loop.

        Raises:
            EngineStoppedError: The engine is closed.
            Exception: What the function raises.
        """
        if self._closed:
            raise EngineStoppedError("the engine is closed: make a new one")
        return await asyncio.get_running_loop().run_in_executor(self._checkers, function, *arguments)

    def check_room(self, num_requests: int = 1) -> None:
        """See whether so many more requests would be taken.

        Raises:
            QueueFullError: Not now.
            InvalidRequestError: Not ever.
            EngineStoppedError: The engine does not run any more.
        """
        if self.failure is not None:
            raise EngineStoppedError(f"the engine has failed ({self.failure}): start it again") from self.failure
        if self._closed:
            raise EngineStoppedError("the engine is closed: make a new one")
        if self.max_queue is None or not num_requests:
            return
        if self.max_concurrent is not None:
            most = self.max_concurrent + self.max_queue
            if num_requests > most:
                raise InvalidRequestError(f"{num_requests} answers are asked for at once: ask for at most {most}")
            full = len(self._inboxes) + num_requests > most
        else:
            full = False
        # Memory may let fewer run than max_concurrent.
        full = full or (self.llm.engine.scheduler.blocked and self.num_waiting + num_requests > self.max_queue)
        if full:
            raise QueueFullError(f"{self.num_waiting} requests are waiting, as many as are let in: try again later")

    def open(self, request: Request) -> "AnswerStream":
        """Queue a checked request.

        Args:
            request: From `check`.

        Returns:
            Its answer, to be iterated over and closed.

        Raises:
            QueueFullError: Too many requests are waiting.
            EngineStoppedError: The engine does not run any more.
        """
        self.check_room()
        queue: asyncio.Queue[Update | None] = asyncio.Queue()
        request_id = self.llm.engine.new_id()
        self._inboxes[request_id] = _Inbox(asyncio.get_running_loop(), queue)
        self._loop.submit(request, request_id)
        if self.failure is not None:
            # It failed meanwhile, on its thread: perhaps before this inbox was there to be told.
            self._forget(request_id, ended=True)
            self.check_room()
        return AnswerStream(self, request_id, request, queue)

    async def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> AsyncGenerator[Chunk, None]:
        """Answer one prompt piece by piece; what has been handed out never changes.

        Args:
            prompt: A prompt.
            sampling_params: Its parameters.

        Yields:
            Pieces as they become final, the last one with the complete output. Leaving early ends the request.

        Raises:
            InvalidRequestError: The prompt or a parameter cannot be served.
            OutOfMemoryError: The request exceeds the memory budget.
            QueueFullError: Too many requests are waiting.
            EngineStoppedError: The engine has failed or was closed.
        """
        request = await self.check(prompt, sampling_params)
        check_single(request)
        stream = self.open(request)
        try:
            async for chunk in stream:
                yield chunk
        finally:
            stream.close()

    async def generate(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> RequestOutput:
        """Answer one prompt; raises what `stream` raises. Cancelling ends the request."""
        runs = (await self.check(prompt, sampling_params)).runs()
        self.check_room(len(runs))
        streams = [self.open(run) for run in runs]
        try:
            return joined([await stream.output() for stream in streams])
        finally:
            for stream in streams:
                stream.close()

    async def chat(self, messages: Sequence[Any], sampling_params: SamplingParams | None = None) -> RequestOutput:
        """Answer one conversation, laid out by the target's chat template; raises what `stream` raises."""
        return await self.generate(await self.run_blocking(self.llm.chat_prompt, messages), sampling_params)

    def _deliver(self, updates: Sequence[Update]) -> None:
        """On the engine's thread: hand news to whoever waits for it."""
        for update in updates:
            inbox = self._inboxes.get(update.request_id)
            if inbox is not None:
                inbox.put(update)

    def _fail(self, error: BaseException) -> None:
        """On the engine's thread: the engine is lost, and with it all open requests."""
        self.failure = error
        stopped = EngineStoppedError(f"the engine has failed ({error}): send the request again")
        stopped.__cause__ = error
        self._end_all(stopped)

    def _end_all(self, error: Exception) -> None:
        for request_id, inbox in list(self._inboxes.items()):
            inbox.put(Update(request_id, [], error=error))

    def _forget(self, request_id: int, *, ended: bool) -> None:
        if self._inboxes.pop(request_id, None) is not None and not ended:
            self._loop.abort(request_id)


class AnswerStream:
    """The answer to one open request, piece by piece.

    Attributes:
        request: What was asked for.
    """

    def __init__(self, llm: AsyncLLM, request_id: int, request: Request, queue: "asyncio.Queue[Update | None]") -> None:
        self.request = request
        self._llm, self._request_id, self._queue = llm, request_id, queue
        self._chunker = Chunker(request)
        self._ended = False

    def __aiter__(self) -> "AnswerStream":
        return self

    async def __anext__(self) -> Chunk:
        while not self._ended:
            update = await self._queue.get()
            if update is None:  # closed meanwhile
                break
            if update.output is not None or update.error is not None:
                self._ended = True
                self.close()
            chunk = self._chunker.take(update)
            if chunk is not None:
                return chunk
        raise StopAsyncIteration

    async def output(self) -> RequestOutput:
        """The complete answer; raises what ended the request instead."""
        output: RequestOutput | None = None
        async for chunk in self:
            output = chunk.output
        if output is None:
            raise EngineStoppedError("the stream was closed before its answer was complete")
        return output

    def close(self) -> None:
        """Be done with it: a request that has not ended leaves the engine before the next pass."""
        self._llm._forget(self._request_id, ended=self._ended)
        if not self._ended:
            self._ended = True
            self._queue.put_nowait(None)  # whoever waits for the next piece need not wait any more


def _check_limits(max_concurrent: int | None, max_queue: int | None) -> None:
    if max_concurrent is not None and max_concurrent < 1:
        raise InvalidRequestError(f"max_concurrent is {max_concurrent}: use 1 or more requests")
    if max_queue is not None and max_queue < 0:
        raise InvalidRequestError(f"max_queue is {max_queue}: use 0 or more requests")
