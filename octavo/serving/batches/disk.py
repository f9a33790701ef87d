"""Work that waits for the disk: threads that are never left behind, and errors for clients."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from typing import Any, Protocol, TypeVar

from octavo.transport.errors import unavailable

log = logging.getLogger(__name__)
T = TypeVar("T")


class Closable(Protocol):
    """An open file, or what holds one."""

    def close(self) -> None: ...


C = TypeVar("C", bound=Closable)

_FULL = (errno.ENOSPC, errno.EDQUOT)
_RETRY_AFTER_SECONDS = 60


async def in_thread(act: Callable[..., T], *values: Any, pool: Executor | None = None) -> T:
    """Run what waits for the disk in a thread.

    A caller that is cancelled goes on only when the thread has finished: it may then close the
    descriptors that the thread has used, whose numbers other files get.
    """
    work = asyncio.get_running_loop().run_in_executor(pool, act, *values)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({work})
        raise


async def open_in_thread(opens: Callable[..., C], *values: Any, pool: Executor | None = None) -> C:
    """Open something in a thread; close it again if the caller is cancelled meanwhile."""
    opened: list[C] = []
    try:
        await in_thread(lambda: opened.append(opens(*values)), pool=pool)
    except asyncio.CancelledError:
        for each in opened:
            each.close()
        raise
    return opened[0]


@contextmanager
def disk_errors() -> Iterator[None]:
    """Turn the error of a full disk into a response."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        log.error("the directory of batches is full: %s", error)
        raise unavailable(
            "the disk of the server's files is full; try again later, or ask its operator for "
            "room in --batch-dir",
            "storage_full",
            _RETRY_AFTER_SECONDS,
        ) from None
