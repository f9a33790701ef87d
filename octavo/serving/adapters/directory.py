"""The watched directory: each sub-directory and file of GGUF in it is an adapter of that name.

A look at it reads names and times alone. What is new or has changed is loaded when it has stayed
the same from one look to the next, so that files are whole; what two looks do not find loses its
name, so that one may fall between the removal of files and the arrival of others. A file that does
not fit is reported once, and its name keeps the content that it had.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from octavo.adapter_copies.errors import AdapterFileError
from octavo.adapter_copies.files import Fingerprint, fingerprint
from octavo.options.named_adapters import NamedAdapter, wrong_name
from octavo.serving.adapters.registry import AdapterRegistry
from octavo.transport.errors import ApiError

log = logging.getLogger(__name__)

_ENDING = ".gguf"
Found = dict[str, tuple[Path, Fingerprint]]


class WatchedDirectory:
    """The adapters of one directory, as they were when it was last looked at."""

    def __init__(self, path: Path, registry: AdapterRegistry, most: int) -> None:
        self._path = path
        self._registry = registry
        self._most = most
        self._seen: Found = {}  # at the last look
        self._tried: Found = {}  # what was loaded, or could not be
        self._reported: set[str] = set()

    async def look(self, *, is_first: bool = False) -> None:
        """Load what is new or has changed, and take away what is gone.

        At the start of a server nothing waits for a second look.
        """
        found = await self._registry.in_thread(self._scan)
        before, self._seen = self._seen, found
        for name, (path, now) in found.items():
            is_settled = is_first or before.get(name) == (path, now)
            if is_settled and self._tried.get(name) != (path, now):
                await self._load(name, path, now)
        for name in [each for each in self._tried if each not in found and each not in before]:
            del self._tried[name]
            await self._forget(name)

    async def _load(self, name: str, path: Path, now: Fingerprint) -> None:
        there = self._registry.get(name)
        if there is not None and there.origin != "directory":
            self._report(name, "has the name of another adapter, which stays")
            return
        try:
            await self._registry.add(NamedAdapter(name, str(path)), "directory", in_place=True)
        except ApiError as error:
            if error.status >= 500:  # there is no engine, or no room: it is tried again
                self._report(name, f"is not loaded yet: {error.message}")
                return
            log.error("the adapter %r in %s cannot be used: %s", name, self._path, error.message)
        else:
            log.info("the adapter %r is loaded from %s", name, path)
        self._tried[name] = path, now

    async def _forget(self, name: str) -> None:
        there = self._registry.get(name)
        if there is not None and there.origin == "directory":
            log.info("the adapter %r is gone from %s", name, self._path)
            await self._registry.remove(name)

    def _scan(self) -> Found:
        """Return the adapters of the directory, by name; in a thread."""
        found: Found = {}
        with os.scandir(self._path) as entries:
            for entry in entries:
                path = Path(entry.path)
                if entry.name.startswith("."):
                    continue
                if not entry.is_dir() and path.suffix.lower() != _ENDING:
                    continue
                name = path.stem if path.suffix.lower() == _ENDING else entry.name
                if len(found) >= self._most:
                    self._report("", f"has more than {self._most} adapters (max_lora_names)")
                    break
                if why := wrong_name(name):
                    self._report(name, f"cannot be used: {why}")
                    continue
                try:
                    found[name] = path, fingerprint(path)
                except AdapterFileError as error:
                    self._report(name, f"is left out: {error}")
        return found

    def _report(self, name: str, what: str) -> None:
        """Log what is wrong with an entry, once as long as it is the same."""
        line = f"{name} {what}"
        if line not in self._reported:
            if len(self._reported) > self._most:
                self._reported.clear()
            self._reported.add(line)
            log.warning("%s: %r %s", self._path, name, what)
