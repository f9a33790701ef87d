"""Devices and types of numbers, as users and other servers name them."""

from __future__ import annotations

from octavo.core.config import ConfigError
from octavo.options import backends
from octavo.options.foreign import DEVICES

DTYPES = {"half": "float16", "float": "float32"}  # what vLLM also calls the types


def check_device(device: str, backend: str) -> None:
    """Refuse a device that no backend has, or that the one which is asked for has not."""
    if device == "auto":
        return
    there = [each.name for each in backends.BACKENDS if backends.computes_on(each, device)]
    if not there:
        raise ConfigError(f"device={device!r} is not possible: {DEVICES}; leave it out")
    if backend not in ("auto", *there):
        where = [each.device for each in backends.BACKENDS if each.name == backend]
        raise ConfigError(
            f"device={device!r} is not possible beside backend={backend!r}, which computes on "
            f"{' and '.join(where)}; leave one of them out"
        )


def read_dtype(name: str) -> str:
    """Return Octavo's name of a type; torch.bfloat16 and vLLM's names are accepted."""
    name = name.removeprefix("torch.")
    return DTYPES.get(name, name)
