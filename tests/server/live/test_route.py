"""The live stream over a socket: its key, its form, its end."""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.server.lifecycle import ServerLifecycle
from octavo.serving.live import feed, routes
from octavo.transport.errors import ApiError
from tests.server.durable.make import KEY
from tests.server.make import LIMIT, listening

BEARER = {"authorization": f"Bearer {KEY}"}


@contextlib.contextmanager
def asked(port: int, method: str = "GET", **headers: str) -> Iterator[http.client.HTTPResponse]:
    """Yield a response, whose connection ends with the block."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
    connection.request(method, "/v1/live", headers=headers)
    response = connection.getresponse()
    try:
        yield response
    finally:
        response.close()
        connection.close()


def until_empty(life: ServerLifecycle) -> None:
    """Wait until the server has no listener: who has left is none any more."""
    end = time.monotonic() + LIMIT
    while life.server.live.listeners and time.monotonic() < end:
        time.sleep(0.01)
    assert life.server.live.listeners == []


def test_frames_come_as_events_to_who_has_a_key(directory: Path) -> None:
    with listening(directory, api_keys=(KEY,)) as life:
        with asked(life.port) as refused:
            assert refused.status == 401
        with asked(life.port, **BEARER) as response:
            assert response.status == 200
            assert response.getheader("content-type") == "text/event-stream; charset=utf-8"
            for _ in range(2):
                frame = json.loads(response.readline().removeprefix(b"data: "))
                assert frame["models"][0]["name"] == "tiny"
                assert response.readline() == b"\n"
            with asked(life.port, "HEAD", **BEARER) as head:
                assert (head.status, head.read()) == (200, b"")
            assert len(life.server.live.listeners) == 1
        until_empty(life)


def test_a_stream_ends_after_its_time(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "LISTEN_SECONDS", 0.01)
    with listening(directory) as life, asked(life.port) as response:
        assert response.read().endswith(b"data: [DONE]\n\n")
        until_empty(life)


def test_a_client_that_reads_nothing_is_disconnected(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "FRAME_SECONDS", 0.001)
    with listening(directory, stall_seconds=0.05) as life, asked(life.port) as response:
        assert response.readline()
        until_empty(life)
        assert life.server.metrics.slow_readers.value() == 1


def test_the_end_of_the_server_is_the_end_of_the_stream(directory: Path) -> None:
    with listening(directory) as life, asked(life.port) as response:
        assert response.readline()
        life.end_from_outside()
        rest = response.read()  # IncompleteRead if the stream were cut
    assert rest.startswith(b"\n")


def test_a_server_that_is_replaced_does_not_wait_for_listeners(directory: Path) -> None:
    """Let the connection end too: its client would come again on it."""
    long = 2 * LIMIT  # that the drain may take
    with listening(directory, drain_seconds=long) as life, asked(life.port) as response:
        assert response.readline()
        assert response.getheader("connection") == "close"
        assert life._loop is not None
        life._loop.call_soon_threadsafe(life.leave)
        assert response.read().endswith(b"data: [DONE]\n\n")
        until_empty(life)
        end = time.monotonic() + LIMIT
        while life.num_connections and time.monotonic() < end:
            time.sleep(0.01)
        assert life.num_connections == 0
        with pytest.raises(ApiError) as refused:
            life.server.live.join("")
        assert refused.value.code == "server_shutdown"
