"""A reader of safetensors files that checks every value before it is used."""

from pathlib import Path

from octavo.loader import tensor_type
from octavo.loader.checkpoint import Checkpoint, TensorInfo, check_layout
from octavo.loader.errors import CorruptFileError, UnsupportedFormatError, quote
from octavo.loader.mapped_file import MappedFile
from octavo.loader.metadata import Metadata
from octavo.loader.strict_json import parse_object

# Enough for a quarter of a million tensors; the parsed form takes many times as much.
MAX_HEADER_BYTES = 32 << 20

_LENGTH_BYTES = 8
_METADATA_KEY = "__metadata__"

TYPES = {
    kind.name: kind
    for kind in (
        tensor_type.F64,
        tensor_type.F32,
        tensor_type.F16,
        tensor_type.BF16,
        tensor_type.F8_E4M3,
        tensor_type.F8_E5M2,
        tensor_type.F8_E8M0,
        tensor_type.F8_E4M3FNUZ,
        tensor_type.F8_E5M2FNUZ,
        tensor_type.I64,
        tensor_type.I32,
        tensor_type.I16,
        tensor_type.I8,
        tensor_type.U64,
        tensor_type.U32,
        tensor_type.U16,
        tensor_type.U8,
        tensor_type.BOOL,
    )
}


def open_safetensors(path: Path) -> Checkpoint:
    """Open one file and check its structure."""
    return read_safetensors(MappedFile(path))


def read_safetensors(file: MappedFile, most_header_bytes: int = MAX_HEADER_BYTES) -> Checkpoint:
    """Check the structure of a mapped file."""
    path = file.path
    header, data_start = _read_header(file, most_header_bytes)
    metadata = header.pop(_METADATA_KEY, {})
    if not isinstance(metadata, dict) or not all(
        isinstance(text, str) for text in metadata.values()
    ):
        raise CorruptFileError(f"{_METADATA_KEY} must map strings to strings", path=path)
    tensors = {name: _read_entry(file, data_start, name, entry) for name, entry in header.items()}
    check_layout(tensors.values(), data_start=data_start, gaps_allowed=False)
    end = max((info.end for info in tensors.values()), default=data_start)
    if end != file.num_bytes:
        raise CorruptFileError(
            f"its tensors end at byte {end:,} but the file has {file.num_bytes:,}",
            path=path,
            advice="the file is damaged: download it again",
        )
    return Checkpoint(path, tensors, Metadata.of_strings(path, metadata))


def _read_header(file: MappedFile, most_bytes: int) -> tuple[dict[str, object], int]:
    length = int.from_bytes(file.buffer[:_LENGTH_BYTES], "little")
    if file.buffer[_LENGTH_BYTES : _LENGTH_BYTES + 1] != b"{":
        raise UnsupportedFormatError(
            f"not a safetensors file but {file.describe_start()}", path=file.path
        )
    if length > most_bytes:
        raise CorruptFileError(
            f"the header claims {length:,} bytes, at most {most_bytes:,} are read",
            path=file.path,
        )
    data_start = _LENGTH_BYTES + length
    if data_start > file.num_bytes:
        raise CorruptFileError(
            f"the header ends at byte {data_start:,} but the file has {file.num_bytes:,} bytes",
            path=file.path,
            advice="the file is truncated: download it again",
        )
    return parse_object(file.buffer[_LENGTH_BYTES:data_start], file.path, "the header"), data_start


def _read_entry(file: MappedFile, data_start: int, name: str, entry: object) -> TensorInfo:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise CorruptFileError(
            "its entry must have dtype, shape and data_offsets and nothing else",
            path=file.path,
            tensor=name,
        )
    kind = TYPES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if kind is None:
        raise UnsupportedFormatError(
            f"is of the unknown type {quote(str(entry['dtype']))}",
            path=file.path,
            tensor=name,
            advice=f"known types: {', '.join(TYPES)}",
        )
    shape, offsets = _integers(entry["shape"]), _integers(entry["data_offsets"])
    if shape is None or offsets is None or len(offsets) != 2:
        raise CorruptFileError(
            "its shape must be a list of sizes and its data_offsets a list of two",
            path=file.path,
            tensor=name,
        )
    try:
        num_bytes = kind.num_bytes(shape)
    except ValueError as error:
        raise CorruptFileError(str(error), path=file.path, tensor=name) from None
    begin, end = offsets
    if end - begin != num_bytes:
        raise CorruptFileError(
            f"{kind.name} of shape {list(shape)} takes {num_bytes:,} bytes, but its data_offsets"
            f" {list(offsets)} span {end - begin:,}",
            path=file.path,
            tensor=name,
        )
    return TensorInfo(name, shape, kind, file, data_start + begin, num_bytes)


def _integers(value: object) -> tuple[int, ...] | None:
    """Return a JSON list of counts; None for anything else (true and 1.0 are not counts)."""
    if not isinstance(value, list) or not all(type(item) is int and item >= 0 for item in value):
        return None
    return tuple(value)
