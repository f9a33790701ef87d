"""Small GGUF and safetensors files for tests, valid ones and ones with chosen faults."""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
SCALARS = {
    U8: "B",
    I8: "b",
    U16: "H",
    I16: "h",
    U32: "I",
    I32: "i",
    F32: "f",
    BOOL: "?",
    U64: "Q",
    I64: "q",
    F64: "d",
}
TYPE_F32 = 0

SAFETENSORS_NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}


@dataclass(frozen=True)
class GGUFTensor:
    """One tensor as a GGUF file describes it: `dimensions` has the fastest-varying one first."""

    name: str
    dimensions: Sequence[int]
    type_code: int
    data: bytes
    offset: int | None = None  # None: after the previous tensor, aligned


def f32_tensor(name: str, values: NDArray[np.float32]) -> GGUFTensor:
    return GGUFTensor(name, values.shape[::-1], TYPE_F32, values.tobytes())


def gguf_string(text: str | bytes) -> bytes:
    stored = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(stored)) + stored


def gguf_value(code: int, value: Any) -> bytes:
    """Encode a typed value; an array is (element code, elements)."""
    if code == ARRAY:
        element_code, elements = value
        body = b"".join(gguf_value(element_code, item)[4:] for item in elements)
        return struct.pack("<IIQ", ARRAY, element_code, len(elements)) + body
    body = gguf_string(value) if code == STRING else struct.pack("<" + SCALARS[code], value)
    return struct.pack("<I", code) + body


def gguf_bytes(
    pairs: Sequence[tuple[str, int, Any]] = (),
    tensors: Sequence[GGUFTensor] = (),
    *,
    version: int = 3,
    magic: bytes = b"GGUF",
    alignment: int = 32,
    num_pairs: int | None = None,
    num_tensors: int | None = None,
) -> bytes:
    """Encode a complete GGUF file, with wrong counts if given."""
    head = [magic, struct.pack("<I", version)]
    head.append(struct.pack("<Q", len(tensors) if num_tensors is None else num_tensors))
    head.append(struct.pack("<Q", len(pairs) if num_pairs is None else num_pairs))
    head += [gguf_string(key) + gguf_value(code, value) for key, code, value in pairs]
    data = b""
    for tensor in tensors:
        data += bytes(-len(data) % alignment)
        offset = len(data) if tensor.offset is None else tensor.offset
        head.append(gguf_string(tensor.name) + struct.pack("<I", len(tensor.dimensions)))
        head.append(struct.pack(f"<{len(tensor.dimensions)}Q", *tensor.dimensions))
        head.append(struct.pack("<IQ", tensor.type_code, offset))
        data += tensor.data
    header = b"".join(head)
    return header + bytes(-len(header) % alignment) + data


def write_gguf(path: Path, *arguments: Any, **keywords: Any) -> Path:
    path.write_bytes(gguf_bytes(*arguments, **keywords))
    return path


def safetensors_entry(array: NDArray[Any], begin: int) -> dict[str, Any]:
    return {
        "dtype": SAFETENSORS_NAMES[array.dtype.name],
        "shape": list(array.shape),
        "data_offsets": [begin, begin + array.nbytes],
    }


def safetensors_bytes(
    arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str] | None = None
) -> bytes:
    """Encode a complete safetensors file."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    data = b""
    for name, array in arrays.items():
        header[name] = safetensors_entry(array, len(data))
        data += array.tobytes()
    text = json.dumps(header).encode()
    return with_header(text + b" " * (-len(text) % 8), data)


def with_header(header: bytes | Mapping[str, Any], data: bytes = b"") -> bytes:
    """Encode a safetensors file with a given header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def write_safetensors(
    path: Path, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str] | None = None
) -> Path:
    path.write_bytes(safetensors_bytes(arrays, metadata))
    return path


def write_index(path: Path, owners: Mapping[str, str]) -> Path:
    path.write_text(json.dumps({"metadata": {"total_size": 0}, "weight_map": dict(owners)}))
    return path
