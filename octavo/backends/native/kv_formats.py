"""The formats in which the native engine keeps keys and values."""

from __future__ import annotations

from typing import Literal, NamedTuple

from octavo.backends.base import VectorSize

KvDtype = Literal["float32", "bfloat16", "int8", "fp8_e4m3", "fp8_e5m2", "int4"]


class KvFormat(NamedTuple):
    """A format of keys and values: its name in the engine, and what a head's vector takes."""

    name: str  # of `_native.CacheFormat`
    size: VectorSize


_SCALE_BYTES = 4  # of each vector of a head
KV_FORMATS: dict[KvDtype, KvFormat] = {
    "float32": KvFormat("F32", VectorSize(32)),
    "bfloat16": KvFormat("BF16", VectorSize(16)),
    "int8": KvFormat("Int8", VectorSize(8, _SCALE_BYTES)),
    "fp8_e4m3": KvFormat("E4M3", VectorSize(8, _SCALE_BYTES)),
    "fp8_e5m2": KvFormat("E5M2", VectorSize(8, _SCALE_BYTES)),
    "int4": KvFormat("Int4", VectorSize(4, _SCALE_BYTES)),
}
# Other names of formats, as `kv_cache_dtype` has them.
_SAME: dict[str, KvDtype] = {"auto": "bfloat16", "fp8": "fp8_e4m3"}


def kv_dtype_named(name: str) -> KvDtype:
    """Return the format that a `kv_cache_dtype` names."""
    return next((dtype for dtype in KV_FORMATS if dtype == name), None) or _SAME[name]
