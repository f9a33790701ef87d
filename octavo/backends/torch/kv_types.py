"""The types in which PyTorch's operations keep keys and values, by `kv_cache_dtype`."""

from __future__ import annotations

_SHORT = ("fp8", "fp8_e4m3")


def is_short_kv(name: str) -> bool:
    """Return whether keys and values have eight bits, and not the type that is computed in."""
    return name in _SHORT


def check_kv_dtype(name: str, backend: str) -> None:
    """Raise ValueError for a type that only the native engine keeps."""
    if name != "auto" and not is_short_kv(name):
        raise ValueError(
            f"kv_cache_dtype={name!r} is not possible with the {backend} backend, which keeps keys "
            "and values in dtype or in fp8: give 'fp8', which takes half the memory of bfloat16, "
            "or leave it out"
        )
