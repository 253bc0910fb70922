"""From what a user calls a model to a folder that can be loaded."""

import hashlib
import json
import logging
from pathlib import Path

import platformdirs
from filelock import FileLock
from huggingface_hub import snapshot_download
from rich.console import Console

from parspec.errors import ModelError
from parspec.models.catalog import ARTIFACTS, PAIRS, Artifact
from parspec.models.convert import COMPLETE, convert
from parspec.models.download import fetch

_WANTED_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]


def default_cache_dir() -> Path:
    """Where models are kept unless the user says otherwise."""
    return Path(platformdirs.user_cache_dir("parspec"))


def resolve_pair(target: str, draft: str | None) -> tuple[str, str | None]:
    """Expand an alias that names a pair; a draft given explicitly wins.

    Args:
        target: What the user called the target.
        draft: What the user called the draft, or None.

    Returns:
        Names of target and draft.
    """
    if target in PAIRS:
        pair_target, pair_draft = PAIRS[target]
        return pair_target, draft or pair_draft
    return target, draft


def locate(name: str, *, cache_dir: Path | None = None, progress: bool = True) -> Path:
    """Find or fetch a model.

    Args:
        name: A catalogued name, a local folder, a GGUF file, or a hub id ``owner/name``.
        cache_dir: Where fetched and converted models are kept.
        progress: Whether to report long steps on standard error.

    Returns:
        A folder with config.json and safetensors weights.

    Raises:
        ModelError: Nothing of that name can be found, or it is incomplete.
        DownloadError: It could not be fetched.
    """
    cache = cache_dir or default_cache_dir()
    if name in ARTIFACTS:
        return _catalogued(ARTIFACTS[name], cache, progress)
    if not name:
        raise ModelError("no name was given for the model: give a local folder, a .gguf file or a hub id")
    path = Path(name).expanduser()
    if path.is_dir():
        return _checked_folder(path)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ModelError(f"{path} does not exist: check the path")
        return _converted(path.resolve(), cache, progress)
    if name in PAIRS:
        raise ModelError(f'"{name}" names a pair: use {" or ".join(PAIRS[name])}')
    if name.count("/") == 1 and not name.startswith((".", "~", "/")):
        return _from_hub(name)
    known = ", ".join([*PAIRS, *ARTIFACTS])
    raise ModelError(
        f'model "{name}" is unknown: give a local folder, a .gguf file, a hub id like owner/name, or one of {known}'
    )


def _catalogued(artifact: Artifact, cache: Path, progress: bool) -> Path:
    folder = cache / "models" / artifact.name
    if _is_complete(folder, artifact.sha256):
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(cache / f"{artifact.name}.lock"):
        if not _is_complete(folder, artifact.sha256):  # another process may have finished it meanwhile
            gguf = fetch(artifact, cache / "downloads", progress=progress)
            _say(f"converting {artifact.file} (once, about a minute)", progress)
            convert(gguf, folder, source=artifact.sha256)
            gguf.unlink()
    return folder


def _converted(gguf: Path, cache: Path, progress: bool) -> Path:
    """Convert a user's own file; kept as long as path, size and time of change stay the same."""
    stat = gguf.stat()
    source = hashlib.sha256(f"{gguf}\n{stat.st_size}\n{stat.st_mtime_ns}".encode()).hexdigest()
    folder = cache / "models" / f"{gguf.stem}-{source[:12]}"
    if _is_complete(folder, source):
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(cache / f"{folder.name}.lock"):
        if not _is_complete(folder, source):
            _say(f"converting {gguf.name} (once, about a minute)", progress)
            convert(gguf, folder, source=source)
    return folder


def _is_complete(folder: Path, source: str) -> bool:
    try:
        manifest = json.loads((folder / COMPLETE).read_text())
    except (OSError, ValueError):
        return False
    return bool(manifest.get("source") == source)


def _checked_folder(folder: Path) -> Path:
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} has no config.json: give a model folder in the layout of transformers")
    if not any(folder.glob("*.safetensors")):
        raise ModelError(f"{folder} has no .safetensors weights: save the model with safetensors first")
    return folder


def _from_hub(repo: str) -> Path:
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        return _checked_folder(Path(snapshot_download(repo, allow_patterns=_WANTED_FILES, etag_timeout=5)))
    except ModelError:
        raise
    except Exception as error:  # the hub's client lets its HTTP library's own errors through
        raise ModelError(
            f'model "{repo}" is neither a local folder nor to be had from the hub ({type(error).__name__}): '
            "check the name and the connection"
        ) from error
    finally:
        logger.setLevel(level)


def _say(text: str, wanted: bool) -> None:
    if wanted:
        Console(stderr=True).print(text, highlight=False)
