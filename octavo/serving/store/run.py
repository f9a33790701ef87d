"""The events of a response that is answered without a connection."""

from __future__ import annotations

import asyncio
import zlib
from bisect import bisect_right
from collections.abc import Callable

BLOCK_EVENTS = 256  # that are compressed together …
BLOCK_BYTES = 128 << 10  # … or fewer, if they have so many bytes
_MOST_COMPRESSED = 512 << 10  # bytes that are compressed without a turn for others


class Run:
    """The events of one response; the number of an event is its place.

    All but the newest are in compressed blocks: an answer of 32k tokens has 8 MB of events.
    """

    def __init__(self) -> None:
        self.stop: Callable[[Exception], None] = _nothing  # its task sets another
        # Called with the bytes of all events when they have become more or fewer.
        self.on_growth: Callable[[int], None] = _nothing
        self.is_kept = True  # False once the events were dropped
        self.is_over = False
        self.task: asyncio.Task[None] | None = None
        self._starts: list[int] = []  # of the blocks: the number of their first event
        self._blocks: list[bytes] = []
        self._newest: list[bytes] = []
        self._newest_from = 0  # the number of the first of these
        self._newest_bytes = self._block_bytes = 0
        self._news = asyncio.Event()

    @classmethod
    def of(cls, packed: bytes) -> Run:
        """Return the events of a response that has ended, as `packed` has returned them."""
        run = cls()
        while packed:
            stream = zlib.decompressobj()
            num_events = len(split(stream.decompress(packed)))
            rest = stream.unused_data
            run._add_block(packed[: len(packed) - len(rest)], num_events)
            packed = rest
        run.is_over = True
        return run

    @property
    def num_bytes(self) -> int:
        """The bytes of all events, as they are kept."""
        return self._block_bytes + self._newest_bytes

    def packed(self) -> bytes:
        """Return all events, compressed; none follows."""
        assert self.is_over
        return b"".join([*self._blocks, zlib.compress(b"".join(self._newest))])

    def read(self, number: int) -> list[bytes]:
        """Return the events from this number on, as far as they are kept together."""
        if number >= self._newest_from:
            return self._newest[number - self._newest_from :]
        place = bisect_right(self._starts, number) - 1
        events = split(zlib.decompress(self._blocks[place]))
        return events[number - self._starts[place] :]

    def add(self, part: bytes) -> None:
        """Add one event or several."""
        if not self.is_kept:
            return
        self._newest += split(part)
        self._newest_bytes += len(part)
        if len(self._newest) >= BLOCK_EVENTS or self._newest_bytes >= BLOCK_BYTES:
            data = b"".join(self._newest)
            level = 1 if len(data) <= _MOST_COMPRESSED else 0
            num_events, self._newest, self._newest_bytes = len(self._newest), [], 0
            self._add_block(zlib.compress(data, level), num_events)
            self.on_growth(self.num_bytes)
        self._wake()

    def drop(self) -> None:
        """Forget all events, for which there is no room; those who follow them get an error."""
        self.is_kept = False
        self._starts, self._blocks, self._newest = [], [], []
        self._newest_bytes = self._block_bytes = 0
        self._wake()

    def _add_block(self, block: bytes, num_events: int) -> None:
        self._starts.append(self._newest_from)
        self._blocks.append(block)
        self._block_bytes += len(block)
        self._newest_from += num_events

    def end(self) -> None:
        """End the run, and release those that wait for more events."""
        self.is_over, self.on_growth = True, _nothing
        self.stop = _nothing  # the old one refers to the request, which refers to this object
        self._wake()

    async def news(self) -> None:
        """Wait until there is another event, or none will follow."""
        await self._news.wait()

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


def _nothing(_: object) -> None:
    """Ignore the argument: a hook that nothing uses."""


def split(part: bytes) -> list[bytes]:
    """Return the events in what was written; their JSON has no line breaks."""
    return [each + b"\n\n" for each in part.split(b"\n\n") if each]
