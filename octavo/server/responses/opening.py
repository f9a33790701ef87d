"""Opens the store of responses, in memory or in a file."""

from __future__ import annotations

from collections.abc import Callable

from octavo.server.responses.store import Limits, MemoryShelf, ResponseStore
from octavo.server.settings import ServerSettings


def open_store(config: ServerSettings, clock: Callable[[], float]) -> ResponseStore:
    """Return the store that the settings ask for."""
    limits = Limits(config.responses_seconds, config.responses_bytes)
    return ResponseStore(limits, MemoryShelf(), clock, None)
