"""Finds what a server still holds when nothing runs any more."""

from __future__ import annotations

import asyncio
from typing import Any

from benchmarks.served.client import Served, metric

MUST_BE_ZERO = ("active_requests", "tickets", "admitted", "waiting_bytes")
# A killed prompt worker is reaped when the next one starts. The jobs and the shapes of keys that
# have cost a worker get one each, which start when they are needed first: two tasks, with two
# descriptors each. The two threads that copy adapters start then too.
SLACK = {"tasks": 2, "threads": 4, "descriptors": 6, "children": 2, "ended_children": 2}


def holdings(served: Served) -> dict[str, Any]:
    """Return what the server holds, by its own count and by the system's."""
    return {**served.held(), **served.outside()}


async def settle(served: Served) -> str | None:
    """Wait until nothing runs; return what is still running after five minutes."""
    for _ in range(3000):
        held = served.held()
        running = await metric(served, "num_requests") + await metric(served, "kv_cache_usage_perc")
        if not (held["tickets"] or held["active_requests"] or running):
            return None
        await asyncio.sleep(0.1)
    return f"requests do not end: {held}, {running} sequences and blocks"


async def holdings_in_the_end(served: Served, before: dict[str, Any]) -> dict[str, Any]:
    """Return what the server holds once nothing has grown, or after five minutes.

    A prompt worker that was killed last, with much memory to give back, may live on for a moment.
    """
    for _ in range(3000):
        after = holdings(served)
        if not leaks(before, after):
            break
        await asyncio.sleep(0.1)
    return after


def leaks(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return what has grown between two times at which nothing ran."""
    found = [f"{after[name]} {name} are left" for name in MUST_BE_ZERO if after[name]]
    for name, slack in SLACK.items():
        if after[name] > before[name] + slack:
            found.append(f"{name}: {before[name]} before, {after[name]} after")
    return found
