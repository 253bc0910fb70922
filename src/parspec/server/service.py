"""The work behind the endpoints: take requests in, follow their answers, shut down in order."""

import asyncio
import hashlib
import json
import math
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace

from parspec._version import __version__
from parspec.async_llm import AnswerStream, AsyncLLM
from parspec.engine.outputs import RequestOutput
from parspec.engine.request import Request
from parspec.errors import InvalidRequestError, QueueFullError
from parspec.llm import Chunk, Prompt
from parspec.sampling.detokenize import decode
from parspec.server.errors import LOGGER, APIError
from parspec.server.metrics import Metrics, RequestClock
from parspec.server.protocol import GenerationBody

_LONGEST_RETRY = 60
_DRAINING_RETRY = 10


@dataclass(frozen=True)
class ServerConfig:
    """How the server presents itself.

    Attributes:
        model_name: Name clients ask for the model by.
        max_tokens: Most tokens of an answer to a chat request that names no limit.
        api_key: What clients must send as bearer token; None for anybody.
        max_body_bytes: Largest body taken.
        keepalive_seconds: A stream that has been silent for so long gets a comment, so that nobody hangs up.
        cors_origins: Web origins whose pages may call the server.
        log_requests: Whether prompts and answers are logged.
    """

    model_name: str
    max_tokens: int = 4096
    api_key: str | None = None
    max_body_bytes: int = 4 * 1024**2
    keepalive_seconds: float = 10.0
    cors_origins: tuple[str, ...] = ()
    log_requests: bool = False


class Service:
    """Answers requests with an `AsyncLLM`.

    Args:
        llm: The models.
        config: How the server presents itself.

    Attributes:
        draining: Whether the server is about to stop and takes no more requests.
    """

    def __init__(self, llm: AsyncLLM, config: ServerConfig) -> None:
        self.llm, self.config = llm, config
        self.metrics = Metrics(llm)
        self.draining = False
        self.fingerprint = _fingerprint(llm)
        self._seconds_per_answer = 1.0

    @property
    def context(self) -> int:
        """Most tokens of a prompt and its answer together."""
        return self.llm.llm.engine.target.context

    def check_model(self, name: str | None) -> None:
        """Refuse a model that is not served.

        Raises:
            APIError: Says which one is.
        """
        if name is not None and name != self.config.model_name:
            raise APIError(
                404,
                f'the model is not served here: use "{self.config.model_name}"',
                param="model",
                code="model_not_found",
            )

    async def take(self, body: GenerationBody, prompts: Sequence[Prompt], default_max_tokens: int) -> "Answers":
        """Check all answers a body asks for and queue them, or none.

        Args:
            body: What the client sent.
            prompts: Its prompts.
            default_max_tokens: Most tokens of an answer, if the body does not say.

        Raises:
            APIError: The server is stopping or its queue is full.
            ParspecError: A prompt or a parameter cannot be served.
        """
        if self.draining:
            raise APIError(503, "the server is stopping: try again later", code="stopping", retry_after=_DRAINING_RETRY)
        clocks = [self.metrics.follow() for _ in range(len(prompts) * body.num_answers)]
        try:
            self.llm.check_room(len(clocks))
            requests: list[Request] = []
            for prompt in prompts:
                first = await self._check(body, prompt, default_max_tokens)
                requests += replace(first, watched=body.watched).runs()
            self.llm.check_room(len(clocks))  # others have come in meanwhile
            return Answers(self, [self.llm.open(request) for request in requests], clocks)
        except QueueFullError as error:
            self._fail(clocks, "rejected")
            raise APIError(429, str(error), code="queue_full", retry_after=self._retry_after()) from error
        except InvalidRequestError:
            self._fail(clocks, "rejected")
            raise
        except BaseException:
            self._fail(clocks, "error")
            raise

    async def drain(self, seconds: float) -> None:
        """Take no more requests and wait until the open ones are answered, but not longer than so many seconds."""
        self.draining = True
        deadline = asyncio.get_running_loop().time() + seconds
        while self.llm.num_open and asyncio.get_running_loop().time() < deadline and self.llm.failure is None:
            await asyncio.sleep(0.05)

    def token_texts(self, token_ids: Sequence[int]) -> list[str]:
        """The text of each token by itself; the ids as text for a model without a tokenizer."""
        tokenizer = self.llm.llm.tokenizer
        if tokenizer is None:
            return [f"{token} " for token in token_ids]
        return [str(tokenizer.decode([token])) for token in token_ids]

    def text(self, prompt: str | Sequence[int]) -> str:
        """A prompt as text."""
        if isinstance(prompt, str):
            return prompt
        tokenizer = self.llm.llm.tokenizer
        return "" if tokenizer is None else decode(tokenizer, prompt)

    def finished(self, output: RequestOutput) -> None:
        """Learn how long answers take, and log this one if that is wanted."""
        self._seconds_per_answer += 0.1 * (output.metrics.seconds - self._seconds_per_answer)
        if self.config.log_requests:
            entry = {
                "prompt": self.text(output.prompt_token_ids),
                "answer": output.text,
                "finish_reason": output.finish_reason,
                "tokens": output.metrics.num_tokens,
                "seconds": round(output.metrics.seconds, 3),
            }
            LOGGER.info(json.dumps(entry, ensure_ascii=False))

    async def _check(self, body: GenerationBody, prompt: Prompt, default_max_tokens: int) -> Request:
        try:
            return await self.llm.check(prompt, body.sampling_params(default_max_tokens))
        except InvalidRequestError as error:
            # The client knows a schema by the field it came in.
            parameter = body.schema_field if error.parameter == "json_schema" else error.parameter
            raise type(error)(str(error).replace("json_schema", body.schema_field, 1), parameter) from error

    def _retry_after(self) -> int:
        """Seconds until a place in the queue should be free."""
        rate = max(1, self.llm.num_running) / max(0.1, self._seconds_per_answer)
        return min(_LONGEST_RETRY, max(1, math.ceil(1 / rate)))

    @staticmethod
    def _fail(clocks: Sequence[RequestClock], cause: str) -> None:
        for clock in clocks:
            clock.fail(cause)


class Answers:
    """The open answers to one HTTP request, to be followed once and closed.

    Args:
        service: Whose they are.
        streams: One a choice.
        clocks: One a choice.
    """

    def __init__(self, service: Service, streams: Sequence[AnswerStream], clocks: Sequence[RequestClock]) -> None:
        self._service = service
        self._streams, self._clocks = streams, clocks
        self._ended: set[int] = set()

    @property
    def count(self) -> int:
        """How many choices there are."""
        return len(self._streams)

    async def outputs(self) -> list[RequestOutput]:
        """All answers, complete, by choice."""
        outputs: dict[int, RequestOutput] = {}
        async for index, chunk in self.chunks():
            if chunk.output is not None:
                outputs[index] = chunk.output
        return [outputs[index] for index in range(len(self._streams))]

    async def chunks(self) -> AsyncGenerator[tuple[int, Chunk], None]:
        """Pieces of all answers as they become final, each with the index of its choice.

        Closes everything at the end; whoever may leave early calls `close`.
        """
        arrived: asyncio.Queue[tuple[int, Chunk | Exception | None]] = asyncio.Queue()

        async def follow(index: int, stream: AnswerStream) -> None:
            try:
                async for chunk in stream:
                    arrived.put_nowait((index, chunk))
                arrived.put_nowait((index, None))
            except Exception as error:
                arrived.put_nowait((index, error))

        # They end with their streams, that is, at the latest when these are closed.
        tasks = [asyncio.create_task(follow(index, stream)) for index, stream in enumerate(self._streams)]
        try:
            while len(self._ended) < len(self._streams):
                index, chunk = await arrived.get()
                if isinstance(chunk, Exception):
                    self._ended.add(index)
                    self._clocks[index].fail("error")
                    raise chunk
                if chunk is None:
                    continue
                self._clocks[index].observe(chunk)
                if chunk.output is not None:
                    self._ended.add(index)
                    self._service.finished(chunk.output)
                yield index, chunk
        finally:
            del tasks
            self.close()

    def close(self) -> None:
        """Be done: answers that are not complete leave the engine before its next pass."""
        for index, stream in enumerate(self._streams):
            stream.close()
            if index not in self._ended:
                self._ended.add(index)
                self._clocks[index].fail("abort")


def _fingerprint(llm: AsyncLLM) -> str:
    """Changes with anything that may change what a seed gives."""
    engine = llm.llm.engine
    models = [(model.name, model.model.cache_shape) for model in (engine.target, engine.draft) if model is not None]
    return "fp_" + hashlib.sha256(repr((__version__, models)).encode()).hexdigest()[:12]
