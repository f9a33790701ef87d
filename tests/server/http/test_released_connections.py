"""Connections that have been closed leave nothing that only a garbage collection would free."""

from __future__ import annotations

import gc
import json
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from octavo.serving.exchange import Exchange
from octavo.transport.connection import Connection
from octavo.transport.response import Response
from octavo.transport.safe_transport import SafeTransport
from tests.server.make import LIMIT, listening

BODY = json.dumps({"prompt": "x", "max_tokens": 3, "stream": True}).encode()
POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
WHOLE = POST + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
REQUESTS = {
    "answered": WHOLE,
    "refused": POST.replace(b"/v1", b"/nothing") + b"\r\n",
    "malformed": POST + b"no colon\r\n\r\n",
    "pipelined": WHOLE * 3,
    "incomplete": WHOLE[:-5],
    "empty": b"",
}
KINDS = (Connection, Response, SafeTransport, Exchange)


def living() -> list[str]:
    """Return the types of the objects of connections that have not been freed.

    `isinstance` would read `__class__` of every object in the process, and one of torch's objects
    warns when it is read.
    """
    types = map(type, gc.get_objects())
    return [each.__name__ for each in types if issubclass(each, KINDS)]


def comes_true(condition: Callable[[], bool]) -> bool:
    """Return whether a condition holds before long."""
    until = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.005)
    return True


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("name", REQUESTS)
def test_a_closed_connection_is_freed_at_once(directory: Path, name: str, reads: bool) -> None:
    with listening(directory) as life:
        gc.collect()
        assert not living()
        gc.disable()
        gc.freeze()  # so that each look below is at what is new alone
        try:
            with socket.create_connection(("127.0.0.1", life.port), LIMIT) as client:
                client.sendall(REQUESTS[name])
                if reads and name not in ("incomplete", "empty"):
                    assert client.recv(1)
            gone = comes_true(lambda: not living())
        finally:
            gc.enable()
        assert gone, living()
