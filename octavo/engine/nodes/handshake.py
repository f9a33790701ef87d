"""The handshake of two nodes: each proves that it has the secret, and keys for frames follow.

The first node sends a number that was never used before, and the other one answers with another
and a proof, which is a keyed digest of both. Only then the first node proves the same: to a
stranger it says nothing from which a secret could be guessed. Neither secret nor keys are sent.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import NamedTuple

MAGIC = b"octavo\0\1"  # the last byte counts versions of this handshake
_NUMBER_BYTES = _DIGEST_BYTES = 32
GREETING_BYTES = len(MAGIC) + _NUMBER_BYTES
ANSWER_BYTES = GREETING_BYTES + _DIGEST_BYTES
VERDICT_BYTES = 1 + _DIGEST_BYTES
OTHER_SECRET = bytes(VERDICT_BYTES)


class HandshakeError(Exception):
    """An error for what is no handshake of ours, or one with another secret."""


class FrameKeys(NamedTuple):
    """The keys of a connection, one for each direction."""

    sending: bytes
    receiving: bytes


class _Shared:
    """The secret, and the two numbers of the connection, which both ends know."""

    def __init__(self, secret: bytes, first: bytes, other: bytes) -> None:
        # Of a secret of any length; the secret of a file need not be random in each bit.
        self._key = hashlib.blake2b(secret, digest_size=32, person=b"octavo nodes").digest()
        self._numbers = first + other

    def digest(self, purpose: bytes) -> bytes:
        """Return a digest that only who has the secret can make."""
        return hashlib.blake2b(
            self._numbers, digest_size=_DIGEST_BYTES, key=self._key, person=purpose
        ).digest()


class FirstEnd:
    """The first node's end of a handshake."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._number = secrets.token_bytes(_NUMBER_BYTES)
        self.greeting = MAGIC + self._number

    def check(self, answer: bytes) -> tuple[bytes, FrameKeys]:
        """Return the verdict to be sent and the keys; raise HandshakeError for any other answer.

        One of ours with another secret gets OTHER_SECRET.
        """
        if answer[: len(MAGIC)] != MAGIC:
            raise HandshakeError("it is no node of this version of Octavo")
        number, proof = answer[len(MAGIC) : GREETING_BYTES], answer[GREETING_BYTES:]
        shared = _Shared(self._secret, self._number, number)
        if not hmac.compare_digest(proof, shared.digest(b"node")):
            raise HandshakeError("it has another secret (--link-secret-file)")
        keys = FrameKeys(shared.digest(b"to node"), shared.digest(b"to first node"))
        return b"\1" + shared.digest(b"first node"), keys


class OtherEnd:
    """The end of a node that joins."""

    def __init__(self, secret: bytes, greeting: bytes) -> None:
        """Raise HandshakeError if the greeting is none of ours."""
        if greeting[: len(MAGIC)] != MAGIC:
            raise HandshakeError("what answers there is no first node of this version of Octavo")
        number = secrets.token_bytes(_NUMBER_BYTES)
        self._shared = _Shared(secret, greeting[len(MAGIC) :], number)
        self.answer = MAGIC + number + self._shared.digest(b"node")

    def check(self, verdict: bytes) -> FrameKeys:
        """Return the keys; raise HandshakeError if the first node has another secret."""
        proof = b"\1" + self._shared.digest(b"first node")
        if not hmac.compare_digest(verdict, proof):
            raise HandshakeError(
                "the first node has another secret; give all nodes the same --link-secret-file"
            )
        return FrameKeys(self._shared.digest(b"to first node"), self._shared.digest(b"to node"))
