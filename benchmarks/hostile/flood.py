"""Opens as many connections as the server takes, and asks whether it lives."""

from __future__ import annotations

import asyncio
import contextlib

from benchmarks.hostile.attack import LIVE, Attack
from benchmarks.hostile.client import carry_out

PER_CLIENT = 500  # fewer than the server allows each


async def flood(port: int, max_connections: int) -> list[str]:
    """Return the faults of a server at its limit of connections."""
    writers: list[asyncio.StreamWriter] = []
    try:
        for number in range(max_connections + 50):
            source = f"127.0.1.{1 + number // PER_CLIENT}"
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
                writers.append(writer)
        outcome = await carry_out(Attack((LIVE,)), port, "127.0.2.1")
        status = outcome.answers[0].status if outcome.answers else None
        if status != 200:
            return [f"at the limit of connections, /health/live has status {status}"]
        return []
    finally:
        for writer in writers:
            writer.transport.abort()
