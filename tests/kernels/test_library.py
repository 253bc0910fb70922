"""Building the kernels: once, whole, and with a reason where it cannot be done."""

import shutil
import subprocess
from pathlib import Path

import pytest

from parspec.kernels import library

GCC = shutil.which("g++")


@pytest.mark.skipif(GCC is None, reason="no compiler")
def test_built_once_and_nothing_left_over(tmp_path: Path) -> None:
    assert GCC is not None
    built = library.build(GCC, tmp_path / "new")
    before = built.stat().st_mtime_ns
    assert library.build(GCC, tmp_path / "new") == built
    assert built.stat().st_mtime_ns == before
    assert list((tmp_path / "new").iterdir()) == [built]


def test_a_failing_compiler_leaves_nothing(tmp_path: Path) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\necho 'fatal error: immintrin.h is missing' >&2\nexit 1\n")
    compiler.chmod(0o755)
    with pytest.raises(subprocess.CalledProcessError):
        library.build(str(compiler), tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize("fault", ["no compiler", "failing compiler"])
def test_without_kernels_there_is_one_warning_that_says_why(fault: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(library.torch.cpu, "_is_avx2_supported", lambda: True)
    monkeypatch.setattr(library.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(library.sys, "platform", "linux")
    monkeypatch.setattr(library.platformdirs, "user_cache_path", lambda name: tmp_path)
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\necho 'fatal error: immintrin.h is missing' >&2\nexit 1\n")
    compiler.chmod(0o755)
    found = None if fault == "no compiler" else str(compiler)
    monkeypatch.setattr(library.shutil, "which", lambda name: found)
    expected = r"install g\+\+" if fault == "no compiler" else "immintrin.h is missing"
    with pytest.warns(UserWarning, match=expected):
        assert library.library.__wrapped__() is None


def test_another_processor_has_no_kernels(monkeypatch) -> None:
    monkeypatch.setattr(library.platform, "machine", lambda: "arm64")
    assert library.library.__wrapped__() is None
