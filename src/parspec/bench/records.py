"""What the benchmark's own process is told, and what it answers: JSON in, one JSON object per line out."""

import json
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Setting:
    """A way to decode.

    Attributes:
        method: "autoregressive", "speculative", "smc" or "auto".
        num_particles: Particles, or draft chains.
        num_draft_tokens: Tokens drafted a cycle; 0 without a draft.
        cut_threshold: kappa of smc.
    """

    method: str
    num_particles: int = 1
    num_draft_tokens: int = 0
    cut_threshold: float = 0.0

    @property
    def label(self) -> str:
        """How a table names it."""
        if self.method == "smc":
            cut = f" kappa={self.cut_threshold:g}" if self.cut_threshold else ""
            return f"smc N={self.num_particles} K={self.num_draft_tokens}{cut}"
        if self.method == "speculative":
            chains = f", {self.num_particles} chains" if self.num_particles > 1 else ""
            return f"speculative K={self.num_draft_tokens}{chains}"
        return self.method

    def sampling(self) -> dict[str, Any]:
        """The same as keywords of `SamplingParams`."""
        if self.method in ("autoregressive", "auto"):
            return {"method": self.method}
        return asdict(self)


@dataclass(frozen=True)
class OwnSpec:
    """What parspec's own process is to measure.

    Attributes:
        target: Name or folder of the large model, or a shape.
        draft: Of the small one.
        shape: Whether the two are shapes, to be filled with random weights.
        quantization: Of the target.
        draft_quantization: Of the draft.
        prompts: Pairs of task and text; random tokens are used with shapes.
        settings: What to decode the prompts with.
        max_tokens: Length of every answer.
        temperature: Of the sampling.
        repeats: How often everything is run.
        requests: Numbers of requests at once to measure throughput at; empty for none.
        long_prompt: Whether to compare cycles behind a long and a short prompt.
        structured: Whether to compare answers under a JSON schema with free ones.
        cache_dir: Where models are kept; None for the user's cache folder.
    """

    target: str
    draft: str
    shape: bool
    quantization: str | None
    draft_quantization: str | None
    prompts: tuple[tuple[str, str], ...]
    settings: tuple[Setting, ...]
    max_tokens: int
    temperature: float
    repeats: int
    requests: tuple[int, ...]
    long_prompt: bool
    structured: bool
    cache_dir: str | None

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "OwnSpec":
        """The inverse of `to_json`."""
        fields = json.loads(text)
        fields["settings"] = tuple(Setting(**entry) for entry in fields["settings"])
        fields["prompts"] = tuple(tuple(entry) for entry in fields["prompts"])
        fields["requests"] = tuple(fields["requests"])
        return cls(**fields)


Record = dict[str, Any]
"""A line: its ``kind`` (load, step, generation, throughput, cycle, structured, cache) and what that kind measures."""
