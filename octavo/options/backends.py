"""The backends that there are, in the order in which they are tried: a line for each.

The rest of a backend is a folder, `octavo/backends/NAME`, which this module does not import: the
front end checks the names of backends and devices without what computes.
"""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """A backend, as users name it."""

    name: str
    device: str  # where it computes: cpu, cuda
    is_numbered: bool = False  # there may be several such devices, as cuda:1
    only_asked: bool = False  # it is not chosen unless it or its device is named


BACKENDS: tuple[Entry, ...] = (
    Entry("native", "cpu"),
    Entry("torch", "cpu"),
    Entry("cuda", "cuda", is_numbered=True, only_asked=True),
    Entry("cuda", "fake", only_asked=True),
)


def names() -> tuple[str, ...]:
    """Return the names of all backends, in their order."""
    return tuple(dict.fromkeys(entry.name for entry in BACKENDS))


def devices() -> tuple[str, ...]:
    """Return the devices that any backend computes on, each once."""
    return tuple(dict.fromkeys(entry.device for entry in BACKENDS))


def computes_on(entry: Entry, device: str) -> bool:
    """Return whether a backend computes on a device, as users name it: cuda, cuda:1."""
    name, colon, number = device.partition(":")
    if name != entry.device:
        return False
    return not colon or (entry.is_numbered and number.isascii() and number.isdigit())
