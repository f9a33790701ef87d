"""The listening socket while an engine loads: health is answered, and other requests wait.

A thread accepts connections and looks at what they have sent, without taking it. A request for the
server's health is answered there; any other stays unread in its connection, which the server takes
over when it is ready. What is not accepted waits in the kernel's queue.
"""

from __future__ import annotations

import errno
import selectors
import socket
import threading

from octavo.options.transport import TransportSettings
from octavo.transport.restart.systemd import passed_socket
from octavo.transport.sockets import bind

_BACKLOG = 2048
_MOST = 256  # connections that wait here
_HEAD_BYTES = 8192
_END = b"\r\n\r\n"
_STARTING = b'{"status":"starting"}'
_LIVE = b'{"status":"live"}'
_ANSWERS = {
    **dict.fromkeys((b"/health", b"/health/ready", b"/ping"), (503, _STARTING)),
    b"/health/live": (200, _LIVE),
}
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PAUSE_SECONDS = 0.1
_REASONS = {200: b"OK", 503: b"Service Unavailable"}


def waiting_room(config: TransportSettings) -> WaitingRoom | None:
    """Open the clients' socket, if the server is the first there, and its requests can be read."""
    if config.uds is not None or config.ssl_certfile is not None or config.handover is not None:
        return None
    given = passed_socket()
    if given is not None:
        given.detach()  # it is systemd's, where connections wait already
        return None
    return WaitingRoom(bind(config))


class WaitingRoom:
    """A listening socket with the connections that wait until the server is ready."""

    def __init__(self, listening: socket.socket) -> None:
        self.listening = listening
        self._waiting: list[socket.socket] = []
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        listening.listen(_BACKLOG)
        listening.setblocking(False)
        self._selector.register(listening, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._num_open = 0
        self._pause: float | None = None  # until it is tried again to accept
        self._thread = threading.Thread(target=self._run, name="waiting-room", daemon=True)
        self._thread.start()

    def leave(self) -> list[socket.socket]:
        """Accept nothing more, and return the connections that wait."""
        if self._thread.is_alive():
            self._wake.send(b"x")
            self._thread.join()
        left = [*self._waiting, *self._unread()]
        self._waiting = []
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

    def _unread(self) -> list[socket.socket]:
        """Return the connections that have sent nothing yet."""
        ours = (self.listening, self._woken)
        found = (each.fileobj for each in self._selector.get_map().values())
        return [each for each in found if isinstance(each, socket.socket) and each not in ours]

    def _run(self) -> None:
        while True:
            found = self._selector.select(self._pause)
            if not found:  # descriptors may be free by now
                self._pause = None
                self._accepts(self._num_open < _MOST)
            for key, _ in found:
                if key.fileobj is self._woken:
                    return
                if key.fileobj is self.listening:
                    self._accept()
                elif isinstance(key.fileobj, socket.socket):
                    self._look(key.fileobj)

    def _accept(self) -> None:
        try:
            connection, _ = self.listening.accept()
        except OSError as error:
            if error.errno in _NO_ROOM:
                self._accepts(False)
                self._pause = _PAUSE_SECONDS
            return  # or else its client has left
        connection.setblocking(False)
        self._selector.register(connection, selectors.EVENT_READ)
        self._num_open += 1
        self._accepts(self._num_open < _MOST)

    def _look(self, connection: socket.socket) -> None:
        """Answer a request for health; let any other wait."""
        self._selector.unregister(connection)
        try:
            head = connection.recv(_HEAD_BYTES, socket.MSG_PEEK)
            answer = _answer_to(head)
            if answer is None and head:
                self._waiting.append(connection)
                return
            if answer is not None:
                connection.recv(head.index(_END) + len(_END))
                connection.send(answer)
        except OSError:  # its client has left
            pass
        connection.close()
        self._num_open -= 1
        self._accepts(True)

    def _accepts(self, is_open: bool) -> None:
        """Accept connections from now on, or leave them to the kernel's queue."""
        if is_open and self.listening not in self._selector.get_map():
            self._selector.register(self.listening, selectors.EVENT_READ)
        elif not is_open and self.listening in self._selector.get_map():
            self._selector.unregister(self.listening)


def _answer_to(head: bytes) -> bytes | None:
    """Return the response to a request for health; None for any other, or for a part of one."""
    method, _, rest = head.partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0]
    if method != b"GET" or path not in _ANSWERS or _END not in head:
        return None
    status, body = _ANSWERS[path]
    return b"\r\n".join(
        (
            b"HTTP/1.1 %d %s" % (status, _REASONS[status]),
            b"content-type: application/json",
            b"content-length: %d" % len(body),
            b"retry-after: 1",
            b"connection: close",
            b"",
            body,
        )
    )
