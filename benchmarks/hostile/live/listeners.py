"""Clients of the live stream: listeners that leave, that read nothing, and far too many of them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from benchmarks.hostile.attack import (
    ATTACK_KEY,
    WATCH_KEY,
    Attack,
    Ending,
    Kinds,
    Right,
    request,
)

KINDS = Kinds()
LIVE_STREAM = "/v1/live"
NUM_LISTENERS = 60
SECONDS = 60.0  # for a head, which comes at once


def _listen(key: str = ATTACK_KEY) -> bytes:
    return request(LIVE_STREAM, method="GET", key=key)


@KINDS.add(share=1)
def listens_and_leaves(chance: random.Random) -> Attack:
    ending = chance.choice([Ending.LEAVE, Ending.RESET])
    return Attack((_listen(),), Right.LEFT, ending, seconds_before_end=chance.choice([0, 0.01, 1]))


@KINDS.add(share=0.6)
def listens_and_reads_nothing(chance: random.Random) -> Attack:
    return Attack((_listen(),), Right.LEFT, Ending.NEVER_READ)


@KINDS.add(share=0.4)
def listens_often_on_one_connection(chance: random.Random) -> Attack:
    pieces = (_listen() * chance.choice([2, 30]),)
    return Attack(pieces, Right.LEFT, Ending.LEAVE, seconds_before_end=1.0)


@KINDS.add(share=0.4)
def listens_without_a_key(chance: random.Random) -> Attack:
    return Attack((_listen(chance.choice(["", "wrong", ATTACK_KEY[:-1]])),))


@asynccontextmanager
async def _status(port: int, key: str) -> AsyncIterator[int]:
    """Yield the status of a stream that stays open within the block, and is not read."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(_listen(key))
        async with asyncio.timeout(SECONDS):
            yield int((await reader.readline()).split()[1])
    finally:
        writer.close()


async def listen_too_often(port: int) -> list[str]:
    """Return the faults of a server of which one key wants all places for listeners."""
    async with AsyncExitStack() as stack:
        found = [
            await stack.enter_async_context(_status(port, ATTACK_KEY)) for _ in range(NUM_LISTENERS)
        ]
        # 503: connections of an attack before this one may still be open.
        wrong = [each for each in found if each not in (200, 429, 503)]
        faults = [f"a listener too many has status {each}" for each in wrong]
        if found.count(200) > NUM_LISTENERS // 2 or not found.count(429):
            faults.append(f"one key has {found.count(200)} listeners of {NUM_LISTENERS}")
        other = await stack.enter_async_context(_status(port, WATCH_KEY))
        if other != 200:
            faults.append(f"beside them another key's listener has status {other}")
    return faults
