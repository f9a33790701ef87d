"""Opens the sockets that a server listens on; errors say what to change."""

from __future__ import annotations

import contextlib
import errno
import socket
from pathlib import Path

from octavo.server.settings import ServerSettings, ServerSettingsError, reason

STREAM_BYTES = 256 << 10


def bind(config: ServerSettings) -> socket.socket:
    """Return the bound socket; raise ServerSettingsError for an address that cannot be used."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Connections inherit it: it limits unread data in the kernel too.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, STREAM_BYTES)
    try:
        listening.bind((config.host.strip("[]"), config.port))
    except OSError as error:
        listening.close()
        raise ServerSettingsError(
            f"{config.host}:{config.port} cannot be bound ({reason(error)}): {_advice(error)}"
        ) from error
    return listening


def _advice(error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return "choose another --port, or stop the program that listens there"
        case errno.EACCES:
            return "choose a --port above 1023; lower ones are reserved for the system"
    return "choose another --host: an address of this machine, or 0.0.0.0 for all of them"


def bind_admin(path: Path) -> socket.socket:
    """Return a unix socket that only this user can connect to."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.is_socket():
            _check_abandoned(path)
            path.unlink()  # left by a server that was killed
        listening.bind(str(path))
        path.chmod(0o600)
    except OSError as error:
        listening.close()
        why = "there is another file" if error.errno == errno.EADDRINUSE else reason(error)
        raise ServerSettingsError(
            f"the admin socket {path} cannot be created: {why}; choose another path for "
            "--admin-socket, a short one in a directory that you may write to"
        ) from error
    except ServerSettingsError:
        listening.close()
        raise
    return listening


def _check_abandoned(path: Path) -> None:
    """Raise if a server answers: replacing its socket would cut off its operators."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.settimeout(1.0)
        with contextlib.suppress(ConnectionRefusedError):
            caller.connect(str(path))
            raise ServerSettingsError(
                f"another server answers at the admin socket {path}: choose another path for "
                "--admin-socket, or stop that server"
            )


def check_addresses(config: ServerSettings) -> None:
    """Raise for addresses that cannot be used, before a model is loaded for minutes."""
    bind(config).close()
    if config.admin_socket is not None:
        bind_admin(config.admin_socket).close()
        config.admin_socket.unlink()
