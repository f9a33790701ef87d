"""While an engine loads, health is answered and other requests wait, unread, for the server."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from octavo.observe.http_metrics import HttpMetrics
from octavo.options.transport import TransportSettings
from octavo.transport.connections import Connections
from octavo.transport.listener import Listener
from octavo.transport.response import Response
from octavo.transport.restart import waiting_room as module
from octavo.transport.restart.waiting_room import WaitingRoom, waiting_room

SECONDS = 300
LINGER = struct.pack("ii", 1, SECONDS)  # a close returns when the other side has seen it
HEAD = b" HTTP/1.1\r\nhost: x\r\n\r\n"


@contextlib.contextmanager
def opened(root_path: str = "") -> Iterator[WaitingRoom]:
    room = waiting_room(TransportSettings(host="127.0.0.1", port=0, root_path=root_path))
    assert room is not None
    try:
        yield room
    finally:
        room.close()


def connected(room: WaitingRoom) -> socket.socket:
    return socket.create_connection(room.listening.getsockname(), SECONDS)


def asked(room: WaitingRoom, path: str, method: bytes = b"GET") -> tuple[int, dict[str, Any]]:
    """Return the status and the body of a response, behind which the connection ends."""
    with connected(room) as client:
        client.sendall(method + b" " + path.encode() + HEAD)
        parts = []
        while part := client.recv(4096):
            parts.append(part)
    head, _, body = b"".join(parts).partition(b"\r\n\r\n")
    assert f"content-length: {len(body)}".encode() in head
    return int(head.split()[1]), json.loads(body)


@pytest.mark.parametrize(
    ("path", "status", "word"),
    [
        ("/health", 503, "starting"),
        ("/health/ready?verbose=1", 503, "starting"),
        ("/ping", 503, "starting"),
        ("/v1/health", 503, "starting"),
        ("/health/", 503, "starting"),
        ("/health/live", 200, "live"),
    ],
)
def test_health_is_answered_while_the_engine_loads(path: str, status: int, word: str) -> None:
    with opened() as room:
        for _ in range(2):
            assert asked(room, path) == (status, {"status": word})


def test_other_requests_wait_unread() -> None:
    with opened() as room, contextlib.ExitStack() as stack:
        sent = [b"POST /v1/completions" + HEAD, b"GET /healthy" + HEAD, b"GET /hex", b"\x16\x03"]
        for each in sent:
            client = stack.enter_context(connected(room))
            client.sendall(each)
        part = stack.enter_context(connected(room))
        part.sendall(b"GET /hea")  # of which the rest may still come
        silent = stack.enter_context(connected(room))
        for gone in (b"", b"GET /v1/models"):
            with connected(room) as leaver:
                leaver.sendall(gone)
        assert asked(room, "/health")[0] == 503  # all those before have been looked at
        left = room.leave()
        found = []
        for connection in left:
            stack.callback(connection.close)
            with contextlib.suppress(BlockingIOError):
                found.append(connection.recv(100))
        assert sorted(found) == sorted([*sent, b"GET /hea", b"GET /v1/models"])
        assert len(left) == len(found) + 1
        silent.sendall(b"x")


def test_health_is_answered_behind_a_prefix_and_by_its_head_alone() -> None:
    with opened("/llm") as room:
        assert asked(room, "/llm/health") == (503, {"status": "starting"})
        with connected(room) as client:
            client.sendall(b"HEAD /llm/health/live" + HEAD)
            parts = []
            while part := client.recv(4096):
                parts.append(part)
            head, _, body = b"".join(parts).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            assert b"content-length: 17" in head
            assert body == b""


@pytest.mark.parametrize("root_path", ["", "/llm"])
def test_health_that_comes_in_parts_is_answered(root_path: str) -> None:
    whole = f"GET {root_path}/health/live?x=1".encode() + HEAD
    with opened(root_path) as room:
        for size in (1, 2, 7, len(whole) - 1):
            with connected(room) as client:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for at in range(0, len(whole), size):
                    client.sendall(whole[at : at + size])
                    # Each part is looked at before the next one comes.
                    assert asked(room, f"{root_path}/ping")[0] == 503
                assert client.recv(12) == b"HTTP/1.1 200"


def test_parts_of_requests_for_health_take_no_place_and_no_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The oldest of those that send no more is closed; each is looked at when bytes come."""
    monkeypatch.setattr(module, "_MOST_SILENT", 3)
    looks = []
    look = WaitingRoom._look

    def counted(self: WaitingRoom, connection: socket.socket) -> None:
        looks.append(connection)
        look(self, connection)

    monkeypatch.setattr(WaitingRoom, "_look", counted)
    with opened() as room, contextlib.ExitStack() as stack:
        slow = [stack.enter_context(connected(room)) for _ in range(4)]
        for each in slow[1:]:
            each.sendall(b"GET /health HTTP/1.1\r\nx: ")
        assert slow[0].recv(1) == b""
        for _ in range(20):
            assert asked(room, "/health")[0] == 503
        assert len(looks) < 100, "a part is looked at again and again"
        leaver = stack.enter_context(connected(room))
        leaver.sendall(b"HEAD /pi")
        leaver.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):  # since its part is unread
            assert leaver.recv(1) == b""
        assert asked(room, "/health/live")[0] == 200


def test_a_part_of_a_request_waits_where_the_system_does_not_wait_for_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Some kernels, and all when memory is short, show the same bytes again."""
    monkeypatch.setattr(module, "_look_from", lambda connection, num_bytes: None)
    with opened() as room, contextlib.ExitStack() as stack:
        client = stack.enter_context(connected(room))
        client.sendall(b"GET /hea")
        while not room._waiting:
            assert asked(room, "/health")[0] == 503
        client.sendall(b"lth" + HEAD)
        [waiting] = [stack.enter_context(each) for each in room.leave()]
        waiting.setblocking(True)
        assert waiting.recv(11) == b"GET /health"


def test_health_is_answered_when_all_places_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request beyond the limit is refused, until a client that waits has left."""
    monkeypatch.setattr(module, "_MOST", 2)
    with opened() as room, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connected(room)) for _ in range(2)]
        for each in clients:
            each.sendall(b"POST /" + HEAD)
            assert asked(room, "/health/live") == (200, {"status": "live"})
        status, refused = asked(room, "/", b"POST")
        assert (status, refused["error"]["code"]) == (503, "too_many_connections")
        clients[0].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
        clients[0].close()
        late = stack.enter_context(connected(room))
        late.sendall(b"POST /late" + HEAD)
        assert asked(room, "/health/live")[0] == 200
        held = [stack.enter_context(each) for each in room.leave()]
        assert sorted(each.recv(10) for each in held) == [b"POST / HTT", b"POST /late"]


def test_the_oldest_that_sends_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_SILENT", 2)
    with opened() as room, contextlib.ExitStack() as stack:
        silent = [stack.enter_context(connected(room)) for _ in range(4)]
        assert [each.recv(1) for each in silent[:2]] == [b"", b""]
        assert asked(room, "/health/live")[0] == 200


def test_it_waits_for_a_free_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that cannot be accepted is accepted a little later."""
    accept, tries = socket.socket.accept, []

    def refused(listening: socket.socket) -> tuple[socket.socket, object]:
        tries.append(listening)
        if len(tries) == 2:
            raise OSError(errno.EMFILE, "too many")
        return accept(listening)

    monkeypatch.setattr(socket.socket, "accept", refused)
    with opened() as room, connected(room) as first, connected(room) as second:
        first.sendall(b"GET /ping" + HEAD)
        second.sendall(b"GET /ping" + HEAD)
        for client in (first, second):
            assert client.recv(12) == b"HTTP/1.1 503"


def test_the_server_answers_those_who_have_waited() -> None:
    async def answer(response: Response) -> None:
        path = response.scope()["path"].encode()
        await response.begin(200, [(b"content-length", str(len(path)).encode())])
        await response.write(path, more=False)

    async def main() -> None:
        with opened() as room, connected(room) as client:
            client.sendall(b"GET /early" + HEAD)
            assert asked(room, "/health")[0] == 503
            settings = TransportSettings(host="127.0.0.1", port=0)
            connections = Connections(settings, HttpMetrics(), lambda error: b"")
            listener = Listener(connections, answer)
            waiting = room.leave()
            await listener.start(room.listening)
            for each in waiting:
                await listener.adopt(each)
            text = b""
            while not text.endswith(b"\r\n\r\n/early"):  # the head and the body may come apart
                part = await asyncio.to_thread(client.recv, 4096)
                assert part, text
                text += part
            assert text.startswith(b"HTTP/1.1 200")
            await listener.stop(lambda: True)

    asyncio.run(main())
