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
_CALL = re.compile(rf"{_OPENING}(.*?)(?:</tool_call>|\Z)", re.DOTALL)


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
        calls = [
            {
                "type": "object",
                "properties": {
                    "name": {"const": function["name"]},
                    "arguments": function.get("parameters") or {"type": "object"},
                },
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for function in self.functions
        ]
        items = calls[0] if len(calls) == 1 else {"anyOf": calls}
        most = {} if self.parallel and not self.named else {"maxItems": 1}
        return {"type": "array", "items": items, "minItems": 1, **most}

    def split(self, text: str) -> tuple[str, list[dict[str, Any]]]:
        """What of an answer is text for the reader, and the calls in it.

        An answer that ends before its calls are complete, or whose calls are none of the functions, is all text.
        """
        try:
            if self.forced:
                content, written = "", json.loads(text)
            else:
                content, written = _CALL.sub("", text), [json.loads(found) for found in _CALL.findall(text)]
            calls = [self._call(one) for one in written]
        except (ValueError, TypeError, KeyError):
            return text, []
        return (content if calls else text), calls

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
        return {
            "id": f"call_{secrets.token_hex(12)}",
            "type": "function",
            "function": {"name": written["name"], "arguments": json.dumps(arguments, ensure_ascii=False)},
        }
