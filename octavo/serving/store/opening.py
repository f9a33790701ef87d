"""Opens the store of responses, in memory or in a file."""

from __future__ import annotations

from collections.abc import Callable

from octavo.options.server import ServerSettings
from octavo.serving.bounds.shares import ALONE, Shares
from octavo.serving.store.responses import Entry, Limits, MemoryShelf, ResponseStore, Shelf
from octavo.serving.store.sqlite_shelf import SqliteShelf


def open_store(
    config: ServerSettings,
    clock: Callable[[], float],
    wall_time: Callable[[], float],
    shares: Shares = ALONE,
) -> ResponseStore:
    """Return the store that the settings ask for; raise ServerStartError for an unusable file.

    The age of responses in a file is known by the system's time alone, which is asked once.
    """
    limits = Limits(config.responses_seconds, config.responses_bytes)
    shelf: Shelf = MemoryShelf()
    found: list[Entry] = []
    if config.responses_store is not None:
        shelf, aged = SqliteShelf.open(config.responses_store, wall_time())
        for entry, age in aged:
            entry.expires_at = clock() + limits.seconds - age
            found.append(entry)
    return ResponseStore(limits, shelf, clock, found, shares)
