"""Tools: functions the client offers, and the calls a model writes.

A call the client demands (``tool_choice`` "required" or a name) is written under a JSON schema, so that it always
parses and its arguments always fit. A call the model may make (``"auto"``) is found in its text, in the form Hermes,
Qwen and others are trained on: a JSON object between ``<tool_call>`` and ``</tool_call>``.
"""

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_OPENING = "<tool_call>"
_BEGINNING = re.compile(rf"{_OPENING}\s*")
_END = re.compile(r"\s*(?:</tool_call>|\Z)")
_OF_NAMES = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
"""Keywords of a schema that hold schemas by name."""
_OF_VALUES = ("const", "enum", "default", "examples")
"""Keywords of a schema that hold no schemas."""


@dataclass(frozen=True)
class ToolUse:
    """How one request may use its tools.

    Attributes:
        functions: The functions, each with ``name`` and perhaps ``parameters``, as the client describes them.
        forced: Whether there must be a call.
        named: Whether the client says which.
        parallel: Whether there may be several calls.
    """

    functions: Sequence[Mapping[str, Any]]
    forced: bool = False
    named: bool = False
    parallel: bool = True

    def schema(self) -> dict[str, Any]:
        """JSON schema of the calls that have to be made: an array of names with arguments."""
        single = len(self.functions) == 1
        calls = [
            {
                "type": "object",
                "properties": {
                    "name": {"const": function["name"]},
                    "arguments": _moved(
                        function.get("parameters") or {"type": "object"},
                        "#/items/properties/arguments" if single else f"#/items/anyOf/{index}/properties/arguments",
                    ),
                },
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for index, function in enumerate(self.functions)
        ]
        items = calls[0] if single else {"anyOf": calls}
        most = {} if self.parallel and not self.named else {"maxItems": 1}
        return {"type": "array", "items": items, "minItems": 1, **most}

    def split(self, text: str) -> tuple[str, list[dict[str, Any]]]:
        """What of an answer is text for the reader, and the calls in it.

        An answer that ends before its calls are complete, or whose calls are none of the functions, is all text. Of
        several calls only the first counts if the client wants one.
        """
        try:
            content, written = ("", _DECODER.decode(text)) if self.forced else _found(text)
            calls = [self._call(one) for one in written]
        except (ValueError, TypeError, KeyError, RecursionError):
            return text, []
        return (content if calls else text), calls if self.parallel else calls[:1]

    def shown(self, text: str) -> int:
        """How many characters of an unfinished answer are sure to be text for the reader."""
        if self.forced:
            return 0
        if (found := text.find(_OPENING)) >= 0:
            return found
        ends = (size for size in range(min(len(text), len(_OPENING) - 1), 0, -1) if text.endswith(_OPENING[:size]))
        return len(text) - next(ends, 0)

    def finish_reason(self, reason: str, calls: Sequence[Any]) -> str:
        """Why the answer ended; as in the official API, a call that was ordered by name is nothing special."""
        return "tool_calls" if calls and not self.named else reason

    def _call(self, written: Any) -> dict[str, Any]:
        if written["name"] not in {function["name"] for function in self.functions}:
            raise KeyError(written["name"])
        arguments = written.get("arguments", {})
        if not isinstance(arguments, dict):
            raise TypeError("arguments are no object")
        as_text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        as_text.encode()  # half a surrogate pair cannot be sent
        return {
            "id": f"call_{secrets.token_hex(12)}",
            "type": "function",
            "function": {"name": written["name"], "arguments": as_text},
        }


def _not_json(constant: str) -> Any:
    raise ValueError(constant)


_DECODER = json.JSONDecoder(parse_constant=_not_json)


def _found(text: str) -> tuple[str, list[Any]]:
    """The text around the calls in an answer, and the calls; their strings may hold anything, tags too."""
    content, calls, position = "", [], 0
    while beginning := _BEGINNING.search(text, position):
        content += text[position : beginning.start()]
        call, end = _DECODER.raw_decode(text, beginning.end())
        ending = _END.match(text, end)
        if ending is None:
            raise ValueError("something follows the call")
        calls.append(call)
        position = ending.end()
    return content + text[position:], calls


def _moved(schema: Any, root: str) -> Any:
    """A schema that has become part of another one, at ``root``: its references point there."""
    if isinstance(schema, list):
        return [_moved(one, root) for one in schema]
    if not isinstance(schema, dict):
        return schema
    moved: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "$ref" and isinstance(value, str) and (value == "#" or value.startswith("#/")):
            moved[key] = root + value[1:]
        elif key in _OF_NAMES and isinstance(value, dict):
            moved[key] = {name: _moved(one, root) for name, one in value.items()}
        else:
            moved[key] = value if key in _OF_VALUES else _moved(value, root)
    return moved
