"""The log of a prefix cache: which blocks have entered and left it, for a reader outside the core.

It is kept only where there is a reader, who must take what has been noted after each step; then a
step notes little more than the blocks that it fills and takes. What an encoder has written is left
out, since no token names it.
"""

from __future__ import annotations

from collections.abc import Sequence as Series
from typing import NamedTuple

from octavo.core.config import CoreConfig
from octavo.core.sequence import Sequence

MOST_TOKENS = 8192  # of one note


class Stored(NamedTuple):
    """Blocks of one group that are in the prefix cache from now on, one behind the other."""

    group: int
    digests: tuple[bytes, ...]
    parent: bytes | None  # the digest of the block before them; None: they begin a sequence
    tokens: bytes  # of these blocks, 32 bits each
    lora: str | None  # the adapter with which they were computed
    # What else they depend on, by block: the scope of their sequence, in its first block, and
    # salts. Empty: on nothing else.
    keys: tuple[tuple[bytes, ...], ...]


class Removed(NamedTuple):
    """A block that is in the prefix cache no more."""

    group: int
    digest: bytes


class Cleared(NamedTuple):
    """The end of all blocks in the prefix cache."""


Note = Stored | Removed | Cleared


class CacheLog:
    """The notes since they were last taken, in order."""

    def __init__(self, config: CoreConfig) -> None:
        self._block_size = config.block_size
        self._most_blocks = max(1, MOST_TOKENS // config.block_size)
        self._is_followed = [group.kind != "cross" for group in config.groups]
        self._notes: list[Note] = []

    def store(
        self,
        group: int,
        sequence: Sequence,
        root: bytes,
        entries: range,
        new: dict[bytes, None],
    ) -> None:
        """Note the blocks among these entries of a sequence that are in `new`.

        `root` names the conditions under which its KV is shared.
        """
        if not self._is_followed[group]:
            return
        digests = sequence.digests
        run: list[int] = []
        for entry in entries:
            if digests[entry] in new:
                run.append(entry)
                if len(run) < self._most_blocks:
                    continue
            self._add(group, sequence, root, run)
            run = []
        self._add(group, sequence, root, run)

    def _add(self, group: int, sequence: Sequence, root: bytes, run: Series[int]) -> None:
        """Note one run of blocks, if there are any."""
        if not run:
            return
        first, end, size = run[0], run[-1] + 1, self._block_size
        request, digests = sequence.request, sequence.digests
        keys = tuple([self._keys(sequence, root, entry) for entry in run])
        self._notes.append(
            Stored(
                group=group,
                digests=tuple(digests[first:end]),
                parent=digests[first - 1] if first else None,
                tokens=sequence.tokens[first * size : end * size].tobytes(),
                lora=request.lora,
                keys=keys if any(keys) else (),
            )
        )

    def _keys(self, sequence: Sequence, root: bytes, entry: int) -> tuple[bytes, ...]:
        """Return what a block depends on beside tokens and adapter."""
        request, size = sequence.request, self._block_size
        scope = (root,) if request.cache_scope and not entry else ()
        begin = entry * size
        return scope + tuple(
            [content for position, content in request.salts if begin <= position < begin + size]
        )

    def remove(self, group: int, digest: bytes) -> None:
        """Note that a block has left."""
        if self._is_followed[group]:
            self._notes.append(Removed(group, digest))

    def clear(self) -> None:
        """Note that all blocks have left; what was noted before says nothing any more."""
        self._notes = [Cleared()]

    def take(self) -> list[Note]:
        """Return the notes, and begin anew."""
        notes, self._notes = self._notes, []
        return notes
