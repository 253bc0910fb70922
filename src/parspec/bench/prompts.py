"""Prompts of the speed benchmark: from a file in Spec-Bench's format, or a few of our own."""

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from parspec.errors import InvalidRequestError

TASKS = ("coding", "writing")
"""What the target ratios are about: text that is easy to draft, and text that is not."""

STRUCTURED_PROMPT = (
    "Invent six people for a test database. Answer with a JSON array of objects with the keys name, age, city, "
    "email and skills (a list of three words)."
)
"""An answer with a form: measured with and without a schema that demands it."""
_PERSON = {
    "name": {"type": "string", "maxLength": 40},
    "age": {"type": "integer", "minimum": 0, "maximum": 120},
    "city": {"type": "string", "maxLength": 40},
    "email": {"type": "string", "maxLength": 60},
    "skills": {"type": "array", "items": {"type": "string", "maxLength": 30}, "minItems": 3, "maxItems": 3},
}
STRUCTURED_SCHEMA = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": _PERSON,
        "required": list(_PERSON),
        "additionalProperties": False,
    },
    "minItems": 6,
    "maxItems": 6,
}

_OWN = {
    "coding": [
        "Write a Python function that merges overlapping intervals, with a docstring and three tests.",
        "Implement a least-recently-used cache in Python without using functools, and explain its complexity.",
        "Write a function that parses an ISO 8601 duration such as P3DT4H into seconds. Handle errors.",
    ],
    "writing": [
        "Write a short story about a lighthouse keeper who finds a letter addressed to somebody else.",
        "Describe a rainy evening in a small harbour town, in the style of a travel diary.",
        "Write an encouraging letter to a friend who has just moved to a new country.",
    ],
}


@dataclass(frozen=True)
class Prompt:
    """A prompt and the kind of task it is."""

    task: str
    text: str


def load_prompts(file: Path | None, tasks: tuple[str, ...], limit: int) -> list[Prompt]:
    """The first ``limit`` prompts of each task.

    Args:
        file: JSON lines with ``category`` and ``turns``, of which the first turn is taken; None for our own prompts.
        tasks: Categories.
        limit: Most prompts of a category.

    Raises:
        InvalidRequestError: The file is not of this format, or has no prompt of a category.
    """
    found: dict[str, list[str]] = defaultdict(list)
    if file is None:
        found.update(_OWN)
    else:
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            if not line.strip():
                continue
            try:
                entry = json.loads(line)
                found[entry["category"]].append(str(entry["turns"][0]))
            except (ValueError, KeyError, TypeError, IndexError) as error:
                raise InvalidRequestError(
                    f'{file}, line {number}: not a JSON object with "category" and "turns": {error}'
                ) from error
    missing = [task for task in tasks if not found.get(task)]
    if missing:
        raise InvalidRequestError(f'no prompts of the task "{missing[0]}": there are {", ".join(sorted(found))}')
    return [Prompt(task, text) for task in tasks for text in found[task][:limit]]
