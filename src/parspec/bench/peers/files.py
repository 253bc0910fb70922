"""The official GGUF files of the models known by name, for the peers that read GGUF."""

from pathlib import Path

from parspec.errors import ModelError


def gguf_files(alias: str, cache_dir: Path, *, progress: bool = True) -> tuple[Path, ...]:
    """Make the GGUF files of a known alias available.

    ``parspec pull`` keeps only what it has converted; here the files themselves are kept, in ``cache_dir/gguf``.

    Args:
        alias: A name that ``parspec pull`` knows, of a pair or of a single model.
        cache_dir: The cache folder.
        progress: Whether to show what is happening on standard error.

    Returns:
        The files, of a pair target first.

    Raises:
        ModelError: The alias is unknown.
        DownloadError: A file could not be fetched.
    """
    # Here and not above, so that a peer's process need not have what downloading needs.
    from filelock import FileLock

    from parspec.models.catalog import ARTIFACTS, PAIRS
    from parspec.models.download import fetch

    names = PAIRS.get(alias, (alias,))
    if unknown := [name for name in names if name not in ARTIFACTS]:
        known = ", ".join([*PAIRS, *ARTIFACTS])
        raise ModelError(f'no GGUF file is known for "{unknown[0]}": give one of {known}')
    folder = cache_dir / "gguf"
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name in names:
        with FileLock(folder / f".{name}.lock"):
            files.append(fetch(ARTIFACTS[name], folder, progress=progress))
    return tuple(files)
