"""A port that leads to a unix socket, for clients that know ports alone."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Send on what comes until it ends, and then the end."""
    with contextlib.suppress(OSError):  # either side may go at any time
        while part := source.recv(1 << 16):
            target.sendall(part)
        target.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def relayed(path: Path) -> Iterator[str]:
    """Yield the address of a port whose connections lead to a unix socket."""

    class Handler(socketserver.BaseRequestHandler):
        """One connection; a thread for each direction."""

        def handle(self) -> None:
            with socket.socket(socket.AF_UNIX) as inner:
                inner.connect(str(path))
                back = threading.Thread(target=_copy, args=(inner, self.request))
                back.start()
                _copy(self.request, inner)
                back.join()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
