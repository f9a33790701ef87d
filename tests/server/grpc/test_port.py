"""The port of gRPC: TLS, certificates that change, and few descriptors."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvloop

from benchmarks.hostile.http2 import Http2
from benchmarks.hostile.run import SETTINGS
from benchmarks.served.client import Served
from octavo.options.server import ServerSettings
from octavo.options.transport import ServerStartError
from octavo.transport.restart.given import check_addresses
from tests.server import make
from tests.server.engine import make_directory
from tests.server.grpc.test_hostile import CHECK, OK, answers, wait_until
from tests.server.http import certificates as pem
from tests.server.make import LIMIT

grpc = pytest.importorskip("grpc")
pytest.importorskip("octavo.dialects.grpc.octavo_pb2", reason="built by `make setup`")

listening: Any = partial(make.listening, run=uvloop.run)  # the loop of the real server


@pytest.fixture
def secured(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """Return a directory with certificates, and the options of a server that uses them."""
    files = {"cert.pem": pem.ONE, "key.pem": pem.ONE_KEY, "ca.pem": pem.AUTHORITY}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    chain = {"ssl_certfile": tmp_path / "cert.pem", "ssl_keyfile": tmp_path / "key.pem"}
    return tmp_path, {"grpc_port": 0, **chain}


def health(port: int, **credentials: bytes) -> bytes:
    """Return the answer to a question for health over TLS."""
    made = grpc.ssl_channel_credentials(pem.AUTHORITY.encode(), **credentials)
    with grpc.secure_channel(f"127.0.0.1:{port}", made) as channel:
        answer: bytes = channel.unary_unary(CHECK)(b"", timeout=LIMIT)
        return answer


def name_of(port: int) -> str:
    """Return the name in the server's certificate; the client offers HTTP/2."""
    context = ssl.create_default_context(cadata=pem.AUTHORITY)
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", port), timeout=LIMIT) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as wrapped,
    ):
        assert wrapped.selected_alpn_protocol() == "h2"
        subject: Any = wrapped.getpeercert()
        return str(subject["subject"][0][0][1])


def test_calls_over_tls_and_a_certificate_that_changes(
    secured: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.transport.tls._LOOK_SECONDS", 0.01)
    files, options = secured
    with listening(make_directory(files), **options) as life:
        assert health(life.grpc.port) == b"\x08\x01"  # SERVING
        assert name_of(life.grpc.port) == "one"
        (files / "key.pem").write_text(pem.TWO_KEY)
        (files / "cert.pem").write_text(pem.TWO)
        wait_until(lambda: name_of(life.grpc.port) == "two")
        wait_until(lambda: life.grpc._relay.connections.num_open == 0)


def test_clients_need_a_certificate_if_it_is_required(
    secured: tuple[Path, dict[str, Any]],
) -> None:
    files, options = secured
    options |= {"ssl_ca_certs": files / "ca.pem", "ssl_cert_reqs": 2}
    directory = make_directory(files)
    with listening(directory, header_seconds=LIMIT, **options) as life:
        own = {"private_key": pem.CLIENT_KEY.encode(), "certificate_chain": pem.CLIENT.encode()}
        assert health(life.grpc.port, **own) == b"\x08\x01"
        with pytest.raises(grpc.RpcError):
            health(life.grpc.port)
        connections = life.grpc._relay.connections
        wait_until(lambda: connections.num_open == 0)
        with socket.create_connection(("127.0.0.1", life.grpc.port), LIMIT):
            wait_until(lambda: connections.num_open == 1)  # in its handshake
        wait_until(lambda: connections.num_open == 0)
    with listening(directory, header_seconds=0.1, **options) as life:
        with socket.create_connection(("127.0.0.1", life.grpc.port), LIMIT) as silent:
            assert silent.recv(1) == b""
        wait_until(lambda: life.grpc._relay.connections.num_open == 0)


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = ServerSettings(port=0, grpc_port=taken.getsockname()[1])
        with pytest.raises(ServerStartError, match="--grpc-port"):
            check_addresses(config)


def get(port: int, path: str, body: Any = None) -> int:
    """Return the status of a request over HTTP."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
    headers = {"authorization": f"Bearer {SETTINGS['server']['api_keys'][0]}"}
    data = None if body is None else json.dumps(body)
    with contextlib.closing(connection):
        connection.request("GET" if body is None else "POST", path, data, headers)
        return connection.getresponse().status


@pytest.mark.slow
def test_idle_connections_leave_descriptors_for_others() -> None:
    """The server may have 400 open files, and clients open 600 connections of gRPC."""
    times = [*make.PATIENT, "header_seconds", "body_seconds", "stall_seconds"]
    server = SETTINGS["server"] | dict.fromkeys(times, LIMIT)
    server |= {"grpc_port": 0, "max_connections": 4096}
    timing = dict.fromkeys(("silence_seconds", "watchdog_seconds"), LIMIT)
    settings = SETTINGS | {"model": None, "server": server, "max_files": 400, "timing": timing}
    with Served(settings) as served, contextlib.ExitStack() as stack:
        port = int(served.start["grpc_port"])
        for number in range(600):
            address = (f"127.0.{1 + number // 40}.1", 0)
            try:
                made = socket.create_connection(("127.0.0.1", port), LIMIT, address)
            except OSError:
                continue
            stack.callback(made.close)
        assert get(served.port, "/health/live") == 200
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
        assert get(served.port, "/v1/chat/completions", body) == 200
        with Http2(port, "127.0.99.1") as client:
            assert client.end_of(client.call(CHECK)) == OK
        stack.close()
        # Once the server has noticed that they are closed.
        wait_until(lambda: answers(port, server["api_keys"][0], "127.0.99.1"))
        assert served.end() == 0
