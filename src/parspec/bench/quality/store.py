"""Answers in a file: one JSON object a line, written as they come, found again by a later run."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from parspec.errors import InvalidRequestError

Record = dict[str, Any]
Key = tuple[str, int, str, int]


class Store:
    """The answers of a file.

    The first line says what the answers depend on beside their variants (the pair, formats, length); a later run must
    have the same. A last line cut off by a crash is dropped.

    Args:
        file: Where they are kept; None to keep them in memory only.
        about: What the answers depend on.

    Attributes:
        records: Those there are, by task, item, variant and seed.

    Raises:
        InvalidRequestError: The file is of another kind, or its answers depend on something else.
    """

    def __init__(self, file: Path | None, about: Mapping[str, Any]) -> None:
        self.records: dict[Key, Record] = {}
        self._stream: IO[str] | None = None
        if file is None:
            return
        about = {"kind": "about", **about}
        size = 0
        if file.exists():
            found, records, size = read(file)
            different = next((name for name in about if found and found.get(name) != about[name]), None)
            if different is not None:
                raise InvalidRequestError(
                    f"{file} has answers with {different} {found.get(different)!r}, not {about[different]!r}: "
                    "use another file"
                )
            self.records = records
        self._stream = file.open("a", encoding="utf-8")
        self._stream.truncate(size)
        if not size:
            self._write(about)

    def __contains__(self, key: Key) -> bool:
        return key in self.records

    def add(self, record: Record) -> None:
        """Keep an answer, and write it at once."""
        self.records[key_of(record)] = record
        if self._stream is not None:
            self._write({"kind": "answer", **record})

    def close(self) -> None:
        """Close the file."""
        if self._stream is not None:
            self._stream.close()

    def _write(self, line: Mapping[str, Any]) -> None:
        assert self._stream is not None
        self._stream.write(json.dumps(line) + "\n")
        self._stream.flush()


def key_of(record: Record) -> Key:
    """What a record is found by."""
    return record["task"], record["item"], record["variant"], record["seed"]


def read(file: Path) -> tuple[Record, dict[Key, Record], int]:
    """What a file's answers depend on, the answers, and the bytes of its whole lines.

    Raises:
        InvalidRequestError: It is no such file.
    """
    data = file.read_bytes()
    size = data.rfind(b"\n") + 1
    about: Record = {}
    records: dict[Key, Record] = {}
    try:
        for line in data[:size].splitlines():
            record = json.loads(line)
            if record.pop("kind") == "about":
                about = record | {"kind": "about"}
            else:
                records[key_of(record)] = record
        if size and not about:
            raise ValueError("no first line")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidRequestError(f"{file} holds no answers of parspec bench quality: use another file") from error
    return about, records, size
