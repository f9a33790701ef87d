"""Reads the events of all publishers, in a thread of its own, so that none delays requests.

A publisher is another machine's, and may send anything. Its messages are bounded in size and in
number, and one that sends more than can be read with a part of the time is read less often: it
then misses batches, and is asked for them, or nothing is known of it.
"""

from __future__ import annotations

import logging
import os
import select
import struct
import threading
import time
from collections.abc import Callable, Sequence

from octavo.route.kv_events.address import EventsAddress
from octavo.route.kv_events.source import Source
from octavo.route.kv_events.view import CacheView
from octavo.zmtp.allowance import Allowance
from octavo.zmtp.link import Change, Link
from octavo.zmtp.parser import Bounds, frames

log = logging.getLogger(__name__)

MOST_MESSAGE_BYTES = 1 << 20  # of all parts; a connection has one that has not ended, at most
UNREACHED_SECONDS = 30.0  # without a connection, until the log says so
_POLL_SECONDS = 0.5
_NUMBER = struct.Struct(">q")
_FRAMES = 3  # of a message: a topic, or nothing; its number; the batch
_MOST_QUESTIONS = 4  # that wait until they can be sent
_EVENTS = Bounds(b"SUB", (b"PUB", b"XPUB"), _FRAMES, MOST_MESSAGE_BYTES)
_REPLAYS = Bounds(b"DEALER", (b"ROUTER", b"DEALER", b"REP"), _FRAMES, MOST_MESSAGE_BYTES)


class _Publisher:
    """The connections to one publisher, in the thread."""

    def __init__(self, address: EventsAddress, view: CacheView, clock: Callable[[], float]) -> None:
        self._name = f"{address.server.url} at {address.endpoint}"
        self._clock = clock
        self._apart_since: float | None = clock()  # None: it is connected, or the log says so
        self.allowance = Allowance(clock)
        self.source = Source(self._name, view, self._ask, clock)
        self.events = Link(address.endpoint, _EVENTS, clock, self._events_changed, subscribes=True)
        self.replays: Link | None = None
        if address.replay is not None:
            self.replays = Link(address.replay, _REPLAYS, clock, self._replays_changed)
        self.links = tuple(each for each in (self.events, self.replays) if each is not None)

    def _ask(self, first: int) -> bool:
        if self.replays is None:
            return False
        return self.replays.send(frames((b"", _NUMBER.pack(first))), _MOST_QUESTIONS)

    def _events_changed(self, change: Change, why: str) -> None:
        if change is Change.READY:
            self._apart_since = None
            self.source.connected()
            return
        self._apart_since = self._clock()
        self.source.disconnected()
        if change is Change.BROKEN:
            self._refuse(why)

    def _replays_changed(self, change: Change, why: str) -> None:
        if change is Change.BROKEN:  # a question then has no answer in time
            self._refuse(why)

    def _refuse(self, why: str) -> None:
        if not self.source.num_refused:
            log.warning("KV events of %s: the connection is ended: %s", self._name, why)
        self.source.num_refused += 1

    def look(self) -> None:
        """Connect when it is due, end what is silent, and give up what has no answer."""
        self.source.look()
        apart = self._apart_since
        if apart is not None and self._clock() - apart > UNREACHED_SECONDS:
            self._apart_since = None
            log.warning(
                "KV events of %s: no connection for %.0f s; what the server has cached is guessed",
                *(self._name, UNREACHED_SECONDS),
            )
        for each in self.links:
            each.look(is_read=self.allowance.rest() <= 0)

    def wanted(self, link: Link) -> int:
        """Return what to wait for at a connection: nothing to read of one that sends too much."""
        return (select.POLLIN if self.allowance.rest() <= 0 else 0) | (
            select.POLLOUT if link.wants_write else 0
        )

    def read(self, link: Link) -> None:
        """Read one portion of what the publisher sends."""
        for parts in link.read():
            if len(parts) == _FRAMES and len(parts[1]) == _NUMBER.size:
                (number,) = _NUMBER.unpack(parts[1])
                if link is self.events:
                    self.source.published(number, parts[2])
                else:
                    self.source.replayed(number, parts[2])
            else:
                self.source.num_refused += 1

    def close(self) -> None:
        for each in self.links:
            each.close()


class EventsReader:
    """The thread that reads all events, and the views that it keeps."""

    def __init__(
        self,
        sources: Sequence[tuple[EventsAddress, CacheView]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.publishers = [_Publisher(*each, clock) for each in sources]
        self._ending, self._end = os.pipe()
        self._thread = threading.Thread(target=self._run, name="KV events", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, if it has not failed, and close all connections."""
        os.close(self._end)
        self._thread.join()
        os.close(self._ending)

    def _run(self) -> None:
        try:
            while self._round():
                pass
        except Exception:  # what is not followed any more must not count as known
            log.exception("KV events are read no more")
            for publisher in self.publishers:
                publisher.source.disconnected()
        finally:
            for publisher in self.publishers:
                publisher.close()

    def _round(self) -> bool:
        """Read a portion of each publisher that has sent something; return False at the end."""
        began = time.thread_time()
        poll = select.poll()
        poll.register(self._ending, select.POLLIN)
        owners = {}
        for publisher in self.publishers:
            publisher.look()
            for link in publisher.links:
                wanted = publisher.wanted(link)
                if link.socket is not None and wanted:
                    descriptor = link.socket.fileno()
                    owners[descriptor] = publisher, link
                    poll.register(descriptor, wanted)
        found = poll.poll(self._patience() * 1000)
        waited = time.thread_time() - began  # to wait for all costs time too, of those who sent
        for descriptor, what in found:
            if descriptor == self._ending:
                return False
            publisher, link = owners[descriptor]
            began = time.thread_time()
            if what & select.POLLOUT:
                link.write()
            if what & ~select.POLLOUT:
                publisher.read(link)
            publisher.allowance.take(time.thread_time() - began + waited / len(found))
        return True

    def _patience(self) -> float:
        """Return for how long nothing need be done: until one that rests is read again."""
        rests = [each.allowance.rest() for each in self.publishers]
        return max(0.001, min([_POLL_SECONDS, *(rest for rest in rests if rest > 0)]))
