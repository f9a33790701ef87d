"""A link: it connects again, without waiting for names; and what other versions of ends get."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from tempfile import TemporaryDirectory

import pytest
import zmq

from octavo.zmtp import dialer, endpoint
from octavo.zmtp.connection import SILENT_SECONDS, Connection, EndedError
from octavo.zmtp.endpoint import listen
from octavo.zmtp.link import Change, Link
from octavo.zmtp.parser import Bounds, BrokenError, Message, Parser, command, greeting

BOUNDS = Bounds(b"SUB", (b"PUB", b"XPUB"), 3, 1000)


class Clock:
    """A time that tests set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def of_version(minor: int) -> bytes:
    """Return the greeting of a publisher of ZMTP 3."""
    data = bytearray(greeting(b"PUB"))
    data[11] = minor
    return bytes(data)


@pytest.fixture
def pair() -> Iterator[tuple[Connection, socket.socket, Clock]]:
    clock = Clock()
    one, other = socket.socketpair()
    one.setblocking(False)
    with one, other:
        yield Connection(one, BOUNDS, clock, beats=True), other, clock


Pair = tuple[Connection, socket.socket, Clock]


def sent(connection: Connection, other: socket.socket) -> bytes:
    connection.write()
    return other.recv(1 << 16)


@pytest.mark.parametrize(
    ("minor", "expected"),
    [(0, b"\0\3\1kv"), (1, command(b"\x09SUBSCRIBEkv")), (9, command(b"\x09SUBSCRIBEkv"))],
)
def test_a_subscription_has_the_form_of_the_other_ends_version(
    pair: Pair, minor: int, expected: bytes
) -> None:
    connection, other, _ = pair
    other.sendall(of_version(minor))
    assert connection.read() == []
    connection.subscribe(b"kv")
    assert sent(connection, other).removeprefix(greeting(b"SUB")) == expected


def test_an_end_of_an_older_version_is_asked_nothing_that_it_does_not_know(pair: Pair) -> None:
    connection, other, clock = pair
    other.sendall(of_version(0))
    assert connection.read() == []
    assert sent(connection, other) == greeting(b"SUB")
    for _ in range(10):
        clock.now += SILENT_SECONDS / 2
        connection.look(is_read=True)
    assert not connection.wants_write


def test_an_end_is_not_silent_if_what_it_sent_was_not_read(pair: Pair) -> None:
    """A process that was stopped, or waited for something else, sees the time first."""
    connection, other, clock = pair
    other.sendall(of_version(1))
    assert connection.read() == []
    clock.now += SILENT_SECONDS / 2
    connection.look(is_read=True)
    other.sendall(command(b"\4PONG"))
    clock.now += 100 * SILENT_SECONDS
    connection.look(is_read=True)
    assert connection.read() == []
    clock.now += SILENT_SECONDS / 2
    connection.look(is_read=True)
    clock.now += SILENT_SECONDS
    with pytest.raises(EndedError, match="nothing came"):
        connection.look(is_read=True)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (command(b"\5ERROR\x03500"), "500"),
        (command(b"\5READY\x0bSocket-Type\0\0\0\xffPUB"), "longer"),
        (command(b"\5READY\x0bSocket-Type\0\0"), "longer"),
    ],
)
def test_an_end_that_refuses_or_names_itself_wrongly_is_told_apart(
    data: bytes, reason: str
) -> None:
    with pytest.raises(BrokenError, match=reason):
        Parser(BOUNDS).feed(greeting(b"PUB")[:64] + data)


def nothing(change: Change, why: str) -> None:
    pass


def test_no_link_waits_for_the_name_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    may_answer, asked = threading.Event(), threading.Event()
    search = socket.getaddrinfo

    def slow(host: str, *given: int, **more: int) -> object:
        if host == "slow.example":
            if more.get("flags"):  # whether it is a number
                raise socket.gaierror
            asked.set()
            may_answer.wait()
            host = "127.0.0.1"
        return search(host, *given, **more)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    clock = Clock()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        link = Link(f"tcp://slow.example:{port}", BOUNDS, clock, nothing)
        link.look()
        asked.wait()
        assert link.socket is None
        link.look()  # it waits for the one answer
        other = Link(f"tcp://127.0.0.1:{port}", BOUNDS, clock, nothing)
        other.look()
        assert other.socket is not None
        may_answer.set()
        lookup = link._dialer._lookup
        assert lookup is not None
        lookup.has_ended.wait()
        link.look()
        assert link.socket is not None
        for each in (link, other):
            each.close()


def test_a_name_that_is_not_found_is_searched_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    num_searches = 0

    def fail(_: str) -> list[endpoint.Place]:
        nonlocal num_searches
        num_searches += 1
        raise UnicodeError

    monkeypatch.setattr(dialer, "looked_up", fail)
    clock = Clock()
    made = dialer.Dialer("tcp://nowhere.invalid:5", clock)
    for expected in range(1, 5):
        while made._next_try <= clock.now:
            assert made.dial() is None
        assert made.dial() is None  # it is not time yet
        assert num_searches == expected
        clock.now += dialer.LAST_PAUSE_SECONDS


class Followed:
    """A link that a test drives, with what it has said and read."""

    def __init__(self, path: str) -> None:
        self.clock = Clock()
        self.changes: list[Change] = []
        self.found: list[Message] = []
        self.link = Link(path, BOUNDS, self.clock, self._note, subscribes=True)

    def _note(self, change: Change, why: str) -> None:
        self.changes.append(change)

    def drive(self, until: Callable[[], bool]) -> None:
        """Let it do what it wants until something holds."""
        while not until():
            self.link.look()
            if self.link.socket is not None:
                self.link.write()
                self.found += self.link.read()

    def has_changed(self, *expected: Change) -> bool:
        """Return whether these changes have come, while the time for a next attempt comes too."""
        self.clock.now += 0.01
        return self.changes == [*expected]

    def is_answered(self) -> bool:
        """Return whether the other end has shown now that it lives."""
        connection = self.link._connection
        assert connection is not None
        return connection._heard == self.clock.now

    def follow(self, publisher: zmq.Socket[bytes]) -> None:
        """Read what a publisher sends, and ask whether it lives."""
        self.changes.clear()
        self.drive(lambda: self.has_changed(Change.READY))
        self.drive(lambda: bool(publisher.poll(0)))
        assert publisher.recv() == b"\1"
        for part in (b"short", b"l" * 700):
            publisher.send_multipart((b"", part))
        self.drive(lambda: len(self.found) == 2)
        assert self.found == [[b"", b"short"], [b"", b"l" * 700]]
        self.found.clear()
        self.clock.now += SILENT_SECONDS / 2
        self.link.look()
        assert self.link.wants_write, "it asks"
        self.drive(self.is_answered)
        publisher.close(linger=0)
        self.drive(lambda: self.has_changed(Change.READY, Change.ENDED))


def test_a_link_follows_a_publisher_of_libzmq_over_its_restarts() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with TemporaryDirectory() as directory:
        path = f"ipc://{directory}/events"
        followed = Followed(path)
        for _ in range(3):
            publisher = context.socket(zmq.XPUB)
            publisher.bind(path)
            followed.follow(publisher)
        followed.link.close()
    context.term()


def test_a_file_of_a_socket_is_replaced_unless_somebody_listens_there() -> None:
    with TemporaryDirectory() as directory:
        path = f"ipc://{directory}/s"
        first = listen(path)
        with pytest.raises(OSError, match="in use"):
            listen(path)
        first.close()  # its file is left
        with listen(path):
            pass


def test_the_network_ends_a_connection_that_takes_nothing() -> None:
    """An end that is gone while something is to be sent would else be noticed after 15 minutes."""
    with listen("tcp://*:0") as server, socket.create_connection(server.getsockname()):
        made = endpoint.accept(server)
        assert made is not None
        with made:
            assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000
