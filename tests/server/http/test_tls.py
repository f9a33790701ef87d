"""TLS: certificates that change, clients' certificates, handshakes that fail or never end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import ssl
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop

from octavo.options.server import ServerSettings
from octavo.options.transport import ServerSettingsError
from octavo.transport.tls import Certificates, make_context
from tests.server import make
from tests.server.http import certificates as pem
from tests.server.http.test_requests_behind import generation
from tests.server.http.test_socket import wait_until
from tests.server.make import LIMIT, events

listening = partial(make.listening, run=uvloop.run)  # the loop of the real server


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Return a directory with a certificate and its key, and the authority's certificate."""
    put(tmp_path, "cert.pem", pem.ONE)
    put(tmp_path, "key.pem", pem.ONE_KEY)
    put(tmp_path, "ca.pem", pem.AUTHORITY)
    put(tmp_path, "client.pem", pem.CLIENT + pem.CLIENT_KEY)
    return tmp_path


def put(directory: Path, name: str, text: str) -> None:
    """Replace a file in one step."""
    (directory / "new").write_text(text)
    os.replace(directory / "new", directory / name)


def settings(files: Path, **options: Any) -> dict[str, Any]:
    return {"ssl_certfile": files / "cert.pem", "ssl_keyfile": files / "key.pem", **options}


def trusting(client: Path | None = None) -> ssl.SSLContext:
    """Return the context of a client, with a certificate of its own or without."""
    context = ssl.create_default_context(cadata=pem.AUTHORITY)
    if client is not None:
        context.load_cert_chain(client)
    return context


def received(connection: socket.socket) -> bytes:
    """Return what comes next; a connection that the server has closed is an error."""
    part = connection.recv(65536)
    assert part, "the server has closed the connection"
    return part


def ask(port: int, client: Path | None = None) -> httpx.Response:
    with httpx.Client(verify=trusting(client), timeout=LIMIT) as session:
        body = {"prompt": "x", "max_tokens": 8, "stream": True}
        return session.post(f"https://127.0.0.1:{port}/v1/completions", json=body)


def name_of(port: int) -> str:
    """Return the name in the server's certificate."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=LIMIT) as plain,
        trusting().wrap_socket(plain, server_hostname="localhost") as secured,
    ):
        subject: Any = secured.getpeercert()
        return str(subject["subject"][0][0][1])


def test_a_stream_over_tls(directory: Path, files: Path) -> None:
    with listening(directory, **settings(files)) as life:
        response = ask(life.port)
        assert response.status_code == 200
        assert "error" not in events(response.text)[-1]
        wait_until(lambda: life.num_connections == 0)


def test_a_request_that_comes_with_the_end_of_the_handshake_is_read(
    directory: Path, files: Path
) -> None:
    """The client's last flight and its request may arrive in one packet."""
    with (
        listening(directory, **settings(files)) as life,
        socket.create_connection(("127.0.0.1", life.port), timeout=LIMIT) as plain,
    ):
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        session = trusting().wrap_bio(incoming, outgoing, server_hostname="localhost")
        is_done = False
        while not is_done:
            try:
                session.do_handshake()
                is_done = True
                session.write(generation(max_tokens=2))
            except ssl.SSLWantReadError:
                plain.sendall(outgoing.read())
                incoming.write(received(plain))
        plain.sendall(outgoing.read())
        answer = b""
        while b"text_completion" not in answer:
            incoming.write(received(plain))
            with contextlib.suppress(ssl.SSLWantReadError):
                while True:  # one record in each read
                    answer += session.read(65536)
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")


def test_a_certificate_that_changes_is_used_for_new_connections(
    files: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A certificate that cannot be used leaves the old one, with one line in the log."""
    found = Certificates(ServerSettings(**settings(files)))

    def refreshed() -> bool:
        before = found.context
        asyncio.run(found.refresh())
        return found.context is not before

    assert not refreshed()
    put(files, "cert.pem", pem.TWO)  # without its key yet
    with caplog.at_level(logging.ERROR):
        assert not refreshed()
        assert not refreshed()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "is not the key of the certificate" in caplog.text
    put(files, "key.pem", pem.TWO_KEY)
    assert refreshed()
    (files / "cert.pem").unlink()
    assert not refreshed()


def test_a_running_server_reads_a_changed_certificate(
    directory: Path, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.transport.tls._LOOK_SECONDS", 0.01)
    with listening(directory, **settings(files)) as life:
        assert name_of(life.port) == "one"
        put(files, "key.pem", pem.TWO_KEY)
        put(files, "cert.pem", pem.TWO)
        wait_until(lambda: name_of(life.port) == "two")


def test_clients_need_a_certificate_if_it_is_required(directory: Path, files: Path) -> None:
    options = settings(files, ssl_ca_certs=files / "ca.pem", ssl_cert_reqs=2)
    with listening(directory, **options) as life:
        assert ask(life.port, files / "client.pem").status_code == 200
        with pytest.raises(httpx.TransportError):
            ask(life.port)
        wait_until(lambda: life.num_connections == 0)


def test_optional_certificates_of_clients(directory: Path, files: Path) -> None:
    options = settings(files, ssl_ca_certs=files / "ca.pem", ssl_cert_reqs=1)
    with listening(directory, **options) as life:
        assert ask(life.port).status_code == 200
        assert ask(life.port, files / "client.pem").status_code == 200


def test_an_authority_that_changes_counts_for_new_connections(
    directory: Path, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.transport.tls._LOOK_SECONDS", 0.01)
    options = settings(files, ssl_ca_certs=files / "ca.pem", ssl_cert_reqs=2)

    def is_served() -> bool:
        with contextlib.suppress(httpx.TransportError):
            return ask(life.port, files / "client.pem").status_code == 200
        return False

    with listening(directory, **options) as life:
        assert is_served()
        put(files, "ca.pem", pem.OTHER_AUTHORITY)
        wait_until(lambda: not is_served())


@pytest.mark.parametrize(
    "sent", [b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\x16\x03\x01\x00\x05nonsense"]
)
def test_what_is_not_tls_is_closed_and_counted(
    directory: Path, files: Path, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with listening(directory, **settings(files)) as life:
        with (
            caplog.at_level(logging.WARNING),
            socket.create_connection(("127.0.0.1", life.port), timeout=LIMIT) as client,
            contextlib.suppress(ConnectionResetError),
        ):
            client.sendall(sent)
            while client.recv(65536):
                pass
        wait_until(lambda: life.server.metrics.refused_connections.value("tls") == 1)
        wait_until(lambda: life.num_connections == 0)
        assert not caplog.records
        assert ask(life.port).status_code == 200


@pytest.mark.parametrize("loop", [uvloop.run, asyncio.run])
def test_a_request_without_tls_is_answered(
    directory: Path, files: Path, loop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer arrives though the client has sent more than the server reads."""
    monkeypatch.setattr("octavo.transport.tls._SHUTDOWN_SECONDS", LIMIT)
    request = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
    request += b"Content-Length: 300000\r\n\r\n" + b"x" * 300_000
    with make.listening(directory, run=loop, **settings(files)) as life:
        for sent in (b"GET / HTTP/1.1\r\n\r\n", request):
            with socket.create_connection(("127.0.0.1", life.port), timeout=LIMIT) as client:
                client.sendall(sent)
                answer = b""
                while part := client.recv(65536):
                    answer += part
            head, _, body = answer.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
            assert "https://" in json.loads(body)["error"]["message"]
        wait_until(lambda: life.server.metrics.refused_connections.value("tls") == 2)
        wait_until(lambda: life.num_connections == 0)
        assert ask(life.port).status_code == 200


def test_a_handshake_has_as_long_as_a_head(directory: Path, files: Path) -> None:
    with (
        listening(directory, **settings(files, header_seconds=0.1)) as life,
        socket.create_connection(("127.0.0.1", life.port), timeout=LIMIT) as client,
    ):
        assert client.recv(1) == b""
        wait_until(lambda: life.num_connections == 0)


def test_connections_in_their_handshake_have_places(
    directory: Path, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Handshakes are limited, leave the health routes reachable, and do not delay the end."""
    for module in ("connection", "tls"):
        monkeypatch.setattr(f"octavo.transport.{module}.RESERVED_SECONDS", LIMIT)
    options = settings(files, max_connections=2, header_seconds=LIMIT)
    with contextlib.ExitStack() as held, listening(directory, **options) as life:
        address = ("127.0.0.1", life.port)
        for count in (1, 2):
            held.enter_context(socket.create_connection(address, LIMIT))
            wait_until(lambda count=count: life.num_connections == count)
        assert ask(life.port).status_code == 503
        with httpx.Client(verify=trusting(), timeout=LIMIT) as session:
            assert session.get(f"https://127.0.0.1:{life.port}/health").status_code == 200


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"key.pem": pem.TWO_KEY}, "is not the key of the certificate"),
        ({"key.pem": pem.ONE_KEY_ENCRYPTED}, "is encrypted"),
        ({"key.pem": "nonsense"}, "not a certificate and its key"),
        ({"cert.pem": ""}, "not a certificate and its key"),
        ({"ca.pem": "nonsense"}, "ssl_ca_certs=.*holds no certificate"),
        ({"key.pem": None}, "ssl_keyfile=.*cannot be read: no such file"),
        ({"cert.pem": None}, "ssl_certfile=.*cannot be read: no such file"),
        ({"ca.pem": None}, "ssl_ca_certs=.*cannot be read: no such file"),
    ],
)
def test_files_that_cannot_be_used_are_named(
    files: Path, changes: dict[str, str | None], message: str
) -> None:
    for name, text in changes.items():
        (files / name).unlink()
        if text is not None:
            put(files, name, text)
    with pytest.raises(ServerSettingsError, match=message):
        make_context(ServerSettings(**settings(files, ssl_ca_certs=files / "ca.pem")))


def test_a_file_may_hold_the_certificate_and_its_key(files: Path) -> None:
    put(files, "both.pem", pem.ONE + pem.ONE_KEY)
    make_context(ServerSettings(ssl_certfile=files / "both.pem"))


def test_a_certificate_without_its_key_asks_for_the_key(files: Path) -> None:
    put(files, "alone.pem", pem.ONE)
    message = "ssl_certfile=.*alone.pem: not a certificate and its key.* name it with ssl_keyfile"
    with pytest.raises(ServerSettingsError, match=message):
        make_context(ServerSettings(ssl_certfile=files / "alone.pem"))
