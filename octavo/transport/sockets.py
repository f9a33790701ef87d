"""Opens the sockets that a server listens on; errors say what to change."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import socket
from pathlib import Path

from octavo.options.transport import ServerStartError, TransportSettings, reason
from octavo.transport.connections import NUM_RESERVED

log = logging.getLogger(__name__)

STREAM_BYTES = 256 << 10
_OWN_MODE, _OPEN_MODE = 0o600, 0o666  # of unix sockets: for this user, and for those with a key
_OTHER_FILES = NUM_RESERVED + 96  # descriptors besides connections with a place
_OTHER_FILES_OF_GRPC = 24
_FILES_OF_RELAYED = 3  # of a connection of gRPC: the client's, and both ends of that to grpcio
_SHARE_OF_GRPC = 4  # connections of HTTP for each of gRPC


def bind(config: TransportSettings) -> socket.socket:
    """Return clients' bound socket; raise ServerStartError if the address cannot be used."""
    if config.uds is not None:
        is_open = bool(config.api_keys) or config.insecure_no_auth
        mode = _OPEN_MODE if is_open else _OWN_MODE
        listening = bind_unix(config.uds, mode, "unix socket", "--uds")
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, STREAM_BYTES)
        return listening
    return _bind_port(config.host, config.port, "--port")


def bind_grpc(config: TransportSettings) -> socket.socket:
    """Return the bound socket of gRPC; raise ServerStartError if the port cannot be used."""
    assert config.grpc_port is not None, "gRPC is served"
    return _bind_port(config.host, config.grpc_port, "--grpc-port")


def _bind_port(host: str, port: int, flag: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Connections inherit it: it limits unread data in the kernel too.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, STREAM_BYTES)
    try:
        listening.bind((host.strip("[]"), port))
    except OSError as error:
        listening.close()
        raise ServerStartError(
            f"{host}:{port} cannot be bound ({reason(error)}): {_advice(error, flag)}"
        ) from error
    return listening


def _advice(error: OSError, flag: str) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return f"choose another {flag}, or stop the program that listens there"
        case errno.EACCES:
            return f"choose a {flag} above 1023; lower ones are reserved for the system"
    return "choose another --host: an address of this machine, or 0.0.0.0 for all of them"


def bind_admin(path: Path) -> socket.socket:
    """Return a unix socket that only this user can connect to."""
    return bind_unix(path, _OWN_MODE, "admin socket", "--admin-socket")


def bind_unix(path: Path, mode: int, what: str, flag: str) -> socket.socket:
    """Return a bound unix socket with these permissions; the last two name it in errors."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket():
            _check_abandoned(path, what, flag)
            path.unlink()  # left by a server that was killed
        before = os.umask(0o177)  # so that no other user connects before chmod
        try:
            listening.bind(str(path))
        finally:
            os.umask(before)
        path.chmod(mode)
    except OSError as error:
        listening.close()
        why = "there is another file" if error.errno == errno.EADDRINUSE else reason(error)
        advice = f"choose another path for {flag}, a short one in a directory that you may write to"
        if not path.parent.is_dir():
            why = f"there is no directory {path.parent}"
            advice = "create it first, with the permissions that the clients need"
        raise ServerStartError(f"the {what} {path} cannot be created: {why}; {advice}") from error
    except ServerStartError:
        listening.close()
        raise
    return listening


def descriptors_for(config: TransportSettings, num_beside: int = 0) -> int:
    """Raise this process's limit of open files if necessary; return how many connections fit.

    `num_beside` is how many connections it makes itself.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most, others = config.max_connections, _OTHER_FILES + num_beside
    files_of_grpc = 0
    if config.grpc_port is not None:
        files_of_grpc = _FILES_OF_RELAYED * grpc_connections(most)
        others += _FILES_OF_RELAYED * NUM_RESERVED + _OTHER_FILES_OF_GRPC
    wanted = most + files_of_grpc + others
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return most
    fitting = max((soft - others) * most // (most + files_of_grpc), soft // 4, 1)
    log.warning(
        "max_connections=%d is lowered to %d: this process may have %d open files (ulimit -n)",
        *(most, fitting, soft),
    )
    return fitting


def grpc_connections(max_connections: int) -> int:
    """Return how many connections gRPC has beside this many of HTTP: each carries many calls."""
    return max(1, max_connections // _SHARE_OF_GRPC)


def _check_abandoned(path: Path, what: str, flag: str) -> None:
    """Raise if a server answers: replacing its socket would cut off its operators."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.settimeout(1.0)
        with contextlib.suppress(ConnectionRefusedError):
            caller.connect(str(path))
            raise ServerStartError(
                f"another server answers at the {what} {path}: choose another path for {flag}, or "
                "stop that server"
            )


def bind_beside(path: Path, what: str, flag: str) -> socket.socket:
    """Return a unix socket of this user's that `put_in_place` moves to the path.

    It listens at once, so that a second server which starts beside this one sees that it lives.
    """
    if path.exists() and not path.is_socket():
        raise ServerStartError(
            f"the {what} {path} cannot be created: there is another file; choose another path for "
            f"{flag}"
        )
    listening = bind_unix(beside(path), _OWN_MODE, what, flag)
    listening.listen(1)
    return listening


def beside(path: Path) -> Path:
    """Return where a socket waits until the one at the path is another server's no more."""
    return path.with_name(path.name + ".new")


def put_in_place(path: Path) -> None:
    """Move the socket of `bind_beside` to its path, in place of the one that is there."""
    beside(path).replace(path)
