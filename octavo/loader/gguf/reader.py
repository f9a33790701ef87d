"""A reader of GGUF files that checks every value before it is used."""

import re
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from octavo.loader.checkpoint import Checkpoint, TensorInfo, check_layout
from octavo.loader.errors import CorruptFileError, UnsupportedFormatError, quote
from octavo.loader.gguf.cursor import DAMAGED, Cursor
from octavo.loader.gguf.types import (
    ARRAY_CODE,
    REMOVED_TENSOR_TYPES,
    SCALAR_FORMATS,
    STRING_CODE,
    TENSOR_TYPES,
)
from octavo.loader.mapped_file import MappedFile
from octavo.loader.metadata import Metadata, RawValue
from octavo.loader.tensor_type import TensorType

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_DIMENSIONS = 4
DEFAULT_ALIGNMENT = 32

# The smallest entries, which bound the counts in the header by the size of the file.
_LEAST_PAIR_BYTES = 8 + 1 + 4 + 1
_LEAST_TENSOR_BYTES = 8 + 1 + 4 + 4 + 8

_PART_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


def open_gguf(path: Path) -> Checkpoint:
    """Open a GGUF file; if it is one part of a split model, open all parts."""
    first = _open_one(path)
    num_parts = first.metadata.integer("split.count", 1)
    if num_parts <= 1:
        return first
    paths = part_paths(path)
    if len(paths) != num_parts:
        raise UnsupportedFormatError(
            f"is one of {num_parts:,} parts of a split model, so its name must end in"
            f" -00001-of-{num_parts:05}.gguf or the like for the others to be found",
            path=path,
            advice="give the parts their original names",
        )
    parts = [first if part == path else _open_one(part) for part in paths]
    tensors: dict[str, TensorInfo] = {}
    for index, part in enumerate(parts):
        number = part.metadata.integer("split.no")
        if number != index:
            raise CorruptFileError(
                f"is named as part {index + 1:,} but says it is part {number + 1:,}",
                path=part.path,
                advice="give the parts their original names",
            )
        for name, info in part.tensors.items():
            if name in tensors:
                raise CorruptFileError(
                    f"is also in {tensors[name].path.name}", path=part.path, tensor=name
                )
            tensors[name] = info
    num_expected = parts[0].metadata.integer("split.tensors.count", len(tensors))
    if num_expected != len(tensors):
        raise CorruptFileError(
            f"the parts hold {len(tensors):,} tensors together, must be {num_expected:,}",
            path=paths[0],
        )
    return Checkpoint(paths[0], tensors, parts[0].metadata)


def part_paths(path: Path) -> list[Path]:
    """Return all parts of the split model that `path` belongs to by its name, or `path` alone."""
    match = _PART_NAME.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    names = (f"{match['stem']}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1))
    return [path.with_name(name) for name in names]


def metadata_bytes(path: Path) -> dict[str, bytes]:
    """Return each pair of a file's metadata as its bytes, by its key, in the file's order."""
    cursor = _past_version(MappedFile(path))
    cursor.u64("the number of tensors")
    pairs: dict[str, bytes] = {}
    for _ in range(cursor.u64("the number of metadata keys")):
        start = cursor.position
        key = cursor.name("a metadata key")
        _skip_value(cursor, f"metadata {quote(key)}")
        pairs[key] = bytes(cursor.file.buffer[start : cursor.position])
    return pairs


def _open_one(path: Path) -> Checkpoint:
    return read_gguf(MappedFile(path))


def read_gguf(file: MappedFile) -> Checkpoint:
    """Read what a mapped file contains, which is no part of a split model."""
    cursor = _past_version(file)
    num_tensors = cursor.u64("the number of tensors")
    num_pairs = cursor.u64("the number of metadata keys")
    metadata = _read_metadata(cursor, num_pairs)
    alignment = _alignment(metadata)
    tensors = _read_directory(cursor, num_tensors, alignment)
    return Checkpoint(file.path, tensors, metadata)


def _past_version(file: MappedFile) -> Cursor:
    if file.buffer[:4] != MAGIC:
        raise UnsupportedFormatError(f"not a GGUF file but {file.describe_start()}", path=file.path)
    cursor = Cursor(file, len(MAGIC))
    version = cursor.u32("the version")
    if version in VERSIONS:
        return cursor
    if version >> 16 and version & 0xFFFF == 0:
        raise UnsupportedFormatError(
            "a big-endian GGUF file",
            path=file.path,
            advice="get the little-endian file of the same model",
        )
    raise UnsupportedFormatError(
        f"GGUF version {version:,}, and only versions 2 and 3 are read",
        path=file.path,
        advice="convert the original model again with a current converter",
    )


def _read_metadata(cursor: Cursor, num_pairs: int) -> Metadata:
    """Check the bounds of all pairs; their values are decoded on access."""
    cursor.require_room(num_pairs, _LEAST_PAIR_BYTES, "the metadata")
    decoders: dict[str, Callable[[], RawValue]] = {}
    for _ in range(num_pairs):
        key = cursor.name("a metadata key")
        if key in decoders:
            raise cursor.corrupt(f"metadata key {quote(key)} occurs twice")
        what = f"metadata {quote(key)}"
        decoders[key] = _skip_value(cursor, what)
    return Metadata(cursor.file.path, decoders)


class _Strings(Struct, frozen=True):
    """A stored list of strings, decoded when it is called."""

    file: MappedFile
    start: int
    num_strings: int
    end: int
    what: str

    def __call__(self) -> list[str] | list[bytes]:
        return Cursor(self.file, self.start).strings(self.num_strings, self.end, self.what)

    def pairs(self) -> list[tuple[str, str]] | None:
        """Return the two words of each string; None if one has not exactly two."""
        return Cursor(self.file, self.start).pairs(self.num_strings, self.end)

    def stored(self) -> tuple[bytes, int]:
        """Return the strings as they are stored, each behind its length, and their number."""
        return self.file.buffer[self.start : self.end], self.num_strings


def _skip_value(cursor: Cursor, what: str) -> Callable[[], RawValue]:
    code, count = cursor.u32(f"the type of {what}"), None
    if code == ARRAY_CODE:
        code = cursor.u32(f"the element type of {what}")
        count = cursor.u64(f"the length of {what}")
        if code == ARRAY_CODE:
            raise UnsupportedFormatError(f"{what} is an array of arrays", path=cursor.file.path)
    file, start = cursor.file, cursor.position
    if code == STRING_CODE:
        if count is None:
            cursor.skip_string(what)
            return lambda: Cursor(file, start).string(what)
        cursor.skip_strings(count, what)
        return _Strings(file, start, count, cursor.position, what)
    if code not in SCALAR_FORMATS:
        raise cursor.corrupt(f"{what} has the unknown type {code:,}")
    cursor.skip_scalars(code, 1 if count is None else count, what)
    if count is None:
        return lambda: Cursor(file, start).scalars(code, 1, what)[0]
    return lambda: Cursor(file, start).scalars(code, count, what)


def _alignment(metadata: Metadata) -> int:
    alignment = metadata.integer("general.alignment", DEFAULT_ALIGNMENT)
    if alignment <= 0 or alignment & (alignment - 1):
        raise CorruptFileError(
            f"general.alignment is {alignment:,}, must be a power of two",
            path=metadata.path,
            advice=DAMAGED,
        )
    return alignment


def _read_directory(cursor: Cursor, num_tensors: int, alignment: int) -> dict[str, TensorInfo]:
    cursor.require_room(num_tensors, _LEAST_TENSOR_BYTES, "the directory of tensors")
    entries = [_read_entry(cursor) for _ in range(num_tensors)]
    data_start = -(-cursor.position // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    for name, shape, kind, offset in entries:
        try:
            num_bytes = kind.num_bytes(shape)
        except ValueError as error:
            raise CorruptFileError(
                str(error), path=cursor.file.path, tensor=name, advice=DAMAGED
            ) from None
        if offset % alignment:
            raise CorruptFileError(
                f"its offset {offset:,} is not a multiple of the alignment {alignment:,}",
                path=cursor.file.path,
                tensor=name,
                advice=DAMAGED,
            )
        if name in tensors:
            raise CorruptFileError("occurs twice", path=cursor.file.path, tensor=name)
        tensors[name] = TensorInfo(name, shape, kind, cursor.file, data_start + offset, num_bytes)
    check_layout(tensors.values(), data_start=data_start, gaps_allowed=True)
    return tensors


def _read_entry(cursor: Cursor) -> tuple[str, tuple[int, ...], TensorType, int]:
    name = cursor.name("a tensor's name")
    num_dimensions = cursor.u32(f"the number of dimensions of tensor {quote(name)}")
    if num_dimensions > MAX_DIMENSIONS:
        raise CorruptFileError(
            f"has {num_dimensions:,} dimensions, at most {MAX_DIMENSIONS} are possible",
            path=cursor.file.path,
            tensor=name,
            advice=DAMAGED,
        )
    # The file gives the fastest-varying dimension first.
    shape = cursor.u64s(num_dimensions, f"the shape of tensor {quote(name)}")[::-1]
    code = cursor.u32(f"the type of tensor {quote(name)}")
    offset = cursor.u64(f"the offset of tensor {quote(name)}")
    kind = TENSOR_TYPES.get(code)
    if kind is None:
        removed = REMOVED_TENSOR_TYPES.get(code)
        known = ", ".join(sorted(known.name for known in TENSOR_TYPES.values()))
        raise UnsupportedFormatError(
            f"is of the withdrawn type {removed}"
            if removed
            else f"is of the unknown type {code:,}",
            path=cursor.file.path,
            tensor=name,
            advice=f"quantise the original model again to one of the known types: {known}",
        )
    return name, shape, kind, offset
