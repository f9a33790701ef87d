"""TLS: the server's certificate, which is read again when it changes, and bounded handshakes.

A connection has its place among all others since before its handshake, which has as much time as
the head of a request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol, cast

from octavo.options.transport import (
    ServerSettingsError,
    ServerStartError,
    TransportSettings,
    reason,
)
from octavo.transport.connections import RESERVED_SECONDS, Connections, Place
from octavo.transport.errors import ApiError

log = logging.getLogger(__name__)

_LOOK_SECONDS = 10.0  # between two looks at the files
_RETRY_SECONDS = 0.1  # after a failure to accept
_SHUTDOWN_SECONDS = 1.0  # for a client to acknowledge the end
_PLAIN_BYTES = 1 << 20  # of a request without TLS, which is not parsed
HTTP, HTTP2 = "http/1.1", "h2"  # the names of protocols in a handshake
_MODES = (ssl.CERT_NONE, ssl.CERT_OPTIONAL, ssl.CERT_REQUIRED)


class Accepted(Protocol):
    """A protocol of asyncio whose connection has a place since before its handshake."""

    place: Place | None
    was_made: bool  # `connection_made` was called


class Certificates:
    """The context for new handshakes, made anew when one of its files has changed."""

    def __init__(self, config: TransportSettings, protocol: str = HTTP) -> None:
        self._config = config
        self._protocol = protocol
        self._stamps = _stamps(config)
        self.context = make_context(config, protocol)

    async def watch(self) -> None:
        """Look at the files again and again."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            await self.refresh()

    async def refresh(self) -> None:
        """Read the files if one has changed; keep the old context if they cannot be used."""
        stamps = await asyncio.to_thread(_stamps, self._config)
        if stamps == self._stamps:
            return
        self._stamps = stamps
        try:
            self.context = await asyncio.to_thread(make_context, self._config, self._protocol)
        except ServerSettingsError as error:
            log.error("the changed certificate is not used, the old one stays: %s", error)
        else:
            log.info("the certificate has changed and was read again")


def make_context(config: TransportSettings, protocol: str = HTTP) -> ssl.SSLContext:
    """Return a context with the files of the settings; name the file that cannot be used.

    `protocol` is what clients agree on in the handshake.
    """
    assert config.ssl_certfile is not None, "TLS begins with a certificate"
    for name in ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs"):
        path: Path | None = getattr(config, name)
        try:
            if path is not None:
                path.read_bytes()
        except OSError as error:
            raise ServerStartError(
                f"{name}={path} cannot be read: {reason(error)}; name a file in PEM form that this "
                "user can read"
            ) from error
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols([protocol])
    key = config.ssl_keyfile or config.ssl_certfile
    try:
        context.load_cert_chain(config.ssl_certfile, key, partial(_refuse_password, key))
    except ssl.SSLError as error:
        raise ServerSettingsError(_about(error, config.ssl_certfile, key)) from error
    if config.ssl_ca_certs is not None:
        try:
            context.load_verify_locations(config.ssl_ca_certs)
        except ssl.SSLError as error:
            raise ServerSettingsError(
                f"ssl_ca_certs={config.ssl_ca_certs} holds no certificate in PEM form"
            ) from error
        # A ticket would outlive a change of the authorities.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
    context.verify_mode = _MODES[config.ssl_cert_reqs]
    return context


async def accept_securely(
    listening: socket.socket,
    connections: Connections,
    certificates: Certificates,
    make: Callable[[], Accepted],
) -> None:
    """Accept connections until it is cancelled, and shake hands with their clients.

    An event loop's server with TLS would start an unlimited number of handshakes.
    """
    loop = asyncio.get_running_loop()
    while True:
        try:
            accepted, address = await _accept(listening)
        except OSError as error:  # of a client that has gone, or out of descriptors
            log.debug("a connection was not accepted: %s", error)
            await asyncio.sleep(_RETRY_SECONDS)
            continue
        name = str(address[0]) if isinstance(address, tuple) else ""
        place = connections.enter(name, lambda: None)
        work = _shake_hands(accepted, place, connections, certificates.context, make())
        task = loop.create_task(work)
        place.close = task.cancel
        connections.handshakes[place] = task


async def _accept(listening: socket.socket) -> tuple[socket.socket, object]:
    """Wait for a connection; one that has just come is not lost when this is cancelled."""
    loop = asyncio.get_running_loop()
    accepting = loop.create_task(loop.sock_accept(listening))
    try:
        await asyncio.wait({accepting})
    except asyncio.CancelledError:
        if accepting.cancel() or accepting.exception() is not None:
            raise
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_soon(task.cancel)  # once more, when it is being served
    return accepting.result()


async def _shake_hands(
    accepted: socket.socket,
    place: Place,
    connections: Connections,
    context: ssl.SSLContext,
    protocol: Accepted,
) -> None:
    """Connect the protocol to its client; after that the protocol owns its place."""
    seconds = connections.config.header_seconds
    if place.refusal is not None:
        seconds = min(seconds, RESERVED_SECONDS)
    protocol.place = place
    began = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(seconds):
            first = await _first_byte(accepted)
        if first.isalpha():
            async with asyncio.timeout(_SHUTDOWN_SECONDS):
                await _answer_plain_http(accepted, connections)
            raise ConnectionAbortedError
        seconds = max(0.001, seconds - (asyncio.get_running_loop().time() - began))
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: cast("asyncio.Protocol", protocol),
            accepted,
            ssl=context,
            ssl_handshake_timeout=seconds,
            ssl_shutdown_timeout=_SHUTDOWN_SECONDS,
        )
    except OSError:  # of TLS, of the connection, or too late, which is a TimeoutError
        connections.metrics.refused_connections.add(1, "tls")
    finally:
        del connections.handshakes[place]
        if not protocol.was_made:
            connections.leave(place)
            accepted.close()


async def _first_byte(accepted: socket.socket) -> bytes:
    """Wait for a client's first byte, and leave it to be read; return nothing at the end."""
    loop = asyncio.get_running_loop()
    while True:
        is_readable = loop.create_future()
        loop.add_reader(accepted, _wake, is_readable)
        try:
            await is_readable
        finally:
            loop.remove_reader(accepted)
        with contextlib.suppress(BlockingIOError):
            return accepted.recv(1, socket.MSG_PEEK)


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


async def _answer_plain_http(accepted: socket.socket, connections: Connections) -> None:
    """Answer a request without TLS, which begins with a letter; a handshake does not.

    What the client still sends is read: closing earlier would reset the connection, and with it
    the answer.
    """
    loop = asyncio.get_running_loop()
    error = ApiError(400, "this port speaks TLS; use https:// in the address")
    await loop.sock_sendall(accepted, connections.response(error))
    accepted.shutdown(socket.SHUT_WR)
    num_left = _PLAIN_BYTES
    while num_left > 0 and (part := await loop.sock_recv(accepted, 1 << 16)):
        num_left -= len(part)


def _stamps(config: TransportSettings) -> tuple[object, ...]:
    """Return what changes when a file is replaced."""
    found: list[object] = []
    for path in (config.ssl_certfile, config.ssl_keyfile, config.ssl_ca_certs):
        try:
            status = None if path is None else path.stat()
        except OSError:
            status = None
        found.append(status and (status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(found)


def _refuse_password(key: Path) -> str:
    raise ServerSettingsError(
        f"the key in {key} is encrypted; write it without a pass phrase into a file that only the "
        "server can read: openssl pkey -in KEY -out NEW"
    )


def _about(error: ssl.SSLError, certificate: Path, key: Path) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"ssl_keyfile={key} is not the key of the certificate in ssl_certfile={certificate}"
    if key == certificate:
        return (
            f"ssl_certfile={certificate}: not a certificate and its key in PEM form; if the key is "
            "in another file, name it with ssl_keyfile"
        )
    return (
        f"ssl_certfile={certificate}, ssl_keyfile={key}: not a certificate and its key in PEM form"
    )
