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


BACKENDS: tuple[Entry, ...] = (
    Entry("native", "cpu"),
    Entry("torch", "cpu"),
)


def names() -> tuple[str, ...]:
    """Return the names of all backends, in their order."""
    return tuple(entry.name for entry in BACKENDS)


def devices() -> tuple[str, ...]:
    """Return the devices that any backend computes on, each once."""
    return tuple(dict.fromkeys(entry.device for entry in BACKENDS))
