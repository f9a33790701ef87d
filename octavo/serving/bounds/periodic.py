"""Work that a server does again and again, whatever has gone wrong with it before."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)


async def periodically(seconds: float, act: Callable[[], Awaitable[None]], what: str) -> None:
    """Call `act` now and after each pause of so many seconds, until this task is cancelled.

    An exception costs one time. It is logged as a failure of `what`.
    """
    while True:
        try:
            await act()
        except Exception:
            log.exception("%s failed; the next attempt is in %g s", what, seconds)
        await asyncio.sleep(seconds)
