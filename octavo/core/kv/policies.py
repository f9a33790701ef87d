"""How the blocks of one KV group are found, kept and dropped: one policy for each kind.

The KV manager asks every group's policy the same questions and does not know the kinds:

    hits, longest, shared     which leading blocks of a sequence are in the prefix cache
    fork_length               how much of a parent's KV a fork can take over
    count_new, place          which entries of the tables get a block when they grow
    drop                      which blocks no later query reads
    final_blocks              which blocks may be shared once they are computed
    most_held                 how many blocks a sequence has at once, at most

All tables have an entry for each `block_size` positions, null where nothing is kept, except those
of groups that do not keep positions of the sequence.

A state is not made of positions, yet it fits into this form: the entry of a block holds the state
after the block's last computed position. A chunk reads the entry of the position before it, as a
window of two positions would, and changes only the entries of its own blocks. So the state at the
end of a full block never changes again: it is a checkpoint, which can be shared like any block.
Where no checkpoint is wanted, the entry gets a block only if the sequence may stop there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from octavo.core.config import CoreConfig, KVKind
from octavo.core.kv.block_pool import NULL_BLOCK, BlockPool
from octavo.core.kv.digests import PrefixDigests
from octavo.core.kv.page_pool import PagePool
from octavo.core.sequence import Sequence

NEVER = 1 << 62  # more than any count of tokens or blocks

# Returns the block with this digest, if the cache has one.
Find = Callable[[bytes], int | None]
Pool = BlockPool | PagePool


class KVPolicy:
    """A policy that keeps every position: for full attention, and for latent rows."""

    is_dense = True  # a table grows by one block for each entry
    is_sparse = False  # an entry may have no block although the sequence has not passed it
    drops = False  # blocks are dropped while the sequence runs
    can_share = True  # blocks can be found by later sequences

    def __init__(self, index: int, config: CoreConfig, pool: Pool, digests: PrefixDigests) -> None:
        self.index = index
        self.group = config.groups[index]
        self.pool = pool
        self.digests = digests
        self.block_size = config.block_size
        # The most tokens of one chunk. Chunks in flight need not be counted: a sequence that is
        # alone and lacks blocks waits for their results, and then its window has moved.
        self.ahead = min(config.max_num_batched_tokens, config.long_prefill_tokens or NEVER)
        self.max_drafts = config.max_drafts

    def first_block(self, position: int) -> int:
        """Return the first table entry that a query at `position` reads."""
        return self.group.first_needed(position) // self.block_size

    def table_length(self, sequence: Sequence, num_blocks: int) -> int:
        """Return the length of a table that covers so many blocks of the sequence."""
        return num_blocks

    def most_held(self, num_blocks: int, num_encoder: int) -> int:
        """Return the most blocks that a sequence of so many blocks has at once."""
        return self.group.most_blocks(num_blocks, self.block_size, self.ahead, self.max_drafts)

    # match

    def hits(self, find: Find, sequence: Sequence, digests: list[bytes]) -> list[int]:
        """Return what the cache has of each block; it may end after the last useful one."""
        hits = []
        for digest in digests:
            block = find(digest)
            if block is None:
                break
            hits.append(block)
        return hits

    def longest(self, hits: list[int], num_blocks: int) -> int:
        """Return the longest prefix of at most `num_blocks` that can be continued with these."""
        return min(len(hits), num_blocks)

    def shared(self, hits: list[int], num_blocks: int) -> list[int]:
        """Return the table of a prefix of so many blocks."""
        del hits[num_blocks:]
        return hits

    def fork_length(self, parent: Sequence, num_tokens: int, is_settled: bool) -> int:
        """Return how many of the leading `num_tokens` a fork can take; -1 if none at any length.

        `is_settled` says that no step in flight changes what the parent has computed.
        """
        return num_tokens

    def forked(self, sequence: Sequence, parent: Sequence, num_tokens: int) -> list[int]:
        """Return the full blocks of a fork's table that are shared with the parent."""
        num_blocks = num_tokens // self.block_size
        first = min(self.first_block(num_tokens), num_blocks)
        return [NULL_BLOCK] * first + parent.tables[self.index][first:num_blocks]

    def forked_tail(self, parent: Sequence, num_tokens: int) -> int:
        """Return the parent's partial block, which the fork copies; null if there is none."""
        return parent.tables[self.index][num_tokens // self.block_size]

    def shared_until(self, entry: int) -> int:
        """Return how many leading tokens two sequences that share an entry's block must share."""
        return (entry + 1) * self.block_size

    # grow and drop

    def count_new(self, sequence: Sequence, begin: int, end: int) -> int:
        """Return how many blocks a table of `begin` entries needs to cover `end` positions."""
        return -(-end // self.block_size) - begin

    def place(self, blocks: list[int], sequence: Sequence, begin: int, end: int) -> list[int]:
        """Return the entries by which the table grows, with the new blocks in them."""
        return blocks

    def drop(self, sequence: Sequence) -> None:
        """Release the blocks that no query from num_computed on reads, in flight or later."""

    def writes_at_start(self, prefix: list[int], sequence: Sequence) -> bool:
        """Return whether the first chunk writes more here than its own positions."""
        return False

    # commit and forget

    def final_blocks(
        self, sequence: Sequence, begin: int, end: int, digests: list[bytes]
    ) -> Iterable[tuple[int, bytes]]:
        """Return block and digest of the entries from `begin` to `end` that may be shared."""
        return zip(sequence.tables[self.index][begin:end], digests[begin:end], strict=True)

    def digests_of(self, sequence: Sequence) -> list[bytes]:
        """Return the digests of the table's leading entries."""
        return sequence.digests

    def committed(self, sequence: Sequence) -> list[bytes]:
        """Return the digests of all blocks that `final_blocks` has returned so far."""
        return sequence.digests[: sequence.num_committed]


class WindowPolicy(KVPolicy):
    """A policy that keeps the most recent positions, and no others."""

    drops = True

    def hits(self, find: Find, sequence: Sequence, digests: list[bytes]) -> list[int]:
        return [find(digest) or NULL_BLOCK for digest in digests]

    def longest(self, hits: list[int], num_blocks: int) -> int:
        # Begin with the longest: a miss in a window leaves only the blocks before it.
        while num_blocks:
            first = self.first_block(num_blocks * self.block_size)
            try:
                num_blocks = hits.index(NULL_BLOCK, first, num_blocks)
            except ValueError:
                return num_blocks
        return 0

    def shared(self, hits: list[int], num_blocks: int) -> list[int]:
        first = self.first_block(num_blocks * self.block_size)
        return [NULL_BLOCK] * first + hits[first:num_blocks]

    def fork_length(self, parent: Sequence, num_tokens: int, is_settled: bool) -> int:
        first, end = self.first_block(num_tokens), -(-num_tokens // self.block_size)
        has_passed = NULL_BLOCK in parent.tables[self.index][first:end]
        return -1 if has_passed else num_tokens

    def drop(self, sequence: Sequence) -> None:
        index, release = self.index, self.pool.release
        first, table = self.first_block(sequence.num_computed), sequence.tables[index]
        for entry in range(sequence.first_block[index], first):
            if table[entry] != NULL_BLOCK:
                release(table[entry], index)
                table[entry] = NULL_BLOCK
        sequence.first_block[index] = max(first, sequence.first_block[index])

    def final_blocks(
        self, sequence: Sequence, begin: int, end: int, digests: list[bytes]
    ) -> Iterable[tuple[int, bytes]]:
        pairs = super().final_blocks(sequence, begin, end, digests)
        return [pair for pair in pairs if pair[0] != NULL_BLOCK]


class StatePolicy(WindowPolicy):
    """A policy that keeps a state of fixed size, and checkpoints of it."""

    is_dense = False
    is_sparse = True

    def longest(self, hits: list[int], num_blocks: int) -> int:
        while num_blocks and hits[num_blocks - 1] == NULL_BLOCK:
            num_blocks -= 1
        return num_blocks

    def fork_length(self, parent: Sequence, num_tokens: int, is_settled: bool) -> int:
        table, size = parent.tables[self.index], self.block_size
        if num_tokens == parent.num_computed and is_settled:
            return num_tokens
        return size * self.longest(table, num_tokens // size)

    def count_new(self, sequence: Sequence, begin: int, end: int) -> int:
        return sum([self._has_block(entry, sequence, end) for entry in self._entries(begin, end)])

    def place(self, blocks: list[int], sequence: Sequence, begin: int, end: int) -> list[int]:
        left = iter(blocks)
        return [
            next(left) if self._has_block(entry, sequence, end) else NULL_BLOCK
            for entry in self._entries(begin, end)
        ]

    def _entries(self, begin: int, end: int) -> range:
        return range(begin, -(-end // self.block_size))

    def _has_block(self, entry: int, sequence: Sequence, end: int) -> bool:
        """Return whether a state is wanted there, read from there, or may be the last one."""
        return (
            self._is_checkpoint(entry)
            or (entry + 1) * self.block_size >= end - self.max_drafts
            or (sequence.num_computed > 0 and entry == self.first_block(sequence.num_computed))
        )

    def _is_checkpoint(self, entry: int) -> bool:
        return (entry + 1) % self.group.checkpoint_blocks == 0

    def final_blocks(
        self, sequence: Sequence, begin: int, end: int, digests: list[bytes]
    ) -> Iterable[tuple[int, bytes]]:
        table = sequence.tables[self.index]
        return [
            (table[entry], digests[entry])
            for entry in range(begin, end)
            if table[entry] != NULL_BLOCK and self._is_checkpoint(entry)
        ]


class CrossPolicy(KVPolicy):
    """A policy that keeps an encoder's positions, which the first chunk writes and all read.

    They have digests of their own. They are taken from the cache all together, or not at all.
    """

    is_dense = False

    def table_length(self, sequence: Sequence, num_blocks: int) -> int:
        encoder = sequence.request.encoder
        return 0 if encoder is None else -(-encoder.num_positions // self.block_size)

    def most_held(self, num_blocks: int, num_encoder: int) -> int:
        return -(-num_encoder // self.block_size)

    def hits(self, find: Find, sequence: Sequence, digests: list[bytes]) -> list[int]:
        own = self.digests_of(sequence)
        hits = super().hits(find, sequence, own)
        return hits if len(hits) == len(own) else []

    def longest(self, hits: list[int], num_blocks: int) -> int:
        return num_blocks

    def shared(self, hits: list[int], num_blocks: int) -> list[int]:
        return hits

    def shared_until(self, entry: int) -> int:
        return 0

    def forked(self, sequence: Sequence, parent: Sequence, num_tokens: int) -> list[int]:
        # The parent may not have written them yet: take what is in the cache.
        return self.hits(self.pool.indexed(self.index).get, sequence, [])

    def forked_tail(self, parent: Sequence, num_tokens: int) -> int:
        return NULL_BLOCK

    def count_new(self, sequence: Sequence, begin: int, end: int) -> int:
        return self.table_length(sequence, 0) - len(sequence.tables[self.index])

    def writes_at_start(self, prefix: list[int], sequence: Sequence) -> bool:
        return not prefix and self.table_length(sequence, 0) > 0

    def final_blocks(
        self, sequence: Sequence, begin: int, end: int, digests: list[bytes]
    ) -> Iterable[tuple[int, bytes]]:
        return zip(sequence.tables[self.index], self.digests_of(sequence), strict=True)

    def digests_of(self, sequence: Sequence) -> list[bytes]:
        return self.digests.of_encoder(sequence.request, self.table_length(sequence, 0))

    def committed(self, sequence: Sequence) -> list[bytes]:
        return self.digests_of(sequence)


class NonePolicy(KVPolicy):
    """A policy that keeps nothing, so that nothing can be shared."""

    is_dense = False
    can_share = False

    def table_length(self, sequence: Sequence, num_blocks: int) -> int:
        return 0

    def most_held(self, num_blocks: int, num_encoder: int) -> int:
        return 0

    def count_new(self, sequence: Sequence, begin: int, end: int) -> int:
        return 0


_POLICIES: dict[KVKind, type[KVPolicy]] = {
    "full": KVPolicy,
    "latent": KVPolicy,
    "state": StatePolicy,
    "cross": CrossPolicy,
    "none": NonePolicy,
}


def policies_for(config: CoreConfig, pool: Pool, digests: PrefixDigests) -> tuple[KVPolicy, ...]:
    """Return a policy for each KV group."""
    return tuple(
        (WindowPolicy if group.window is not None else _POLICIES[group.kind])(
            index, config, pool, digests
        )
        for index, group in enumerate(config.groups)
    )
