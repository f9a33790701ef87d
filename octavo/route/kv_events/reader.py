"""Reads the events of all publishers, in a thread of its own, so that none delays requests.

A publisher is another machine's, and may send anything. Its messages are bounded in size and in
number, and one that sends more than can be read with a part of the time is read less often: it
then misses batches, and is asked for them, or nothing is known of it.
"""

from __future__ import annotations

import logging
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import zmq
from zmq.utils.monitor import recv_monitor_message

from octavo.options.transport import ServerStartError
from octavo.route.kv_events.address import EventsAddress
from octavo.route.kv_events.source import Source
from octavo.route.kv_events.view import CacheView

log = logging.getLogger(__name__)

MOST_MESSAGE_BYTES = 1 << 20
MOST_WAITING = 32  # messages of one publisher
# A publisher may take one second of so many, and more for a moment.
SHARE = 8
MOMENT_SECONDS = 0.1
BEAT_SECONDS, SILENT_SECONDS = 2.0, 6.0  # of a connection, whose end is seen after the second
_POLL_SECONDS = 0.5
_NUMBER = struct.Struct(">q")
_FRAMES = 3  # of a message: a topic, or nothing; its number; the batch
Socket = zmq.Socket[bytes]


class _Publisher:
    """The sockets of one publisher, in the thread."""

    def __init__(
        self,
        context: zmq.Context[Socket],
        address: EventsAddress,
        view: CacheView,
        clock: Callable[[], float],
    ) -> None:
        self.events = _socket(context, zmq.SUB)
        self.events.set(zmq.SUBSCRIBE, b"")
        self.monitor: Socket = self.events.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        )
        self.replays = None if address.replay is None else _socket(context, zmq.DEALER)
        name = f"{address.server.url} at {address.endpoint}"
        self.source = Source(name, view, self._ask, clock)
        self._clock = clock
        self._paid_until = 0.0
        if self.replays is not None and address.replay is not None:
            _connect(self.replays, address.replay)
        _connect(self.events, address.endpoint)

    def _ask(self, first: int) -> bool:
        if self.replays is None:
            return False
        try:
            self.replays.send_multipart((b"", _NUMBER.pack(first)), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def rest(self) -> float:
        """Return for how many seconds it is not read, since it has taken its part of the time."""
        return self._paid_until - MOMENT_SECONDS - self._clock()

    def sockets(self) -> list[Socket]:
        """Return the sockets to look at now; of one that sends too much only its connection."""
        others = [] if self.rest() > 0 else [self.events, self.replays]
        return [each for each in (self.monitor, *others) if each is not None]

    def read(self, ready: Socket) -> None:
        """Read one message of the publisher, or what has become of its connection."""
        began = self._clock()
        if ready is self.monitor:
            event = recv_monitor_message(self.monitor, zmq.NOBLOCK)["event"]
            if event == zmq.EVENT_DISCONNECTED:
                self.source.disconnected()
            else:
                self.source.connected()
            return
        parts = ready.recv_multipart(zmq.NOBLOCK)
        if len(parts) == _FRAMES and len(parts[1]) == _NUMBER.size:
            (number,) = _NUMBER.unpack(parts[1])
            if ready is self.events:
                self.source.published(number, parts[2])
            else:
                self.source.replayed(number, parts[2])
        else:
            self.source.num_refused += 1
        now = self._clock()
        self._paid_until = max(self._paid_until, began) + SHARE * (now - began)

    def close(self) -> None:
        self.events.disable_monitor()
        for each in (self.events, self.monitor, self.replays):
            if each is not None:
                each.close(linger=0)


def _connect(socket: Socket, endpoint: str) -> None:
    try:
        socket.connect(endpoint)
    except zmq.ZMQError as error:
        raise ServerStartError(
            f"--kv-events: {endpoint} is no endpoint to connect to: {error.strerror}; correct it"
        ) from None


def _socket(context: zmq.Context[Socket], kind: int) -> Socket:
    socket = context.socket(kind)
    socket.set(zmq.RCVHWM, MOST_WAITING)
    socket.set(zmq.SNDHWM, 4)
    socket.set(zmq.MAXMSGSIZE, MOST_MESSAGE_BYTES)
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.IPV6, 1)
    socket.set(zmq.RECONNECT_IVL, 100)
    socket.set(zmq.RECONNECT_IVL_MAX, 5000)
    socket.set(zmq.HEARTBEAT_IVL, int(BEAT_SECONDS * 1000))
    socket.set(zmq.HEARTBEAT_TIMEOUT, int(SILENT_SECONDS * 1000))
    return socket


class EventsReader:
    """The thread that reads all events, and the views that it keeps."""

    def __init__(
        self,
        sources: Sequence[tuple[EventsAddress, CacheView]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._context: zmq.Context[Socket] = zmq.Context(io_threads=1)
        try:
            self.publishers = [_Publisher(self._context, *each, clock) for each in sources]
        except BaseException:
            self._context.destroy(linger=0)
            raise
        inlet = self._context.socket(zmq.PAIR)
        inlet.bind("inproc://end")
        self._end = self._context.socket(zmq.PAIR)
        self._end.connect("inproc://end")
        self._thread = threading.Thread(
            target=self._run, args=(inlet,), name="KV events", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """End the thread, if it has not failed, and close all connections."""
        with suppress(zmq.Again):  # a thread that has ended takes nothing
            self._end.send(b"", zmq.NOBLOCK)
        self._thread.join()
        self._end.close(linger=0)
        self._context.term()

    def _run(self, inlet: Socket) -> None:
        try:
            while True:
                poller = zmq.Poller()
                poller.register(inlet, zmq.POLLIN)
                owners = {}
                for publisher in self.publishers:
                    publisher.source.look()
                    for socket in publisher.sockets():
                        owners[socket] = publisher
                        poller.register(socket, zmq.POLLIN)
                for socket, _ in poller.poll(int(self._patience() * 1000)):
                    if socket is inlet:
                        return
                    try:
                        owners[socket].read(socket)
                    except zmq.Again:
                        continue
        except Exception:  # what is not followed any more must not count as known
            log.exception("KV events are read no more")
            for publisher in self.publishers:
                publisher.source.disconnected()
        finally:
            for publisher in self.publishers:
                publisher.close()
            inlet.close(linger=0)

    def _patience(self) -> float:
        """Return for how long nothing need be done: until one that rests is read again."""
        rests = [each.rest() for each in self.publishers if each.rest() > 0]
        return max(0.001, min([_POLL_SECONDS, *rests]))
