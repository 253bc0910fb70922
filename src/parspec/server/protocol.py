"""What clients send: the official API's fields, and parspec's own beside them.

Types are checked here, ranges by `SamplingParams`: they are the same for the Python interface.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from parspec.sampling.params import (
    CONSTRAINT_MODES,
    LOGPROBS_MODES,
    METHOD_NAMES,
    PRESETS,
    SELECTIONS,
    SamplingParams,
)
from parspec.server.errors import APIError
from parspec.server.tools import ToolUse
from parspec.smc.resampling import SCHEMES

_SAMPLING_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "min_tokens",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "json_schema",
    "regex",
    "choice",
    "grammar",
    "constraint_mode",
    "logprobs_mode",
    "power",
    "vote",
    "method",
    "preset",
    "num_particles",
    "num_draft_tokens",
    "cut_threshold",
    "resample_threshold",
    "resampling",
    "commit_lag",
    "select",
)
"""Fields that are parameters of `SamplingParams` by the same name."""

_NOT_SERVED: Mapping[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "prediction": (),
    "reasoning_effort": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "verbosity": (),
    "web_search_options": (),
}
"""Fields of the official API that are not served, with the values that ask for nothing (null always does)."""


class Body(BaseModel):
    """A JSON object whose fields are all known, and of the right types."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _check_text(cls, content: Any) -> Any:
        """JSON can write halves of characters, which no tokenizer and no answer can hold."""
        try:
            # A body that is not JSON comes as bytes, and is refused for that.
            json.dumps(content, ensure_ascii=False, default=str).encode()
        except UnicodeEncodeError as error:
            raise ValueError("it holds half a character (a lone surrogate)") from error
        return content


class StreamOptions(Body):
    """What a stream holds beside the text.

    Attributes:
        include_usage: A last chunk with the usage.
        include_obfuscation: Taken and without effect: nothing is obfuscated.
        include_population: Chunks that say what each cycle did to every particle (parspec's own).
    """

    include_usage: bool = False
    include_obfuscation: bool | None = None
    include_population: bool = False


class GenerationBody(Body):
    """What both kinds of completions take."""

    model: str
    n: Annotated[int, Field(ge=1, le=128)] | None = 1
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None

    # Taken, and without effect on the answer.
    user: str | None = None
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None

    # Known, and refused unless they ask for nothing: `_NOT_SERVED`.
    service_tier: str | None = None

    # As other engines have them beside the official ones.
    top_k: int | None = None
    min_p: float | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    repetition_penalty: float | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    min_tokens: int | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None

    # parspec's own.
    json_schema: dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    constraint_mode: Annotated[str, Field(json_schema_extra={"enum": list(CONSTRAINT_MODES)})] | None = None
    logprobs_mode: Annotated[str, Field(json_schema_extra={"enum": list(LOGPROBS_MODES)})] | None = None
    power: float | None = None
    vote: str | None = None
    method: Annotated[str, Field(json_schema_extra={"enum": list(METHOD_NAMES)})] | None = None
    preset: Annotated[str, Field(json_schema_extra={"enum": list(PRESETS)})] | None = None
    num_particles: int | None = None
    num_draft_tokens: int | None = None
    cut_threshold: float | None = None
    resample_threshold: float | None = None
    resampling: Annotated[str, Field(json_schema_extra={"enum": list(SCHEMES)})] | None = None
    commit_lag: int | None = None
    select: Annotated[str, Field(json_schema_extra={"enum": list(SELECTIONS)})] | None = None
    return_posterior: bool | None = None
    return_token_ids: bool | None = None

    @property
    def answer_limit(self) -> int | None:
        """The most tokens of the answer, if the client says."""
        raise NotImplementedError

    @property
    def num_top(self) -> int | None:
        """How many alternatives to show with each token's log-probability; None for no log-probabilities."""
        raise NotImplementedError

    @property
    def echoed(self) -> bool:
        """Whether the answer is to begin with the prompt."""
        return False

    @property
    def schema_asked_for(self) -> dict[str, Any] | None:
        """The JSON schema of the official API's response_format, if there is one."""
        return None

    @property
    def schema_field(self) -> str:
        """The field the JSON schema comes from."""
        return "json_schema"

    @property
    def watched(self) -> bool:
        """Whether the client wants to see every cycle."""
        return self.stream_options is not None and self.stream_options.include_population

    @property
    def num_answers(self) -> int:
        """Answers to each prompt."""
        return 1 if self.n is None else self.n

    def check(self) -> None:
        """Refuse what the official API has and this server does not serve.

        Raises:
            APIError: Names the field.
        """
        for name, neutral in _NOT_SERVED.items():
            value = getattr(self, name, None)
            if value is not None and value not in neutral:
                raise APIError(
                    400,
                    f"{name} is not supported by parspec yet: leave it out",
                    param=name,
                    code="unsupported_parameter",
                )
        if self.stream_options is not None and not self.stream:
            raise APIError(
                400, "stream_options needs a stream: set stream to true, or leave it out", param="stream_options"
            )

    def sampling_params(self, default_max_tokens: int) -> SamplingParams:
        """The parameters of the answers.

        Args:
            default_max_tokens: Most tokens of the answer if the client does not say.

        Raises:
            InvalidRequestError: A value is out of range.
        """
        values = {name: getattr(self, name) for name in _SAMPLING_FIELDS if getattr(self, name) is not None}
        if self.schema_asked_for is not None:
            if "json_schema" in values:
                raise APIError(
                    400,
                    "json_schema is given beside response_format or tool_choice: use one of them",
                    param="json_schema",
                )
            values["json_schema"] = self.schema_asked_for
        limit = self.answer_limit
        return SamplingParams(
            max_tokens=default_max_tokens if limit is None else limit,
            n=self.num_answers,
            logprobs=self.num_top,
            prompt_logprobs=self.num_top if self.echoed else None,
            **values,
        )


class TextPart(Body):
    """A part of a message's content."""

    type: Literal["text"]
    text: str


class Function(Body):
    """A function the client offers; its arguments always fit the schema, whatever ``strict`` says."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Body):
    """A tool: only functions are known."""

    type: Literal["function"]
    function: Function


class FunctionName(Body):
    """Which function."""

    name: str


class ToolChoice(Body):
    """That a certain function is to be called."""

    type: Literal["function"]
    function: FunctionName


class WrittenFunction(Body):
    """Of an earlier call: the arguments are JSON as text."""

    name: str
    arguments: str


class ToolCall(Body):
    """A call in an earlier answer."""

    id: str
    type: Literal["function"] = "function"
    function: WrittenFunction

    def as_template_input(self) -> dict[str, Any]:
        """The call as chat templates take it: with its arguments as an object.

        Raises:
            APIError: The arguments are not JSON.
        """
        try:
            arguments = json.loads(self.function.arguments or "{}")
        except ValueError as error:
            raise APIError(
                400, f"the arguments of tool call {self.id} are not JSON: {error}", param="messages"
            ) from error
        return {"id": self.id, "type": "function", "function": {"name": self.function.name, "arguments": arguments}}


class Message(Body):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    # An earlier answer sent back as it came has these, empty.
    refusal: None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    audio: None = None
    function_call: None = None

    @model_validator(mode="after")
    def _check_parts(self) -> "Message":
        if self.tool_calls and self.role != "assistant":
            raise ValueError('tool_calls go with role "assistant"')
        if (self.tool_call_id is not None) != (self.role == "tool"):
            raise ValueError('tool_call_id goes with role "tool", and role "tool" needs it')
        if self.content is None and not self.tool_calls:
            raise ValueError("content is missing")
        return self

    def as_template_input(self) -> dict[str, Any]:
        """The message as chat templates take it: the text in one piece, and only roles templates know."""
        content = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content or [])
        role = "system" if self.role == "developer" else self.role
        message: dict[str, Any] = {"role": role, "content": content}
        if self.name is not None:
            message["name"] = self.name
        if self.tool_calls:
            message["tool_calls"] = [call.as_template_input() for call in self.tool_calls]
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message


class NamedSchema(Body):
    """A schema as response_format has it; it is followed strictly whatever ``strict`` says."""

    name: str
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(Body):
    """What the answer's text must look like."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    @model_validator(mode="after")
    def _check_schema(self) -> "ResponseFormat":
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError('json_schema goes with type "json_schema", and only with it')
        return self


class ChatBody(GenerationBody):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None

    audio: dict[str, Any] | None = None
    function_call: str | dict[str, Any] | None = None
    functions: list[dict[str, Any]] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    modalities: list[str] | None = None
    parallel_tool_calls: bool | None = None
    prediction: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    response_format: ResponseFormat | None = None
    store: bool | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    tools: Annotated[list[Tool], Field(max_length=128)] | None = None
    verbosity: str | None = None
    web_search_options: dict[str, Any] | None = None

    @property
    def answer_limit(self) -> int | None:
        """See `GenerationBody`; the newer of the two official names counts."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def num_top(self) -> int | None:
        """See `GenerationBody`."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def template_tools(self) -> list[dict[str, Any]]:
        """The tools as chat templates take them; none if the model must not know of them."""
        if self.tool_choice == "none":
            return []
        return [tool.model_dump(exclude_none=True) for tool in self.tools or []]

    @property
    def tool_use(self) -> ToolUse | None:
        """How the tools may be used; None without any."""
        functions = [tool["function"] for tool in self.template_tools]
        if not functions:
            return None
        named = isinstance(self.tool_choice, ToolChoice)
        if isinstance(self.tool_choice, ToolChoice):
            functions = [one for one in functions if one["name"] == self.tool_choice.function.name]
        return ToolUse(functions, named or self.tool_choice == "required", named, self.parallel_tool_calls is not False)

    @property
    def schema_asked_for(self) -> dict[str, Any] | None:
        """See `GenerationBody`."""
        tool_use = self.tool_use
        if tool_use is not None and tool_use.forced:
            if self.response_format is not None and self.response_format.type != "text":
                raise APIError(
                    400, "response_format contradicts tool_choice, which asks for a call", param="response_format"
                )
            return tool_use.schema()
        if self.response_format is None or self.response_format.type == "text":
            return None
        named = self.response_format.json_schema
        return {"type": "object"} if named is None or named.schema_ is None else named.schema_

    @property
    def schema_field(self) -> str:
        """See `GenerationBody`."""
        if self.schema_asked_for is None:
            return super().schema_field
        return "tools" if self.tool_use is not None and self.tool_use.forced else "response_format"

    def check(self) -> None:
        """See `GenerationBody`."""
        super().check()
        names = [tool.function.name for tool in self.tools or []]
        if len(set(names)) < len(names):
            raise APIError(400, "two tools have the same name: give each its own", param="tools")
        if self.tool_choice not in (None, "none", "auto") and not names:
            raise APIError(400, "tool_choice needs tools: give some, or leave it out", param="tool_choice")
        if isinstance(self.tool_choice, ToolChoice) and self.tool_choice.function.name not in names:
            raise APIError(400, f"tool_choice names none of the tools: use {', '.join(names)}", param="tool_choice")
        if self.top_logprobs and not self.logprobs:
            raise APIError(400, "top_logprobs needs logprobs: set it to true, or leave both out", param="top_logprobs")


class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    prompt: str | list[str] | list[int] | list[list[int]]
    max_tokens: int | None = 16
    echo: bool | None = False
    best_of: int | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    suffix: str | None = None

    @property
    def answer_limit(self) -> int | None:
        """See `GenerationBody`."""
        return self.max_tokens

    @property
    def num_top(self) -> int | None:
        """See `GenerationBody`."""
        return self.logprobs

    @property
    def echoed(self) -> bool:
        """See `GenerationBody`."""
        return bool(self.echo)

    def check(self) -> None:
        """See `GenerationBody`."""
        super().check()
        if self.echo and self.stream and self.logprobs is not None:
            raise APIError(
                400,
                "echo with logprobs is not supported in streams: leave one of them out",
                param="echo",
                code="unsupported_parameter",
            )

    def prompts(self) -> list[str | list[int]]:
        """The prompts, each a text or token ids.

        Raises:
            APIError: There are none.
        """
        match self.prompt:
            case str():
                return [self.prompt]
            case []:
                raise APIError(400, "prompt is empty: give a text, or token ids", param="prompt")
            case [int(), *_]:
                return [self.prompt]  # type: ignore[list-item]
        return list(self.prompt)  # type: ignore[arg-type]


class TokenizeBody(Body):
    """POST /tokenize: a text or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    add_special_tokens: bool = True
    return_token_strs: bool = False


class DetokenizeBody(Body):
    """POST /detokenize."""

    model: str | None = None
    tokens: list[int]
