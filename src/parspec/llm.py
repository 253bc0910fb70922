"""The offline interface: load a pair of models once, then generate or chat."""

import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from parspec.decoding.logprobs import TokenLogProb
from parspec.decoding.task import CycleReport
from parspec.engine.engine import Engine, Update
from parspec.engine.outputs import RequestOutput
from parspec.engine.request import Request
from parspec.errors import InvalidRequestError, ModelError
from parspec.models.device import choose_device, choose_dtype, choose_quantization, free_memory
from parspec.models.loader import LoadedModel, load_model
from parspec.models.locate import locate, resolve_pair
from parspec.sampling.params import MOST_TOP, OF_SMC, MethodParams, SamplingParams

Prompt = str | Mapping[str, Any]
"""A text, or ``{"prompt": text}``, or ``{"prompt_token_ids": [ids]}``."""

Message = Mapping[str, Any]
"""A chat message: ``{"role": ..., "content": ...}``."""

_CACHE_SHARE = {"cuda": 0.9, "mps": 0.5, "cpu": 0.5}
"""Share of the memory that is free after loading which caches may take, by device."""


@dataclass(frozen=True)
class Chunk:
    """A piece of a streamed answer.

    Attributes:
        text: Text that has become final; the pieces joined are the answer's text.
        token_ids: Tokens that have become final.
        cycles: Reports of the cycles since the last piece.
        output: The complete answer, with the last piece only.
        log_probs: One entry for each of the tokens, if the request asked for ``logprobs``.
    """

    text: str
    token_ids: list[int]
    cycles: list[CycleReport] = field(default_factory=list)
    output: RequestOutput | None = None
    log_probs: list[TokenLogProb] = field(default_factory=list)


def _listed(prompts: Prompt | Sequence[Prompt]) -> list[Any]:
    many = isinstance(prompts, Sequence) and not isinstance(prompts, str)
    return list(prompts) if many else [prompts]


def joined(outputs: Sequence[RequestOutput]) -> RequestOutput:
    """The first of several answers to a prompt, with the others."""
    return replace(outputs[0], others=tuple(outputs[1:]))


def check_single(request: Request) -> None:
    """Refuse to stream several answers in one.

    Raises:
        InvalidRequestError: The request asks for several.
    """
    if request.sampling.n > 1:
        raise InvalidRequestError(
            f"n is {request.sampling.n}: a stream has one answer, use generate, or n streams", "n"
        )


class Chunker:
    """Makes pieces of a streamed answer out of the engine's updates.

    Args:
        request: The request the updates are about.
    """

    def __init__(self, request: Request) -> None:
        self._detokenizer = request.stop.detokenizer()
        self._watched = request.watched
        self._token_ids: list[int] = []
        self._cycles: list[CycleReport] = []
        self._log_probs: list[TokenLogProb] = []

    def take(self, update: Update) -> Chunk | None:
        """The piece an update completes, if any: one with text, with the whole answer, or with a watched cycle.

        Raises:
            Exception: The one that ended the request.
        """
        if update.error is not None:
            raise update.error
        self._token_ids += update.token_ids
        self._cycles += update.reports
        self._log_probs += update.log_probs
        text = "" if self._detokenizer is None else self._detokenizer.append(update.token_ids)
        if update.output is not None and self._detokenizer is not None:
            text += self._detokenizer.flush()
        tokens_suffice = self._detokenizer is None and bool(self._token_ids)
        if not (text or update.output or tokens_suffice or (self._watched and self._cycles)):
            return None
        chunk = Chunk(text, self._token_ids, self._cycles, update.output, self._log_probs)
        self._token_ids, self._cycles, self._log_probs = [], [], []
        return chunk


class LLM:
    """A target model, and optionally a draft, ready to answer.

    Args:
        model: Target: a hub id, a local folder, a GGUF file or a known alias (``"qwen2.5-coder"`` names a pair).
        draft: The model that proposes, in the same forms. Left out, a pair's alias supplies it.
        method: ``"smc"``, ``"speculative"``, ``"autoregressive"``, or ``"auto"``, the fastest of them.
        preset: What ``"auto"`` may choose from: ``"lossless"``, ``"balanced"`` or ``"fast"`` (see `MethodParams`).
            ``"balanced"`` where neither this nor a method is given; ``"smc"`` if one of its own parameters is.
        device: ``"auto"``, ``"cpu"``, ``"cuda"``, ``"cuda:N"`` or ``"mps"``.
        dtype: Number format of the arithmetic: ``"auto"``, ``"float32"`` or ``"bfloat16"``.
        quantization: ``"int8"`` rounds the target's weights, None keeps them.
        draft_quantization: The same for the draft. ``"auto"`` rounds them where that is faster: a draft's error is
            corrected, by weights or by rejection, so it costs no accuracy.
        max_model_len: Upper limit on prompt and answer together, in tokens; by default the models' own.
        cache_memory: Memory for key/value caches of all running requests, in GiB; by default a share of what is
            free after loading.
        cache_dir: Where downloaded and converted models are kept; by default the user's cache directory.
        **method_params: Defaults for requests: ``num_particles``, ``num_draft_tokens``, ``cut_threshold``,
            ``resample_threshold``, ``resampling``, ``commit_lag``, ``select`` (see `MethodParams`).

    Raises:
        ModelError: A model cannot be found, read, or served correctly, or the pair does not fit.
        InvalidRequestError: A parameter is out of range.
    """

    def __init__(
        self,
        model: str,
        draft: str | None = None,
        *,
        method: str | None = None,
        preset: str | None = None,
        device: str = "auto",
        dtype: str = "auto",
        quantization: str | None = None,
        draft_quantization: str | None = "auto",
        max_model_len: int | None = None,
        cache_memory: float | None = None,
        cache_dir: Path | None = None,
        **method_params: Any,
    ) -> None:
        target_name, draft_name = resolve_pair(model, draft)
        if method is None and preset is None and method_params.keys() & set(OF_SMC):
            method = "smc"
        elif method is None:
            method, preset = "auto", preset or "balanced"
        defaults = MethodParams(method=method, preset=preset, **method_params)
        if max_model_len is not None and max_model_len < 2:
            raise InvalidRequestError(f"max_model_len is {max_model_len}: use 2 or more tokens")
        if cache_memory is not None and not cache_memory > 0:
            raise InvalidRequestError(f"cache_memory is {cache_memory}: use a positive number of GiB")
        if defaults.method not in ("autoregressive", "auto") and draft_name is None:
            raise InvalidRequestError(f'method "{defaults.method}" needs a draft model: pass draft=...')
        torch_device = choose_device(device)
        torch_dtype = choose_dtype(dtype, torch_device)
        formats = [choose_quantization(name, torch_device) for name in (quantization, draft_quantization)]

        # Both are found before either is loaded: a misspelt draft should not cost the target's loading time.
        names = [target_name] if draft_name is None else [target_name, draft_name]
        folders = [locate(name, cache_dir=cache_dir) for name in names]
        loaded: list[LoadedModel] = []
        for folder, name, rounded in zip(folders, names, formats, strict=False):
            partner = loaded[0] if loaded else None
            loaded.append(
                load_model(
                    folder, name, torch_device, torch_dtype, max_model_len, quantization=rounded, partner=partner
                )
            )
        budget = (
            int(_CACHE_SHARE[torch_device.type] * free_memory(torch_device))
            if cache_memory is None
            else int(cache_memory * 1024**3)
        )
        self.engine = Engine(loaded[0], loaded[1] if len(loaded) == 2 else None, defaults, budget)

    @classmethod
    def of(cls, engine: Engine) -> "LLM":
        """The interface to an engine that exists already."""
        llm = cls.__new__(cls)
        llm.engine = engine
        return llm

    @property
    def tokenizer(self) -> Any:
        """The target's tokenizer, or None."""
        return self.engine.target.tokenizer

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Answer one or many prompts; all of them are checked before any runs.

        Args:
            prompts: A prompt or a list of them.
            sampling_params: For all prompts, or one for each; the defaults of `SamplingParams` if left out.

        Returns:
            One output a prompt, in their order; further answers to the same prompt (``n``) are in its ``others``.

        Raises:
            InvalidRequestError: A prompt or a parameter cannot be served.
            OutOfMemoryError: A single request exceeds the memory budget.
        """
        listed = _listed(prompts)
        if isinstance(sampling_params, Sequence):
            params = list(sampling_params)
        else:
            params = [SamplingParams() if sampling_params is None else sampling_params] * len(listed)
        if len(params) != len(listed):
            raise InvalidRequestError(
                f"{len(params)} sampling_params for {len(listed)} prompts: give one for all, or one for each"
            )
        requests = [self.check(prompt, one) for prompt, one in zip(listed, params, strict=True)]
        outputs = iter(self._outputs([run for request in requests for run in request.runs()]))
        return [joined([next(outputs) for _ in range(request.sampling.n)]) for request in requests]

    def _outputs(self, requests: Sequence[Request]) -> list[RequestOutput]:
        outputs: dict[int, RequestOutput] = {}
        ids = [self.engine.submit(request) for request in requests]
        for update in self._run(ids):
            if update.output is not None:
                outputs[update.request_id] = update.output
        return [outputs[request_id] for request_id in ids]

    def score(self, prompts: Prompt | Sequence[Prompt], num_top: int = 0) -> list[list[TokenLogProb]]:
        """Log-probabilities of the tokens of given texts under the target, with temperature 1.

        Args:
            prompts: A text or a list of them, as for `generate`.
            num_top: How many of the most probable tokens to report at each place.

        Returns:
            For each text one entry for each token but the first.

        Raises:
            InvalidRequestError: A text has fewer than two tokens, or is too long.
            OutOfMemoryError: A text exceeds the memory budget.
        """
        if not 0 <= num_top <= MOST_TOP:
            raise InvalidRequestError(f"num_top is {num_top}: use 0 to {MOST_TOP}", "num_top")
        requests = [self.engine.check_score(self._token_ids(prompt), num_top) for prompt in _listed(prompts)]
        outputs = self._outputs(requests)
        return [output.prompt_log_probs or [] for output in outputs]

    def chat(
        self,
        conversations: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> list[RequestOutput]:
        """Answer one or many conversations, laid out by the target's chat template.

        Args:
            conversations: A list of messages, or a list of such lists.
            sampling_params: As for `generate`.
            tools: See `chat_prompt`.

        Returns:
            One output a conversation, in their order.
        """
        single = not conversations or isinstance(conversations[0], Mapping)
        listed = [conversations] if single else conversations
        return self.generate([self.chat_prompt(one, tools) for one in listed], sampling_params)  # type: ignore[arg-type]

    def chat_prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> dict[str, list[int]]:
        """Lay a conversation out by the target's chat template, ready for the assistant's next message.

        Args:
            messages: The conversation so far.
            tools: Functions the model is to know of, as ``{"type": "function", "function": {"name": ..., ...}}``.

        Raises:
            InvalidRequestError: There are no messages, they are malformed, or the model has no chat template, or none
                with a place for tools.
        """
        if self.tokenizer is None or not getattr(self.tokenizer, "chat_template", None):
            raise InvalidRequestError(
                f'model "{self.engine.target.name}" has no chat template: use generate with a plain prompt'
            )
        if tools and "tools" not in str(self.tokenizer.chat_template):
            raise InvalidRequestError(
                f'the chat template of "{self.engine.target.name}" has no place for tools: describe them in a message',
                "tools",
            )
        if not messages or not all(isinstance(m, Mapping) and "role" in m and "content" in m for m in messages):
            raise InvalidRequestError(
                'a conversation is a list of messages like {"role": "user", "content": "..."}, at least one'
            )
        try:
            text = self.tokenizer.apply_chat_template(
                list(messages), tools=list(tools) or None, tokenize=False, add_generation_prompt=True
            )
        except Exception as error:  # templates raise whatever their author chose
            raise InvalidRequestError(f"the chat template refused the conversation: {error}") from error
        # The template writes every special token itself; adding them again would double the beginning of text.
        return {"prompt_token_ids": self.tokenizer(text, add_special_tokens=False)["input_ids"]}

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Generator[Chunk, None, None]:
        """Answer one prompt piece by piece; what has been handed out never changes.

        Args:
            prompt: A prompt.
            sampling_params: Its parameters.

        Returns:
            A generator of pieces as they become final, the last one with the complete output. Closing it early
            ends the request.

        Raises:
            InvalidRequestError: The prompt or a parameter cannot be served; raised here, not at the first piece.
            OutOfMemoryError: The request exceeds the memory budget.
        """
        request = self.check(prompt, SamplingParams() if sampling_params is None else sampling_params)
        check_single(request)
        return self._stream(request)

    def _stream(self, request: Request) -> Generator[Chunk, None, None]:
        chunker = Chunker(request)
        for update in self._run([self.engine.submit(request)]):
            chunk = chunker.take(update)
            if chunk is not None:
                yield chunk

    def _run(self, request_ids: list[int]) -> Iterator[Update]:
        """Step the engine until the requests have ended; drop those that have not if the caller stops early."""
        open_ids = set(request_ids)
        try:
            while open_ids:
                for update in self.engine.step():
                    if update.error is not None:
                        raise update.error
                    if update.output is not None:
                        open_ids.discard(update.request_id)
                    yield update
        finally:
            for request_id in open_ids:
                self.engine.abort(request_id)

    def check(self, prompt: Prompt, sampling: SamplingParams) -> Request:
        """Check a prompt and its parameters without running anything.

        Raises:
            InvalidRequestError: They cannot be served.
            OutOfMemoryError: The request exceeds the memory budget.
        """
        if not isinstance(sampling, SamplingParams):
            raise InvalidRequestError("sampling_params must be SamplingParams: one for all prompts, or one for each")
        request = self.engine.check(self._token_ids(prompt), sampling)
        if request.method.method == "smc" and request.method.rows == 1:
            warnings.warn(
                "num_particles=1 never resamples: the answer follows the draft, corrected only by one target token "
                "a cycle; use 4 or more particles",
                stacklevel=3,
            )
        return request

    def _token_ids(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, Mapping):
            if "prompt_token_ids" in prompt:
                ids = prompt["prompt_token_ids"]
                if isinstance(ids, torch.Tensor):
                    ids = ids.tolist()
                if not isinstance(ids, Sequence) or not all(type(index) is int for index in ids):
                    raise InvalidRequestError("prompt_token_ids must be a list of integers")
                return list(ids)
            prompt = prompt.get("prompt", "")
        if not isinstance(prompt, str):
            raise InvalidRequestError('a prompt is a string, {"prompt": text} or {"prompt_token_ids": [ids]}')
        if not prompt:
            raise InvalidRequestError("the prompt is empty: give at least one character")
        if self.tokenizer is None:
            raise ModelError(f'model "{self.engine.target.name}" has no tokenizer: pass {{"prompt_token_ids": [ids]}}')
        try:
            prompt.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequestError(
                "the prompt holds half a character (a lone surrogate): convert it first"
            ) from error
        return list(self.tokenizer(prompt)["input_ids"])
