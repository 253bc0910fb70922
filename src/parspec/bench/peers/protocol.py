"""What a peer is told and what it answers: one JSON object in, one JSON object per line out."""

import json
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class PeerPrompt:
    """One prompt.

    Attributes:
        task: What kind of prompt it is; handed through to the results.
        token_ids: The prompt in tokens, so that every engine reads exactly the same.
    """

    task: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True)
class PeerSpec:
    """What a peer is to run.

    Attributes:
        target: Folder of the large model, safetensors and tokenizer.
        draft: Folder of the small one.
        target_gguf: The large model as a GGUF file; None where there is none, and the modes that need it are absent.
        draft_gguf: The small one, likewise.
        prompts: All of them, run in this order in every repeat.
        max_tokens: New tokens of every generation: exactly so many, an end of text does not stop it.
        temperature: Of the sampling, without top-k and top-p; 0 is greedy.
        repeats: How often the prompts are run.
        threads: Of the CPU.
        dtype: ``bfloat16`` or ``float32``, for the engines that run the safetensors.
        num_draft_tokens: Tokens drafted per cycle in the modes that draft.
        modes: Which of the peer's modes to run; None for all.
        work_dir: Where converted files are kept.
    """

    target: str
    draft: str
    target_gguf: str | None
    draft_gguf: str | None
    prompts: tuple[PeerPrompt, ...]
    max_tokens: int
    temperature: float
    repeats: int
    threads: int
    dtype: str
    num_draft_tokens: int
    modes: tuple[str, ...] | None
    work_dir: str

    def to_json(self) -> str:
        """One line, as a peer's process reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "PeerSpec":
        """The inverse of ``to_json``."""
        fields = json.loads(text)
        fields["prompts"] = tuple(PeerPrompt(item["task"], tuple(item["token_ids"])) for item in fields["prompts"])
        fields["modes"] = None if fields["modes"] is None else tuple(fields["modes"])
        return cls(**fields)


@dataclass(frozen=True)
class PeerRun:
    """One measured generation.

    Attributes:
        engine: Which peer.
        mode: Which of its modes.
        version: Of the peer.
        task: Of the prompt.
        prompt: Index of the prompt.
        repeat: From 0.
        num_tokens: New tokens.
        seconds: The whole call that generates, prefill included.
    """

    engine: str
    mode: str
    version: str
    task: str
    prompt: int
    repeat: int
    num_tokens: int
    seconds: float


@dataclass(frozen=True)
class PeerAbsent:
    """A peer, or one of its modes, that could not be measured.

    Attributes:
        engine: Which peer.
        reason: Why, one line.
        mode: The mode concerned; None if it is the whole peer.
    """

    engine: str
    reason: str
    mode: str | None = None


def to_line(record: PeerRun | PeerAbsent) -> str:
    """A record as a line of JSON."""
    kind = "run" if isinstance(record, PeerRun) else "absent"
    return json.dumps({"kind": kind, **asdict(record)})


def from_line(line: str) -> PeerRun | PeerAbsent:
    """The inverse of ``to_line``.

    Raises:
        ValueError: The line is not a record.
    """
    fields: Any = json.loads(line)
    try:
        if fields.pop("kind") == "run":
            return PeerRun(**fields)
        return PeerAbsent(**fields)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"not a record: {line!r}") from error
