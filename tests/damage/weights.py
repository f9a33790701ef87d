"""Changes of the tensors of safetensors and GGUF files that leave the container valid."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from typing import Any

from tests.damage.mutants import Mutant
from tests.loader.make_files import (
    ARRAY,
    BOOL,
    F32,
    I32,
    STRING,
    U32,
    U64,
    GGUFTensor,
    gguf_bytes,
    with_header,
)

Header = dict[str, Any]
_DTYPES = ("F64", "F32", "F16", "BF16", "I64", "I32", "U8", "BOOL", "F8_E4M3", "F8_E8M0", "F4", 7)
_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4}
_DAMAGED_SHAPES: tuple[Any, ...] = (
    [],
    [0],
    [1],
    [-1, 4],
    [1 << 62],
    [1 << 31, 1 << 31],
    [2] * 40,
    "x",
    None,
    [1.5],
    [True],
)


def safetensors_mutants(file: str, content: bytes) -> Iterator[Mutant]:
    """Yield mutants of each tensor: removed, renamed, of another type or shape, or of no number."""
    length = int.from_bytes(content[:8], "little")
    header: Header = json.loads(content[8 : 8 + length])
    for name in [key for key in header if key != "__metadata__"]:
        words = (name,)
        yield Mutant(f"{name} removed", file, without_tensor(name), words)
        yield Mutant(f"{name} renamed", file, _renamed(name, name + "x"), words)
        yield Mutant(f"{name} named as nothing", file, _renamed(name, ""), words)
        yield Mutant(f"{name} named with a line", file, _renamed(name, "a\nb"), words)
        for dtype in _DTYPES:
            yield Mutant(f"{name} as {dtype}", file, _retyped(name, dtype), words)
        for shape in _DAMAGED_SHAPES:
            yield Mutant(f"{name} of shape {shape}", file, _with(name, "shape", shape), words)
        for offsets in ([0, 0], [8, 4], [-4, 0], [0, 1 << 62], [0], None, ["0", "4"]):
            label = f"{name} at {offsets}"
            yield Mutant(label, file, _with(name, "data_offsets", offsets), words)
        yield Mutant(f"{name} turned", file, _turned(name), words)
        for value in (float("nan"), float("inf"), 0.0, 3e38):
            yield Mutant(f"{name} of {value}", file, _filled(name, value), words)


def _edited(edit: Callable[[Header, bytes], tuple[Header, bytes]]) -> Callable[[bytes], bytes]:
    def change(content: bytes) -> bytes:
        length = int.from_bytes(content[:8], "little")
        header, data = edit(json.loads(content[8 : 8 + length]), content[8 + length :])
        return with_header(json.dumps(header).encode(), data)

    return change


def without_tensor(name: str) -> Callable[[bytes], bytes]:
    """Remove a tensor and its bytes."""

    def edit(header: Header, data: bytes) -> tuple[Header, bytes]:
        begin, end = header.pop(name)["data_offsets"]
        for key, entry in header.items():
            if key != "__metadata__" and entry["data_offsets"][0] >= end:
                entry["data_offsets"] = [at - (end - begin) for at in entry["data_offsets"]]
        return header, data[:begin] + data[end:]

    return _edited(edit)


def _renamed(name: str, other: str) -> Callable[[bytes], bytes]:
    def edit(header: Header, data: bytes) -> tuple[Header, bytes]:
        return {other if key == name else key: entry for key, entry in header.items()}, data

    return _edited(edit)


def _with(name: str, key: str, value: Any) -> Callable[[bytes], bytes]:
    def edit(header: Header, data: bytes) -> tuple[Header, bytes]:
        header[name][key] = value
        return header, data

    return _edited(edit)


def _retyped(name: str, dtype: Any) -> Callable[[bytes], bytes]:
    """Give a tensor another type and as many bytes as it then has."""

    def edit(header: Header, data: bytes) -> tuple[Header, bytes]:
        entry = header[name]
        begin, end = entry["data_offsets"]
        count = (end - begin) // _BYTES.get(entry["dtype"], 1)
        size = count * _BYTES.get(dtype, 1)
        entry["dtype"] = dtype
        for key, other in header.items():
            if key != "__metadata__" and other["data_offsets"][0] >= end:
                moved = size - (end - begin)
                other["data_offsets"] = [at + moved for at in other["data_offsets"]]
        entry["data_offsets"] = [begin, begin + size]
        return header, data[:begin] + b"\x3c" * size + data[end:]

    return _edited(edit)


def _turned(name: str) -> Callable[[bytes], bytes]:
    def edit(header: Header, data: bytes) -> tuple[Header, bytes]:
        header[name]["shape"] = [*reversed(header[name]["shape"]), 1]
        return header, data

    return _edited(edit)


def _filled(name: str, value: float) -> Callable[[bytes], bytes]:
    """Fill a tensor of float32 with one number."""

    def edit(header: Header, data: bytes) -> tuple[Header, bytes]:
        begin, end = header[name]["data_offsets"]
        return header, data[:begin] + struct.pack("<f", value) * ((end - begin) // 4) + data[end:]

    return _edited(edit)


# Metadata values of every type, and tensors, which are written anew for each mutant.
Pairs = list[tuple[str, int, Any]]
_NASTY: tuple[tuple[int, Any], ...] = (
    (U32, 0),
    (U32, 1),
    (U32, 3),
    (U32, (1 << 32) - 1),
    (U64, (1 << 64) - 1),
    (I32, -1),
    (I32, -(1 << 31)),
    (F32, float("nan")),
    (F32, float("-inf")),
    (F32, -1.0),
    (F32, 3e38),
    (F32, 1e-40),
    (BOOL, True),
    (STRING, ""),
    (STRING, "x"),
    (STRING, "a\nb\x1b[31m"),
    (STRING, b"\xff\xfe"),
    (STRING, "x" * 5000),
    (ARRAY, (U32, [])),
    (ARRAY, (I32, [1, -1])),
    (ARRAY, (F32, [float("nan")] * 3)),
    (ARRAY, (STRING, ["a", b"\xff"])),
    (ARRAY, (STRING, ["a", "a"])),
)
_CODES = (1, 2, 4, 8, 12, 16, 24, 27, 30, 39, 99)


def gguf_mutants(file: str, pairs: Pairs, tensors: list[GGUFTensor]) -> Iterator[Mutant]:
    """Yield mutants of each key and of each tensor of a GGUF file."""

    def made(
        name: str, field: str, new_pairs: Pairs, new_tensors: list[GGUFTensor], **more: Any
    ) -> Mutant:
        fields = (field,) if field else ()
        return Mutant(name, file, lambda _: gguf_bytes(new_pairs, new_tensors, **more), fields)

    for at, (key, code, value) in enumerate(pairs):
        rest = [*pairs[:at], *pairs[at + 1 :]]
        yield made(f"{key} removed", key, rest, tensors)
        yield made(f"{key} twice", key, [*pairs, (key, code, value)], tensors)
        for new_code, new in _NASTY:
            label = f"{key} = {repr(new)[:30]} ({new_code})"
            yield made(label, key, [*pairs[:at], (key, new_code, new), *pairs[at + 1 :]], tensors)
    for at, tensor in enumerate(tensors):
        before, after, name = tensors[:at], tensors[at + 1 :], tensor.name
        yield made(f"{name} removed", name, pairs, [*before, *after])
        yield made(f"{name} twice", name, pairs, [*tensors, tensor])
        changed: dict[str, GGUFTensor] = {
            "renamed": _gguf(tensor, name=name + "x"),
            "named with a line": _gguf(tensor, name="a\nb"),
            "of no bytes": _gguf(tensor, data=b""),
            "turned": _gguf(tensor, dimensions=(*reversed(tensor.dimensions), 1)),
            "of an impossible size": _gguf(tensor, dimensions=(1 << 62, 1 << 62)),
            "of size 0": _gguf(tensor, dimensions=(0, *tensor.dimensions[1:])),
            "of many dimensions": _gguf(tensor, dimensions=(1,) * 9),
            "far away": _gguf(tensor, offset=1 << 40),
            "misaligned": _gguf(tensor, offset=3),
        }
        changed |= {f"of type {code}": _gguf(tensor, type_code=code) for code in _CODES}
        for label, new_tensor in changed.items():
            yield made(f"{name} {label}", name, pairs, [*before, new_tensor, *after])
    for more in (
        {"num_pairs": 1 << 40},
        {"num_tensors": 1 << 60},
        {"version": 9},
        {"num_pairs": 1},
    ):
        yield made(str(more), "", pairs, tensors, **more)


def _gguf(tensor: GGUFTensor, **changes: Any) -> GGUFTensor:
    fields = {
        "name": tensor.name,
        "dimensions": tensor.dimensions,
        "type_code": tensor.type_code,
        "data": tensor.data,
        "offset": tensor.offset,
    }
    return GGUFTensor(**{**fields, **changes})
