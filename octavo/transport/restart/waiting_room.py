"""The listening socket while an engine loads: health is answered, and other requests wait.

A thread accepts connections and looks at what they have sent, without taking it. A request for the
server's health is answered there, once it has come as a whole; any other stays unread in its
connection, which the server takes over when it is ready. When all places are taken, the next one
is refused, and of those that send nothing, or a part of such a request, the oldest is closed:
health is answered nevertheless.
"""

from __future__ import annotations

import contextlib
import errno
import json
import select
import selectors
import socket
import threading
from collections.abc import Iterable
from http import HTTPStatus

from octavo.options.transport import TransportSettings
from octavo.transport.answer import path_within
from octavo.transport.auth import HEALTH
from octavo.transport.restart.systemd import passed_socket
from octavo.transport.sockets import bind

_BACKLOG = 2048
_MOST = 256  # connections that wait here with a request
_MOST_SILENT = 256  # and that have sent nothing yet, or a part of a request for health
_HEAD_BYTES = 8192
_METHODS = (b"GET", b"HEAD")
_END = b"\r\n\r\n"
_STARTING = b'{"status":"starting"}'
_LIVE = b'{"status":"live"}'
_FULL = json.dumps(
    {
        "error": {
            "message": f"the server is starting, and {_MOST} connections wait for it already: "
            "try again later",
            "type": "server_error",
            "param": None,
            "code": "too_many_connections",
        }
    }
).encode()
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PAUSE_SECONDS = 0.1


def waiting_room(config: TransportSettings) -> WaitingRoom | None:
    """Open the clients' socket, if the server is the first there, and its requests can be read."""
    if config.uds is not None or config.ssl_certfile is not None or config.handover is not None:
        return None
    given = passed_socket()
    if given is not None:
        given.detach()  # it is systemd's, where connections wait already
        return None
    return WaitingRoom(bind(config), config.root_path)


class WaitingRoom:
    """A listening socket with the connections that wait until the server is ready."""

    def __init__(self, listening: socket.socket, root_path: str = "") -> None:
        self.listening = listening
        self._root_path = root_path
        self._waiting: list[socket.socket] = []
        # The oldest first, with how many bytes of a request for health each has sent.
        self._silent: dict[socket.socket, int] = {}
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        listening.listen(_BACKLOG)
        listening.setblocking(False)
        self._selector.register(listening, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._pause: float | None = None  # until it is tried again to accept
        self._thread = threading.Thread(target=self._run, name="waiting-room", daemon=True)
        self._thread.start()

    def leave(self) -> list[socket.socket]:
        """Accept nothing more, and return the connections that wait."""
        if self._thread.is_alive():
            self._wake.send(b"x")
            self._thread.join()
        left = [*self._waiting, *self._silent]
        for each in self._silent:
            _look_from(each, 1)
        self._waiting, self._silent = [], {}
        self._selector.close()
        self._wake.close()
        self._woken.close()
        return left

    def close(self) -> None:
        """End everything: the engine could not be loaded."""
        if self._woken.fileno() >= 0:
            for each in self.leave():
                each.close()
        self.listening.close()

    def _run(self) -> None:
        while True:
            found = self._selector.select(self._pause)
            if self._pause is not None:  # descriptors may be free by now
                self._pause = None
                self._selector.register(self.listening, selectors.EVENT_READ)
            for key, _ in found:
                if key.fileobj is self._woken:
                    return
                if key.fileobj is self.listening:
                    self._accept()
                elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._silent:
                    self._look(key.fileobj)

    def _accept(self) -> None:
        try:
            connection, _ = self.listening.accept()
        except OSError as error:
            if error.errno in _NO_ROOM:
                self._selector.unregister(self.listening)
                self._pause = _PAUSE_SECONDS
            return  # or else its client has left
        connection.setblocking(False)
        self._selector.register(connection, selectors.EVENT_READ)
        self._silent[connection] = 0
        if len(self._silent) > _MOST_SILENT:
            oldest = next(iter(self._silent))
            self._look(oldest)
            if oldest in self._silent:
                self._close(oldest)

    def _close(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        del self._silent[connection]
        connection.close()

    def _look(self, connection: socket.socket) -> None:
        """Answer a request for health, and let any other wait; close what has ended."""
        try:
            head = connection.recv(_HEAD_BYTES, socket.MSG_PEEK)
            if _may_become_health(head, self._root_path):
                if len(head) > self._silent[connection]:
                    self._silent[connection] = len(head)
                    _look_from(connection, len(head) + 1)
                    return
                if _ended([connection]):
                    self._close(connection)
                    return
                # The system does not wait for more bytes, so that it waits as any other request.
            self._selector.unregister(connection)
            del self._silent[connection]
            _look_from(connection, 1)
            answer = _answer_to(head, self._root_path)
            if answer is None and head:
                if self._has_place():
                    self._waiting.append(connection)
                    return
                answer = _response(HTTPStatus.SERVICE_UNAVAILABLE, _FULL)
            if answer is not None:
                connection.recv(_HEAD_BYTES)  # what is unread at the end would lose the answer
                connection.send(answer)
        except OSError:  # its client has left
            if connection in self._silent:
                self._close(connection)
        connection.close()

    def _has_place(self) -> bool:
        """Return whether one more may wait, if need be in place of clients that have left."""
        if len(self._waiting) >= _MOST:
            ended = _ended(self._waiting)
            left = [each for each in self._waiting if each.fileno() in ended]
            self._waiting = [each for each in self._waiting if each.fileno() not in ended]
            for each in left:
                each.close()
        return len(self._waiting) < _MOST


def _answer_to(head: bytes, root_path: str) -> bytes | None:
    """Return the response to a request for health; None for any other, or for a part of one."""
    method, _, rest = head.partition(b" ")
    target = rest.partition(b" ")[0].partition(b"?")[0]
    path = path_within(root_path, target.decode("latin-1"))
    if method not in _METHODS or path not in HEALTH or _END not in head:
        return None
    if path == "/health/live":
        return _response(HTTPStatus.OK, _LIVE, has_body=method == b"GET")
    return _response(HTTPStatus.SERVICE_UNAVAILABLE, _STARTING, has_body=method == b"GET")


def _may_become_health(head: bytes, root_path: str) -> bool:
    """Return whether more bytes could make a request for health of a part of one."""
    if not head or _END in head or len(head) >= _HEAD_BYTES:
        return False
    method, has_method, rest = head.partition(b" ")
    if not has_method:
        return any(each.startswith(method) for each in _METHODS)
    target, is_whole, _ = rest.partition(b" ")
    path = target.partition(b"?")[0].decode("latin-1")
    if method not in _METHODS:
        return False
    if is_whole or b"?" in target:
        return path_within(root_path, path) in HEALTH
    whole = [f"{prefix}{each}/" for each in HEALTH for prefix in (root_path, "")]
    return any(each.startswith(path) for each in whole)


def _ended(connections: Iterable[socket.socket]) -> set[int]:
    """Return the descriptors of those connections whose clients have left."""
    poll = select.poll()
    for each in connections:
        poll.register(each, select.POLLRDHUP)
    return {number for number, _ in poll.poll(0)}


def _look_from(connection: socket.socket, num_bytes: int) -> None:
    """Let a connection be ready to be looked at once it has so many bytes, or has ended."""
    with contextlib.suppress(OSError):  # it has ended
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, num_bytes)


def _response(status: HTTPStatus, body: bytes, *, has_body: bool = True) -> bytes:
    return b"\r\n".join(
        (
            b"HTTP/1.1 %d %s" % (status, status.phrase.encode()),
            b"content-type: application/json",
            b"content-length: %d" % len(body),
            b"retry-after: 1",
            b"connection: close",
            b"",
            body if has_body else b"",
        )
    )
