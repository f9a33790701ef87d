"""Limits of connections, and the reserve in which a full server answers for its health."""

from __future__ import annotations

import contextlib
import resource
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvloop

from octavo.options.server import ServerSettings
from octavo.server.lifecycle import ServerLifecycle
from octavo.transport import connections
from octavo.transport.sockets import descriptors_for, grpc_connections
from tests.server import make
from tests.server.http.test_socket import get, post, talk, wait_until
from tests.server.make import LIMIT

listening = partial(make.listening, run=uvloop.run)  # the loop of the real server

HEALTH = ("/health", "/health/live", "/health/ready")


@contextlib.contextmanager
def full(
    directory: Path, options: dict[str, Any], reserved_seconds: float = LIMIT
) -> Iterator[tuple[ServerLifecycle, list[socket.socket]]]:
    """Serve with all places taken by connections that send nothing."""
    with (
        pytest.MonkeyPatch.context() as patch,
        listening(directory, header_seconds=LIMIT, **options) as life,
        contextlib.ExitStack() as held,
    ):
        patch.setattr("octavo.transport.connection.RESERVED_SECONDS", reserved_seconds)
        connect = socket.create_connection
        taken = [held.enter_context(connect(("127.0.0.1", life.port))) for _ in range(2)]
        wait_until(lambda: life.num_connections == 2)
        yield life, taken


@pytest.mark.parametrize(
    ("options", "status"),
    [({"max_connections": 2}, 503), ({"max_connections_per_client": 2}, 429)],
)
def test_a_full_server_answers_for_its_health_alone(
    directory: Path, options: dict[str, Any], status: int
) -> None:
    with full(directory, options) as (life, taken):
        for path in HEALTH:
            response = get(life.port, path)
            assert response.status_code == 200
            assert response.headers["connection"] == "close", "its place is for the next one"
            assert get(life.port, path + "?x=y").status_code == 200
        for path in ("/v1/models", "/", "/health/", "/metrics", "/healthy"):
            if path == "/health/":
                continue  # the same route
            response = get(life.port, path)
            assert response.status_code == status, path
            assert response.json()["error"]["code"] == "too_many_connections"
            assert response.headers["retry-after"] == "1"
        assert post(life.port, "/v1/completions", {"prompt": "x"}).status_code == status
        assert life.server.metrics.refused_connections.value(str(status)) == 5
        taken[0].close()
        wait_until(lambda: life.num_connections == 1)
        assert get(life.port, "/v1/models").status_code == 200
    assert life.num_connections == 0


def test_idle_connections_do_not_fill_the_reserve(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full reserve closes its oldest connection; that one learns why."""
    monkeypatch.setattr(connections, "NUM_RESERVED", 3)
    with full(directory, {"max_connections": 2}) as (life, _), contextlib.ExitStack() as held:
        idle = [
            held.enter_context(socket.create_connection(("127.0.0.1", life.port), timeout=LIMIT))
            for _ in range(10)
        ]
        for connection in idle[:7]:
            assert connection.recv(65536).startswith(b"HTTP/1.1 503 ")
        assert get(life.port, "/health/live").status_code == 200
        assert idle[7].recv(65536).startswith(b"HTTP/1.1 503 ")


def test_an_idle_connection_in_the_reserve_is_refused_soon(directory: Path) -> None:
    with full(directory, {"max_connections": 2}, reserved_seconds=0.01) as (life, _):
        assert talk(life.port, b"").startswith(b"HTTP/1.1 503 ")


def test_connections_are_counted_in_the_metrics(directory: Path) -> None:
    with full(directory, {"max_connections": 3}) as (life, _):
        text = get(life.port, "/metrics").text
        assert 'octavo:connections{model_name="tiny",engine="0"} 3' in text
        wait_until(lambda: life.num_connections == 2)
        talk(life.port, b"NONSENSE\r\n\r\n")
        text = get(life.port, "/metrics").text
        assert 'octavo:protocol_refusals_total{model_name="tiny",engine="0",status="400"} 1' in text


@pytest.mark.parametrize(
    ("soft", "hard", "fitting", "raised_to"),
    [
        (256, 100_000, 1000, 1128),
        (256, resource.RLIM_INFINITY, 1000, 1128),
        (5000, 5000, 1000, None),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 1000, None),
        (256, 1024, 896, 1024),
        (256, 256, 128, 256),
        (40, 40, 10, 40),
    ],
)
def test_as_many_connections_as_there_are_descriptors(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, fitting: int, raised_to: int | None
) -> None:
    """The limit of open files is raised as far as allowed, and lowers that of connections."""
    limits = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda which, pair: limits.append(pair))
    assert descriptors_for(ServerSettings(max_connections=1000)) == fitting
    assert limits[-1] == (raised_to or soft, hard)


@pytest.mark.parametrize(("hard", "raised_to"), [(100_000, 1998), (1024, 1024), (512, 512)])
def test_connections_of_grpc_have_descriptors_beside_those_of_http(
    monkeypatch: pytest.MonkeyPatch, hard: int, raised_to: int
) -> None:
    limits = [(256, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda which, pair: limits.append(pair))
    fitting = descriptors_for(ServerSettings(max_connections=1000, grpc_port=0))
    assert limits[-1] == (raised_to, hard)
    both = fitting + 3 * grpc_connections(fitting)
    reserves = 4 * connections.NUM_RESERVED
    assert hard > 50_000 or raised_to - 130 < both + reserves + 96 <= raised_to
    assert (fitting == 1000) == (hard > 50_000)
