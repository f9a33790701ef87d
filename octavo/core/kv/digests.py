"""The names of block contents: a chain of keyed hashes over a sequence's tokens.

    digest(block i) = H(digest(block i-1), tokens of block i, salts of block i)
    digest(-1)      = H_key(epoch, scope, adapter, encoder input)

so equal digests mean equal tokens from position 0 on, computed under equal conditions. The key
is a random secret of the front end, the same for all of its engines, whose names so agree: a tenant
cannot construct the digest of another's blocks. A salt names content that is no token, such as an
image, and is hashed with its place in the block.
"""

from __future__ import annotations

from hashlib import blake2b

from octavo.core.request import Request
from octavo.core.sequence import Sequence

DIGEST_BYTES = 16  # a collision among 2^32 blocks has a chance of 2^-64; the key hides the rest


class PrefixDigests:
    """The digests of one engine's blocks. `epoch` rises when no earlier KV may be shared."""

    __slots__ = ("_block_size", "_cache_key", "epoch")

    def __init__(self, block_size: int, cache_key: bytes) -> None:
        self.epoch = 0
        self._block_size = block_size
        self._cache_key = cache_key

    def of(self, sequence: Sequence, count: int) -> list[bytes]:
        """Return the sequence's chain of digests, extended to at least `count` full blocks."""
        digests = sequence.digests
        begin = len(digests)
        if begin < count:
            block_size, salts = self._block_size, sequence.request.salts
            digest = digests[-1] if digests else self.root(sequence.request)
            data = sequence.tokens[begin * block_size : count * block_size].tobytes()
            width = block_size * sequence.tokens.itemsize
            for offset in range(0, len(data), width):
                content = digest + data[offset : offset + width]
                if salts:
                    first = begin * block_size + offset // sequence.tokens.itemsize
                    content += _salts_in(salts, first, first + block_size)
                digest = blake2b(content, digest_size=DIGEST_BYTES).digest()
                digests.append(digest)
        return digests

    def of_encoder(self, request: Request, count: int) -> list[bytes]:
        """Return digests of `count` blocks of an encoder's positions."""
        root = self.root(request)
        return [
            blake2b(root + b"%d" % index, digest_size=DIGEST_BYTES, person=b"cross").digest()
            for index in range(count)
        ]

    def root(self, request: Request) -> bytes:
        """Return the start of the chain: a hash of the conditions for sharing KV at all."""
        scope = request.cache_scope.encode("utf-8", "surrogatepass")
        adapter = (
            b"" if request.lora is None else b"+" + request.lora.encode("utf-8", "surrogatepass")
        )
        salt = b"%d:%d:" % (self.epoch, len(scope)) + scope + adapter
        root = blake2b(salt, digest_size=DIGEST_BYTES, key=self._cache_key).digest()
        if request.encoder is None:
            return root
        content = root + request.encoder.digest
        return blake2b(content, digest_size=DIGEST_BYTES, person=b"encoder").digest()


def _salts_in(salts: tuple[tuple[int, bytes], ...], begin: int, end: int) -> bytes:
    """Return the salts of one block; nothing where there are none."""
    return b"".join(
        b"%d:%d:" % (position - begin, len(content)) + content
        for position, content in salts
        if begin <= position < end
    )
