"""Publishes KV events of one engine, and sends those that a reader has missed once more.

A thread has the sockets, so that no reader can delay the event loop. Batches are numbered from 0
for as long as the front end lives, whatever becomes of its engine. What waits is bounded: batches
to be sent, batches for a slow reader, batches that are kept to be sent again. A batch for which
there is no room is lost, and the next one then begins by clearing all blocks: readers know too
little for a while, and nothing that is wrong.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from octavo.client.cache_events.form import AllBlocksCleared, KVEvent, batches_of, events_of
from octavo.client.cache_events.sender import Sender
from octavo.core.config import ConfigError
from octavo.options.kv_events import KVEventsConfig, address_of, is_bound, is_open
from octavo.wire.facts import EngineFacts
from octavo.wire.message_types import CacheNote
from octavo.zmtp.parser import Bounds
from octavo.zmtp.port import Port

log = logging.getLogger(__name__)

MOST_ASKED_BYTES = 256  # of a message from a reader: a number, or a topic
CLOSE_SECONDS = 2.0
_EVENTS = Bounds(b"PUB", (b"SUB", b"XSUB"), 1, MOST_ASKED_BYTES)
_REPLAYS = Bounds(b"ROUTER", (b"REQ", b"DEALER", b"ROUTER"), 2, MOST_ASKED_BYTES)


class CachePublisher:
    """The publisher of one engine's events; all methods may be called in any thread."""

    def __init__(
        self, config: KVEventsConfig, rank: int, clock: Callable[[], float] = time.time
    ) -> None:
        self._rank = rank
        self._clock = clock
        self._lock = threading.Lock()  # of the queue's end to which batches are added
        self._is_closed = False
        self._has_ended = False  # the thread: nothing more is published
        self._has_lost = False
        self._most_waiting = config.max_queue_size
        self._batches: deque[bytes | None] = deque()  # that wait to be sent; None: the end
        outlet = _open(address_of(config.endpoint, rank), _EVENTS)
        replays = None
        try:
            if config.replay_endpoint is not None:
                replays = _open(address_of(config.replay_endpoint, rank), _REPLAYS)
        except BaseException:
            outlet.close()
            raise
        woken, self._waker = os.pipe()
        for each in (woken, self._waker):
            os.set_blocking(each, False)
        self._sender = Sender(self._batches, woken, outlet, replays, config)
        self._thread = threading.Thread(target=self._run, name="KV events", daemon=True)
        self._thread.start()
        self.clear()  # of a server before this one at the same address

    def _run(self) -> None:
        try:
            self._sender.run()
        finally:
            with self._lock:  # what is not sent any more must not wait
                self._has_ended = True
                self._batches.clear()

    def publish(self, notes: Sequence[CacheNote], facts: EngineFacts) -> None:
        """Send what has changed, as one batch if it is not much."""
        self._send(events_of(notes, facts))

    def clear(self) -> None:
        """Send a batch that says that the engine has no blocks any more."""
        self._send([AllBlocksCleared()])

    def _send(self, events: Iterable[KVEvent]) -> None:
        with self._lock:
            if self._is_closed or self._has_ended:
                return
            if self._has_lost:
                events = [AllBlocksCleared(), *events]
            for batch in batches_of(events, self._clock(), self._rank):
                if len(self._batches) >= self._most_waiting:
                    if not self._has_lost:
                        log.warning("KV events are lost: more batches than max_queue_size wait")
                    self._has_lost = True
                    return
                self._add(batch)
                self._has_lost = False

    def _add(self, batch: bytes | None) -> None:
        self._batches.append(batch)
        # One more waking is not needed where many wait, nor where the thread was awake, and has
        # ended with this batch.
        with suppress(BlockingIOError, BrokenPipeError):
            os.write(self._waker, b"x")

    def close(self) -> None:
        """End the thread and close the addresses; safe to call twice."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            if not self._has_ended:
                self._add(None)
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            log.warning("the thread of KV events does not end")
        else:
            os.close(self._waker)


def _open(address: str, bounds: Bounds) -> Port:
    """Return the port of an address, at which readers can ask for little only."""
    try:
        port = Port(address, bounds, listens=is_bound(address))
    except OSError as error:
        raise ConfigError(
            f"kv_events_config: {address} cannot be used: {error}; give an address that is free"
        ) from error
    if is_open(address):
        log.warning(
            "KV events at %s can be read by all who reach this port, with the tokens of all "
            "requests",
            address,
        )
    return port


def open_publishers(config: KVEventsConfig, first: int, count: int) -> list[CachePublisher]:
    """Return a publisher for each of so many engines; none is left open if one cannot be."""
    publishers: list[CachePublisher] = []
    try:
        publishers.extend(CachePublisher(config, rank) for rank in range(first, first + count))
    except BaseException:
        for each in publishers:
            each.close()
        raise
    return publishers
