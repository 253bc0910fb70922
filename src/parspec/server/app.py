"""The HTTP application: which address does what."""

import hmac
import time
from collections.abc import AsyncIterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import FileResponse, JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from fastapi.staticfiles import StaticFiles
from prometheus_client import CONTENT_TYPE_LATEST

from parspec._version import __version__
from parspec.llm import Prompt
from parspec.server.body_limit import BodyLimit
from parspec.server.errors import APIError, as_api_error, install_handlers
from parspec.server.protocol import ChatBody, CompletionBody, DetokenizeBody, GenerationBody, TokenizeBody
from parspec.server.responses import Reply
from parspec.server.service import Answers, Service
from parspec.server.streaming import EventStream, chain, frames, while_connected

_PAGE = Path(str(files("parspec.server") / "page"))
_PAGE_POLICY = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'"
_COMPLETION_MAX_TOKENS = 16
"""Of /v1/completions without max_tokens, as the official API has it."""


def create_app(service: Service) -> FastAPI:
    """The application in front of a service."""
    app = FastAPI(
        title="parspec",
        version=__version__,
        description="Language models, faster by particle speculation: the OpenAI API and a little more.",
        # Both would be fetched from another host.
        docs_url=None,
        redoc_url=None,
    )
    install_handlers(app)
    app.add_middleware(BodyLimit, max_bytes=service.config.max_body_bytes)
    if service.config.cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=service.config.cors_origins, allow_methods=["*"], allow_headers=["*"]
        )
    app.include_router(_public_routes(service))
    app.include_router(_openai_routes(service), dependencies=[Depends(_key_check(service.config.api_key))])
    app.include_router(_tokenizer_routes(service), dependencies=[Depends(_key_check(service.config.api_key))])
    app.mount("/page", StaticFiles(directory=_PAGE), name="page")
    return app


def _key_check(expected: str | None) -> Any:
    """A dependency that refuses requests without the key."""
    bearer = HTTPBearer(auto_error=False, description="The key given to parspec serve, if any.")

    async def check(credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]) -> None:
        if expected is None:
            return
        given = "" if credentials is None else credentials.credentials
        # In constant time: how long a comparison takes must not tell how much of a guess is right.
        if not hmac.compare_digest(given.encode(), expected.encode()):
            raise APIError(401, "the API key is missing or wrong: send it as a bearer token", code="invalid_api_key")

    return check


def _public_routes(service: Service) -> APIRouter:
    router = APIRouter()

    @router.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(_PAGE / "index.html", headers={"Content-Security-Policy": _PAGE_POLICY})

    @router.get("/health", tags=["state"])
    async def health() -> JSONResponse:
        """200 while the engine is well, 503 once it has failed and the process should be replaced."""
        if service.llm.failure is not None:
            return JSONResponse({"status": "failed", "reason": str(service.llm.failure)}, 503)
        return JSONResponse({"status": "ok"})

    @router.get("/ready", tags=["state"])
    async def ready() -> JSONResponse:
        """200 while new requests are taken, 503 while the server is stopping or has failed."""
        if service.draining or service.llm.failure is not None:
            return JSONResponse({"status": "stopping" if service.draining else "failed"}, 503)
        return JSONResponse({"status": "ready"})

    @router.get("/metrics", tags=["state"])
    async def metrics() -> Response:
        """Counters and histograms in Prometheus' text format."""
        return Response(service.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    return router


def _openai_routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["OpenAI API"])
    started = int(time.time())

    def model_card() -> dict[str, Any]:
        engine = service.llm.llm.engine
        return {
            "id": service.config.model_name,
            "object": "model",
            "created": started,
            "owned_by": "parspec",
            "max_model_len": service.context,
            "draft": None if engine.draft is None else engine.draft.name,
            "method": engine.defaults.method,
            "preset": engine.defaults.preset,
            "num_particles": engine.defaults.rows,
            "num_draft_tokens": engine.defaults.num_draft_tokens,
        }

    @router.get("/models")
    async def models() -> dict[str, Any]:
        """The models served: one."""
        return {"object": "list", "data": [model_card()]}

    @router.get("/models/{model:path}")
    async def model(model: str) -> dict[str, Any]:
        """One model."""
        service.check_model(model)
        return model_card()

    @router.post("/chat/completions")
    async def chat(body: ChatBody, request: Request) -> Response:
        """Answer a conversation."""
        body.check()
        service.check_model(body.model)
        messages = [message.as_template_input() for message in body.messages]
        prompt = await service.llm.run_blocking(service.llm.llm.chat_prompt, messages, body.template_tools)
        answers = await service.take(body, [prompt], service.config.max_tokens)
        return await _respond(service, request, body, answers, None)

    @router.post("/completions")
    async def complete(body: CompletionBody, request: Request) -> Response:
        """Continue a text."""
        body.check()
        service.check_model(body.model)
        prompts = body.prompts()
        asked: list[Prompt] = [{"prompt_token_ids": p} if isinstance(p, list) else p for p in prompts]
        answers = await service.take(body, asked, _COMPLETION_MAX_TOKENS)
        echoes = [service.text(prompt) if body.echoed else "" for prompt in prompts for _ in range(body.num_answers)]
        return await _respond(service, request, body, answers, echoes)

    return router


async def _respond(
    service: Service, request: Request, body: GenerationBody, answers: Answers, echoes: Sequence[str] | None
) -> Response:
    """Send the answers as the client wants them: as they become final, or in one piece.

    Args:
        service: Whose they are.
        request: The HTTP request.
        body: What the client sent.
        answers: Open; closed here in any case.
        echoes: For a text completion, what goes before each choice's text; None for a chat.
    """
    reply = Reply(
        model=service.config.model_name,
        fingerprint=service.fingerprint,
        chat=echoes is None,
        token_texts=service.token_texts,
        return_posterior=bool(body.return_posterior),
        return_token_ids=bool(body.return_token_ids),
        tool_use=body.tool_use if isinstance(body, ChatBody) else None,
        include_usage=body.stream_options is not None and body.stream_options.include_usage,
    )
    texts = [""] * answers.count if echoes is None else list(echoes)
    try:
        if not body.stream:
            outputs = await while_connected(request, answers.outputs())
            return JSONResponse(reply.whole(outputs, texts))
        encoded = frames(_events(reply, answers, texts), service.config.keepalive_seconds)
        # The status waits for the first piece, so that a request that fails before it gets the right one.
        first = await while_connected(request, anext(encoded))
        return EventStream(chain(first, encoded), answers.close)
    except BaseException as error:
        answers.close()
        if isinstance(error, Exception):
            raise as_api_error(error) from error
        raise


async def _events(reply: Reply, answers: Answers, echoes: Sequence[str]) -> AsyncIterator[dict[str, Any]]:
    """The objects of a stream."""
    outputs = {}
    opened: set[int] = set()
    async for index, chunk in answers.chunks():
        if index not in opened:
            opened.add(index)
            if reply.chat or echoes[index]:
                yield reply.opening(index, echoes[index])
        if chunk.output is not None:
            outputs[index] = chunk.output
        for piece in reply.pieces(index, chunk):
            yield piece
    if reply.include_usage:
        yield reply.last([outputs[index] for index in sorted(outputs)])


def _tokenizer_routes(service: Service) -> APIRouter:
    router = APIRouter(tags=["tokenizer"])

    def tokenizer() -> Any:
        found = service.llm.llm.tokenizer
        if found is None:
            raise APIError(400, "the model has no tokenizer: send token ids")
        return found

    @router.post("/tokenize")
    async def tokenize(body: TokenizeBody) -> dict[str, Any]:
        """The token ids of a text, or of a conversation laid out for the model."""
        service.check_model(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise APIError(400, "give prompt or messages, one of the two", param="prompt")
        if body.messages is not None:
            messages = [message.as_template_input() for message in body.messages]
            prompt = await service.llm.run_blocking(service.llm.llm.chat_prompt, messages)
            tokens = prompt["prompt_token_ids"]
        else:
            encode = lambda: tokenizer()(body.prompt, add_special_tokens=body.add_special_tokens)  # noqa: E731
            tokens = list((await service.llm.run_blocking(encode))["input_ids"])
        strings = tokenizer().convert_ids_to_tokens(tokens) if body.return_token_strs else None
        return {"count": len(tokens), "max_model_len": service.context, "tokens": tokens, "token_strs": strings}

    @router.post("/detokenize")
    async def detokenize(body: DetokenizeBody) -> dict[str, str]:
        """The text of token ids, special tokens included."""
        service.check_model(body.model)
        size = service.llm.llm.engine.vocab_size
        outside = next((token for token in body.tokens if not 0 <= token < size), None)
        if outside is not None:
            raise APIError(400, f"tokens has {outside}: use ids 0 to {size - 1}", param="tokens")
        decode = lambda: tokenizer().decode(body.tokens, clean_up_tokenization_spaces=False)  # noqa: E731
        return {"prompt": await service.llm.run_blocking(decode)}

    @router.get("/tokenizer_info")
    async def tokenizer_info() -> dict[str, Any]:
        """The tokenizer's special tokens and chat template."""
        found = tokenizer()
        names = ("bos_token", "eos_token", "pad_token", "unk_token", "chat_template")
        return {"tokenizer_class": type(found).__name__, **{name: getattr(found, name, None) for name in names}}

    return router
