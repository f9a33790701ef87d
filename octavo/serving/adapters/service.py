"""The adapters of a running server: loaded at its start, watched, and released at its end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from octavo.observe.exposition import Labels
from octavo.options.transport import ServerStartError
from octavo.serving.adapters.directory import WatchedDirectory
from octavo.serving.bounds.periodic import periodically
from octavo.transport.errors import ApiError

if TYPE_CHECKING:
    from octavo.serving.server import Server


_MOST_SHOWN = 1000  # names in a label


class AdapterService:
    """The keeper of the adapters that the settings name, while the server runs."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Load what the settings name; raise ServerStartError for an adapter that does not fit."""
        config, registry = self._server.config, self._server.adapters
        for named in config.lora_modules:
            try:
                await registry.add(named, "operator")
            except ApiError as error:
                raise ServerStartError(f"the adapter {named.name!r}: {error.message}") from None
        if config.lora_directory is None:
            return
        watched = WatchedDirectory(config.lora_directory, registry, config.max_lora_names)
        try:
            await watched.look(is_first=True)
        except OSError as error:
            raise ServerStartError(
                f"lora_directory={str(config.lora_directory)!r} cannot be read: "
                f"{error.strerror or error}"
            ) from None
        work = periodically(config.lora_directory_seconds, watched.look, "looking for adapters")
        self._task = asyncio.get_running_loop().create_task(work)

    def close(self) -> None:
        """End what is done beside requests."""
        if self._task is not None:
            self._task.cancel()
        if self._server.resolver is not None:
            self._server.resolver.close()
        self._server.adapters.close()


def lora_requests(server: Server) -> Iterator[tuple[Labels, float]]:
    """Yield vLLM's metric of the adapters that requests have, with the time as its value."""
    if not server.adapters.is_on:
        return
    running: dict[str, None] = {}
    waiting: dict[str, None] = {}
    for active in server.active.values():
        record = active.record
        if record.adapter is not None:
            (waiting if record.entered_at is None else running)[record.adapter] = None
    labels = (
        ("max_lora", str(server.llm.model.max_loras)),
        ("running_lora_adapters", ",".join(islice(running, _MOST_SHOWN))),
        ("waiting_lora_adapters", ",".join(islice(waiting, _MOST_SHOWN))),
    )
    yield labels, server.wall_time()
