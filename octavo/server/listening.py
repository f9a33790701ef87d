"""The sockets that a server listens on, and what is wrong with an address said in words."""

from __future__ import annotations

import socket
from pathlib import Path

from octavo.server.config import ServerConfig, ServerConfigError

STREAM_BYTES = 256 << 10


def bind(config: ServerConfig) -> socket.socket:
    """The listening socket; what is wrong with the address is said in words."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Connections inherit it: what a reader has not taken is bounded, in the kernel too.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, STREAM_BYTES)
    try:
        listening.bind((config.host.strip("[]"), config.port))
    except OSError as error:
        listening.close()
        raise ServerConfigError(
            f"{config.host}:{config.port} cannot be bound ({error.strerror}): "
            "choose another --port, or end what listens there"
        ) from error
    return listening


def bind_admin(path: Path) -> socket.socket:
    """A unix socket that only this user can open."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.is_socket():
        path.unlink()  # of a server that was killed
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(str(path))
        path.chmod(0o600)
    except OSError as error:
        listening.close()
        raise ServerConfigError(
            f"the admin socket {path} cannot be made: {error.strerror}"
        ) from error
    return listening
