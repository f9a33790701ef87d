"""A follower of the prefix cache: it applies what the core notes, and must know what is cached."""

from __future__ import annotations

from hashlib import blake2b

from octavo.core.kv.cache_log import Cleared, Note, Removed, Stored
from octavo.core.kv.digests import DIGEST_BYTES
from octavo.core.scheduler import Scheduler
from tests.sim.kv.memory import require


class Follower:
    """The blocks of each group, as the notes so far say."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._kv = scheduler.kv
        self.groups: list[dict[bytes, None]] = [{} for _ in scheduler.config.groups]
        self.num_stored = self.num_removed = self.num_cleared = 0

    def follow(self) -> None:
        """Apply the new notes, and compare what they say with what the cache has."""
        log = self._kv.log
        if log is None:
            is_known = self._kv.caches and self._kv.transfers is None
            require(not is_known, "a cache has no log")
            return
        for note in log.take():
            self._apply(note)
        for index, group in enumerate(self._kv.groups):
            cached = {} if group.kind == "cross" else self._kv.pool.indexed(index)
            require(self.groups[index].keys() == cached.keys(), f"group {index} is followed wrong")

    def _apply(self, note: Note) -> None:
        match note:
            case Stored():
                self._store(note)
            case Removed(group, digest):
                require(digest in self.groups[group], "a block leaves that was not there")
                del self.groups[group][digest]
                self.num_removed += 1
            case Cleared():
                for blocks in self.groups:
                    blocks.clear()
                self.num_cleared += 1

    def _store(self, note: Stored) -> None:
        """Add blocks; each must be what its tokens and the block before it make."""
        blocks, size = self.groups[note.group], 4 * self._kv.block_size
        require(len(note.tokens) == size * len(note.digests), "tokens do not fill the blocks")
        require(len(note.keys) in (0, len(note.digests)), "keys of other blocks")
        before = note.parent
        for index, digest in enumerate(note.digests):
            require(digest not in blocks, "a block is stored that is there already")
            if before is not None and not (note.keys and note.keys[index]):
                content = before + note.tokens[index * size : (index + 1) * size]
                right = blake2b(content, digest_size=DIGEST_BYTES).digest()
                require(digest == right, "a block has other tokens, or another one before it")
            blocks[digest] = None
            before = digest
        self.num_stored += len(note.digests)
