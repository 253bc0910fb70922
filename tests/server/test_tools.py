"""Tools as clients offer them, and calls as they get them back."""

import json
from typing import Any, Literal

import openai
import pydantic
import pytest

from parspec.server.tools import ToolUse
from tests.server.conftest import MODEL, Server
from tests.server.test_bad_input import refused

WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Bern", "Rome"]}, "days": {"type": "boolean"}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}
TIME = {"name": "get_time", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}
BAD = {"name": "bad", "parameters": {"type": "strin"}}
TOOLS = [{"type": "function", "function": WEATHER}, {"type": "function", "function": TIME}]
CALL = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
WITH_ARGUMENTS = '<tool_call>{"name": "get_time", "arguments": {"a": %s}}</tool_call>'
UNUSABLE = [WITH_ARGUMENTS % text for text in ('"\\ud83d"', "NaN", "-Infinity", "1e999", "[" * 10_000 + "]" * 10_000)]
UNUSABLE += [CALL.replace("}}", "}} x")]
MESSAGES = [{"role": "user", "content": "Hello"}]


def client_of(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def options(**changes: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": MESSAGES, "tools": TOOLS, "max_tokens": 400, "seed": 3, **changes}


def check_call(call: Any) -> None:
    assert call.id.startswith("call_")
    assert call.type == "function"
    arguments = json.loads(call.function.arguments)
    if call.function.name == "get_weather":
        assert arguments["city"] in ("Bern", "Rome")
        assert isinstance(arguments["days"], bool)
    else:
        assert (call.function.name, arguments) == ("get_time", {})


@pytest.mark.parametrize("method", ["smc", "speculative", "autoregressive"])
def test_required_calls_always_fit(server: Server, method: str) -> None:
    complete = 0
    for seed in range(4):
        body = {"method": method, "num_particles": 3}
        asked = options(tool_choice="required", parallel_tool_calls=False, seed=seed, extra_body=body)
        choice = client_of(server).chat.completions.create(**asked).choices[0]
        # Random weights may fill the answer up with blanks, which JSON allows.
        if choice.finish_reason == "length":
            assert choice.message.tool_calls is None
            continue
        complete += 1
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content is None
        assert len(choice.message.tool_calls) == 1
        check_call(choice.message.tool_calls[0])
    assert complete


def test_a_named_call(server: Server) -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    choice = client_of(server).chat.completions.create(**options(tool_choice=named)).choices[0]
    assert choice.finish_reason == "stop"
    assert [call.function.name for call in choice.message.tool_calls] == ["get_weather"]
    check_call(choice.message.tool_calls[0])


def test_a_stream_gives_the_same_calls(server: Server) -> None:
    asked = options(tool_choice={"type": "function", "function": {"name": "get_weather"}})
    whole = client_of(server).chat.completions.create(**asked).choices[0].message.tool_calls
    chunks = [chunk.choices[0] for chunk in client_of(server).chat.completions.create(**asked, stream=True)]
    assert not "".join(chunk.delta.content or "" for chunk in chunks)
    streamed = [call for chunk in chunks for call in chunk.delta.tool_calls or []]
    got = [(call.index, call.function.name, call.function.arguments) for call in streamed]
    assert got == [(i, call.function.name, call.function.arguments) for i, call in enumerate(whole)]
    assert chunks[-1].finish_reason == "stop"


def test_a_conversation_with_calls_and_results(server: Server) -> None:
    """What the server gave can be sent back with the result, and reaches the template."""
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Bern"}'}}
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    body = {"return_token_ids": True}
    answer = client_of(server).chat.completions.create(**options(messages=messages, max_tokens=4, extra_body=body))
    prompt = server.llm.llm.tokenizer.decode(answer.choices[0].prompt_token_ids)
    for part in ("get_time", 'get_weather {"city": "Bern"}', "sunny"):
        assert part in prompt
    without = client_of(server).chat.completions.create(**options(tool_choice="none", max_tokens=4, extra_body=body))
    assert "get_time" not in server.llm.llm.tokenizer.decode(without.choices[0].prompt_token_ids)


def test_bad_tools_are_refused(server: Server) -> None:
    named = {"type": "function", "function": {"name": "other"}}
    for body, param in (
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools"),
        ({"tools": [{"type": "custom", "function": TIME}]}, "tools"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": named, "tools": TOOLS}, "tool_choice"),
        ({"tool_choice": "any", "tools": TOOLS}, "tool_choice"),
        ({"tool_choice": "required", "tools": TOOLS, "response_format": {"type": "json_object"}}, "response_format"),
        ({"tool_choice": "required", "tools": TOOLS, "regex": "a"}, "regex"),
        ({"tool_choice": "required", "tools": TOOLS, "json_schema": {}}, "json_schema"),
        ({"tool_choice": "required", "tools": [{"type": "function", "function": BAD}]}, "tools"),
    ):
        response = server.chat(**body)
        refused(response, 400)
        assert (response.json()["error"]["param"] or "").split(".")[0] == param
    for message in (
        {"role": "tool", "content": "x"},
        {"role": "user", "content": "x", "tool_call_id": "1"},
        {"role": "assistant"},
        {"role": "user", "content": "x", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{"}}]},
    ):
        refused(server.post("/v1/chat/completions", messages=[*MESSAGES, message]), 400)


def test_a_template_without_a_place_for_tools(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.llm.llm.tokenizer, "chat_template", "{{ messages[0].content }}")
    refused(server.chat(tools=TOOLS), 400, param="tools", words="has no place for tools")


@pytest.mark.parametrize(
    ("text", "content", "names"),
    [
        (CALL, "", ["get_time"]),
        (f"Let me see. {CALL}", "Let me see. ", ["get_time"]),
        (f"{CALL}\n{CALL}", "\n", ["get_time", "get_time"]),
        (CALL.removesuffix("</tool_call>"), "", ["get_time"]),
        (f"a{CALL}b", "ab", ["get_time"]),
        ("no call", "no call", []),
        ("<tool_call>{broken</tool_call>", "<tool_call>{broken</tool_call>", []),
        (CALL.replace("get_time", "rm"), CALL.replace("get_time", "rm"), []),
        (CALL.replace("{}", "[]"), CALL.replace("{}", "[]"), []),
        ("<tool_call>3</tool_call>", "<tool_call>3</tool_call>", []),
        *((text, text, []) for text in UNUSABLE),
    ],
)
def test_calls_in_a_text(text: str, content: str, names: list[str]) -> None:
    """Whatever is shown while it is written stays a beginning of what is shown in the end."""
    use = ToolUse([WEATHER, TIME])
    found, calls = use.split(text)
    assert found == content
    assert [call["function"]["name"] for call in calls] == names
    shown = [text[: use.shown(text[:size])] for size in range(len(text) + 1)]
    for earlier, later in zip(shown, [*shown[1:], content], strict=True):
        assert later.startswith(earlier)


def test_a_tag_inside_a_string_ends_no_call() -> None:
    text = WITH_ARGUMENTS % '"<tool_call> and </tool_call>"'
    content, [call] = ToolUse([TIME]).split(f"{text} done")
    assert content == " done"
    assert json.loads(call["function"]["arguments"]) == {"a": "<tool_call> and </tool_call>"}


def test_one_call_where_one_is_wanted() -> None:
    content, [call] = ToolUse([WEATHER, TIME], parallel=False).split(f"a{CALL}{CALL}")
    assert content == "a"
    assert call["function"]["name"] == "get_time"


class Leg(pydantic.BaseModel):
    start: Literal["Bern", "Rome"]


class Trip(pydantic.BaseModel):
    """A nested model: its schema has definitions and references."""

    leg: Leg
    back: Leg | None


TREE = {
    "name": "tree",
    "parameters": {
        "type": "object",
        "properties": {
            "$ref": {"const": "#/x"},
            "left": {"anyOf": [{"type": "null"}, {"$ref": "#"}]},
            "right": {"$ref": "#/properties/left"},
        },
        "required": ["$ref", "left"],
        "additionalProperties": False,
    },
}


def check_tree(tree: dict[str, Any]) -> None:
    assert tree.keys() <= {"$ref", "left", "right"}
    assert tree["$ref"] == "#/x"
    for child in (tree["left"], tree.get("right")):
        if child is not None:
            check_tree(child)


@pytest.mark.parametrize("others", [[], TOOLS])
def test_references_inside_the_parameters(server: Server, others: list[Any]) -> None:
    trip = openai.pydantic_function_tool(Trip)
    for name, tool in (("Trip", trip), ("tree", {"type": "function", "function": TREE})):
        choice = {"type": "function", "function": {"name": name}}
        found = []
        for seed in range(6):
            body = {"method": "autoregressive"}
            asked = options(tools=[*others, tool], tool_choice=choice, seed=seed, extra_body=body)
            message = client_of(server).chat.completions.create(**asked).choices[0].message
            found += [json.loads(call.function.arguments) for call in message.tool_calls or []]
        assert found
        for arguments in found:
            if name == "Trip":
                Trip.model_validate(arguments)
            else:
                check_tree(arguments)


def test_references_of_several_functions_stay_apart() -> None:
    tools = [{"name": "a", "parameters": {"$ref": "#/$defs/x", "$defs": {"x": {"enum": [{"$ref": "#/y"}]}}}}, TREE]
    schema = ToolUse(tools, forced=True).schema()
    first, second = [one["properties"]["arguments"] for one in schema["items"]["anyOf"]]
    assert first["$ref"] == "#/items/anyOf/0/properties/arguments/$defs/x"
    assert first["$defs"]["x"] == {"enum": [{"$ref": "#/y"}]}  # a value, not a schema
    assert second["properties"]["right"]["$ref"] == "#/items/anyOf/1/properties/arguments/properties/left"


def test_text_that_only_looks_like_a_call_is_not_held_back_for_long() -> None:
    use = ToolUse([TIME])
    assert use.shown("1 < 2") == 5
    assert use.shown("a <tool") == 2
    assert use.shown("a <tool b") == 9
    assert ToolUse([TIME], forced=True).shown("anything") == 0
