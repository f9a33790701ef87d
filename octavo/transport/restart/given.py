"""A listening socket that another process has opened, checked against the server's settings."""

from __future__ import annotations

import contextlib
import socket
from typing import Any, NamedTuple

from octavo.options.transport import ServerSettingsError, ServerStartError, TransportSettings
from octavo.transport.restart.handover import Predecessor, find_predecessor
from octavo.transport.restart.systemd import passed_socket
from octavo.transport.sockets import (
    STREAM_BYTES,
    beside,
    bind,
    bind_admin,
    bind_beside,
    bind_grpc,
)

_OTHERS = 0o077  # of a file's mode: what others than its user may


class Given(NamedTuple):
    """A listening socket, and the server that it comes from; None: from systemd, which keeps it."""

    listening: socket.socket
    predecessor: Predecessor | None


def given_socket(config: TransportSettings) -> Given | None:
    """Return the socket of systemd or of the server before this one; None: there is none."""
    try:
        listening = passed_socket()
    except ValueError as error:
        raise ServerSettingsError(str(error)) from error
    predecessor = None
    if listening is None and config.handover is not None:
        predecessor = find_predecessor(config.handover)
        listening = None if predecessor is None else predecessor.listening
    if listening is None:
        return None
    why = _difference(listening, config)
    if why:
        if predecessor is None:
            listening.detach()  # it is systemd's
        else:
            predecessor.close()
        raise ServerSettingsError(why)
    if predecessor is not None:
        predecessor.let_go()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, STREAM_BYTES)
    return Given(listening, predecessor)


def _difference(listening: socket.socket, config: TransportSettings) -> str:
    """Return why the socket is not the one that the settings describe, or nothing.

    The settings decide who needs a key, so the socket must be where they say.
    """
    found = listening.getsockname()
    if listening.family == socket.AF_UNIX:
        if config.uds is None or str(found) != str(config.uds):
            return f"the socket that is passed is at {found!r}: give the same path as --uds"
        is_open = bool(config.api_keys) or config.insecure_no_auth
        with contextlib.suppress(OSError):
            if not is_open and config.uds.stat().st_mode & _OTHERS:
                return (
                    f"others may connect to {found!r}, and there is no key: let the .socket unit "
                    "have SocketMode=0600, or give a key"
                )
        return ""
    if config.uds is not None:
        return f"the socket that is passed is at {found[0]}:{found[1]}, and not at uds={config.uds}"
    hosts = {each[4][0] for each in _addresses(config.host)}
    if found[0] not in hosts or config.port not in (0, found[1]):
        return (
            f"the socket that is passed is at {found[0]}:{found[1]}, and the settings say "
            f"{config.host}:{config.port}: give the same --host and --port, since they decide who "
            "needs a key"
        )
    return ""


def _addresses(host: str) -> list[tuple[Any, ...]]:
    try:
        return list(socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM))
    except OSError as error:
        raise ServerStartError(f"--host {host} has no address: {error}") from error


def check_addresses(config: TransportSettings) -> None:
    """Refuse addresses that cannot be used, before the model is loaded, which may take minutes."""
    given = given_socket(config)
    if config.handover is not None:
        bind_beside(config.handover, "handover socket", "--handover").close()
        beside(config.handover).unlink()
    if given is not None and given.predecessor is not None:
        given.predecessor.close()
        return  # its other sockets are replaced when it has left
    if given is None:
        bind(config).close()
        if config.uds is not None:
            config.uds.unlink()
    else:
        given.listening.detach()  # it is opened again when the server is ready
    if config.grpc_port is not None:
        bind_grpc(config).close()
    if config.admin_socket is not None:
        bind_admin(config.admin_socket).close()
        config.admin_socket.unlink()
