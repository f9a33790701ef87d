"""The keys of links between machines: one shared secret becomes the keys of both of their ends.

The links are ZeroMQ's, with its CURVE: each end proves that it has its key, and what passes is
encrypted and cannot be changed. Neither key nor secret is ever sent.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

import zmq
from zmq.utils import z85

MIN_SECRET_BYTES, MAX_SECRET_BYTES = 16, 4096
KEY_BYTES = 32


class SecretError(ValueError):
    """A secret that cannot be used; the message says why, and never what it is."""


class EndKeys(NamedTuple):
    """The keys of one end of links, as ZeroMQ writes them."""

    public: bytes
    private: bytes


class LinkKeys(NamedTuple):
    """The keys of both ends, which everyone who has the secret can make."""

    front: EndKeys
    engine: EndKeys


def keys_of(secret: bytes) -> LinkKeys:
    """Return the keys that follow from a secret."""
    return LinkKeys(_end_keys(secret, b"octavo front"), _end_keys(secret, b"octavo engine"))


def _end_keys(secret: bytes, end: bytes) -> EndKeys:
    # Of a secret of any length; the secret of a file need not be random in each bit.
    digest = hashlib.blake2b(secret, digest_size=KEY_BYTES, person=end).digest()
    private = z85.encode(digest)
    return EndKeys(zmq.curve_public(private), private)


def read_secret(path: Path) -> bytes:
    """Return the secret in a file, without white space around it; raise SecretError."""
    try:
        with path.open("rb") as file:
            found = file.read(MAX_SECRET_BYTES + 1).strip()
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise SecretError(f"the secret in {path} cannot be read: {why}") from None
    if not MIN_SECRET_BYTES <= len(found) <= MAX_SECRET_BYTES:
        raise SecretError(
            f"the secret in {path} has {len(found)} bytes, and must have {MIN_SECRET_BYTES} to "
            f"{MAX_SECRET_BYTES}; make one: openssl rand -hex 32 > {path}"
        )
    return found


def use_as_front(socket: zmq.Socket[bytes], keys: LinkKeys, domain: bytes) -> None:
    """Let a socket that will be bound accept engines alone; `domain` is asked for their key."""
    socket.curve_server = True
    socket.curve_publickey, socket.curve_secretkey = keys.front
    socket.zap_domain = domain


def use_as_engine(socket: zmq.Socket[bytes], keys: LinkKeys) -> None:
    """Let a socket that will be connected speak with the front end alone."""
    socket.curve_serverkey = keys.front.public
    socket.curve_publickey, socket.curve_secretkey = keys.engine
