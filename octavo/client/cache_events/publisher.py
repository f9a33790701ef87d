"""Publishes KV events of one engine, and sends those that a reader has missed once more.

A thread has the sockets, so that no reader can delay the event loop. Batches are numbered from 0
for as long as the front end lives, whatever becomes of its engine. What waits is bounded: batches
to be sent, batches for a slow reader, batches that are kept to be sent again. A batch for which
there is no room is lost, and the next one then begins by clearing all blocks: readers know too
little for a while, and nothing that is wrong.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import zmq

from octavo.client.cache_events.form import (
    ENCODER,
    AllBlocksCleared,
    KVEvent,
    KVEventBatch,
    events_of,
)
from octavo.core.config import ConfigError
from octavo.options.kv_events import KVEventsConfig, address_of, is_bound, is_open
from octavo.wire.facts import EngineFacts
from octavo.wire.message_types import CacheNote

log = logging.getLogger(__name__)

MOST_KEPT_BYTES = 64 << 20  # of the batches that are kept to be sent again
MOST_ASKED_BYTES = 256  # of a message from a reader: a number, or a topic
CLOSE_SECONDS = 2.0
_END = (-1).to_bytes(8, "big", signed=True)  # behind the last batch that is sent again
_STOP = b""

Socket = zmq.Socket[bytes]


class CachePublisher:
    """The publisher of one engine's events; all methods may be called in any thread."""

    def __init__(
        self, config: KVEventsConfig, rank: int, clock: Callable[[], float] = time.time
    ) -> None:
        self._rank = rank
        self._clock = clock
        self._lock = threading.Lock()  # of the queue's end to which batches are added
        self._is_closed = False
        self._has_lost = False
        self._context: zmq.Context[Socket] = zmq.Context(io_threads=1)
        try:
            outlet = self._open(zmq.PUB, address_of(config.endpoint, rank), config.hwm)
            replays = None
            if config.replay_endpoint is not None:
                address = address_of(config.replay_endpoint, rank)
                replays = self._open(zmq.ROUTER, address, config.buffer_steps + 2)
            inlet = self._context.socket(zmq.PULL)
            inlet.set(zmq.RCVHWM, max(1, config.max_queue_size // 2))
            inlet.bind("inproc://batches")
            self._queue = self._context.socket(zmq.PUSH)
            self._queue.set(zmq.SNDHWM, max(1, config.max_queue_size // 2))
            self._queue.set(zmq.LINGER, 0)
            self._queue.connect("inproc://batches")
        except BaseException:
            self._context.destroy(linger=0)
            raise
        worker = _Worker(inlet, outlet, replays, config)
        self._thread = threading.Thread(target=worker.run, name="KV events", daemon=True)
        self._thread.start()
        self.clear()  # of a server before this one at the same address

    def _open(self, kind: int, address: str, most: int) -> Socket:
        """Return a socket at an address, from which readers can ask for little only."""
        socket = self._context.socket(kind)
        socket.set(zmq.SNDHWM, most)
        socket.set(zmq.RCVHWM, 64)
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.MAXMSGSIZE, MOST_ASKED_BYTES)
        if "[" in address or "::" in address:
            socket.set(zmq.IPV6, 1)
        try:
            if is_bound(address):
                socket.bind(address)
            else:
                socket.connect(address)
        except zmq.ZMQError as error:
            raise ConfigError(
                f"kv_events_config: {address} cannot be used: {error}; give an address that is free"
            ) from error
        if is_open(address):
            log.warning(
                "KV events at %s can be read by all who reach this port, with the tokens of all "
                "requests",
                address,
            )
        return socket

    def publish(self, notes: Sequence[CacheNote], facts: EngineFacts) -> None:
        """Send what has changed, as one batch."""
        self._send(events_of(notes, facts))

    def clear(self) -> None:
        """Send a batch that says that the engine has no blocks any more."""
        self._send([AllBlocksCleared()])

    def _send(self, events: list[KVEvent]) -> None:
        with self._lock:
            if self._is_closed:
                return
            if self._has_lost:
                events.insert(0, AllBlocksCleared())
            batch = KVEventBatch(self._clock(), events, self._rank)
            try:
                self._queue.send(ENCODER.encode(batch), zmq.NOBLOCK)
                self._has_lost = False
            except zmq.Again:
                if not self._has_lost:
                    log.warning("KV events are lost: more batches than max_queue_size wait")
                self._has_lost = True

    def close(self) -> None:
        """End the thread and close the addresses; safe to call twice."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._queue.set(zmq.SNDTIMEO, int(CLOSE_SECONDS * 1000))
            try:
                self._queue.send(_STOP)
            except zmq.Again:
                log.warning("the thread of KV events does not end")
                return
            self._queue.close()
        self._thread.join(CLOSE_SECONDS)
        if not self._thread.is_alive():
            self._context.term()


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


class _Worker:
    """The loop of the thread, which has all sockets but the end that batches are added to."""

    def __init__(
        self, inlet: Socket, outlet: Socket, replays: Socket | None, config: KVEventsConfig
    ) -> None:
        self._inlet, self._outlet, self._replays = inlet, outlet, replays
        self._topic = config.topic.encode()
        self._most_kept = config.buffer_steps
        # (number, batch); however many readers do not take them, frames have their bytes once
        self._kept: deque[tuple[bytes, zmq.Frame]] = deque()
        self._num_bytes = 0  # of those
        self._number = 0

    def run(self) -> None:
        """Send what comes, and what is asked for, until the end."""
        poller = zmq.Poller()
        poller.register(self._inlet, zmq.POLLIN)
        if self._replays is not None:
            poller.register(self._replays, zmq.POLLIN)
        try:
            while True:
                ready = dict(poller.poll())
                if self._inlet in ready:
                    batch = self._inlet.recv(copy=False)
                    if len(batch) == len(_STOP):
                        return
                    self._publish(batch)
                if self._replays is not None and self._replays in ready:
                    self._answer(self._replays)
        finally:
            for socket in (self._inlet, self._outlet, self._replays):
                if socket is not None:
                    socket.close(linger=0)

    def _publish(self, batch: zmq.Frame) -> None:
        number = self._number.to_bytes(8, "big")
        self._number += 1
        self._outlet.send_multipart((self._topic, number, batch), copy=False)
        if self._replays is None:
            return
        self._kept.append((number, batch))
        self._num_bytes += len(batch)
        while len(self._kept) > self._most_kept or self._num_bytes > MOST_KEPT_BYTES:
            self._num_bytes -= len(self._kept.popleft()[1])

    def _answer(self, replays: Socket) -> None:
        """Send a reader the batches from a number on, as far as they are kept."""
        try:
            reader, *rest = replays.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
        if len(rest) != 2 or rest[0] or len(rest[1]) != 8:
            return  # no question
        first = rest[1]
        try:
            for number, batch in self._kept:
                if number >= first:
                    replays.send_multipart((reader, b"", number, batch), zmq.NOBLOCK, copy=False)
            replays.send_multipart((reader, b"", _END, b""), zmq.NOBLOCK)
        except zmq.Again:
            log.warning("a reader of KV events does not take what it has asked for")
