"""The block tables of all sequences: found in the prefix cache, grown, committed, released.

Sharing is by content. The content of a full block is named by a chain of keyed hashes,

    digest(block i) = H(digest(block i-1), tokens of block i)
    digest(-1)      = H_key(epoch, scope, adapter)

so equal digests mean equal tokens from position 0 on, computed under equal conditions. The key
is a random secret of each process: a tenant cannot construct the digest of another's blocks.

Two things must never happen:

1. A block enters the prefix cache before its KV is written. `commit` reads only num_computed,
   which results raise and plans do not.
2. A block in two tables is written to. Only full blocks are shared. The partial block at the end
   of a fork's prefix is copied at once, into the fork's first own block, since its next chunk
   writes there. So tables grow only at the end.

Sliding windows: the table of a windowed group is as long as the others, but blocks that no later
query reads are released and replaced by the null block.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b
from typing import NamedTuple

from octavo.core.block_pool import NULL_BLOCK, BlockPool
from octavo.core.config import CoreConfig
from octavo.core.sequence import Sequence, Status

DIGEST_BYTES = 16  # a collision among 2^32 blocks has a chance of 2^-64; the key hides the rest
NEVER = 1 << 62  # more than any count of tokens or blocks


class Prefix(NamedTuple):
    """Leading tokens of a sequence whose KV exists already, and the blocks that hold it."""

    num_tokens: int
    tables: tuple[list[int], ...]  # by group: shared full blocks, null where out of the window
    tails: tuple[int, ...] = ()  # by group: the partial block to be copied after them
    source: Sequence | None = None  # a sequence that computes more of the same prefix
    target: int = 0  # … and has it when so many positions are computed


class KVManager:
    """The block tables over one pool. Verbs: match, adopt, grow, commit, release."""

    def __init__(self, config: CoreConfig, cache_key: bytes, pool: BlockPool | None = None) -> None:
        self.config = config
        self.block_size = config.block_size
        self.groups = config.groups
        self.pool = pool or BlockPool(config.num_blocks, len(config.groups))
        self.epoch = 0
        self.upcoming: dict[bytes, Sequence] = {}  # digest → the sequence that computes that block
        self._cache_key = cache_key
        self._windowed = [i for i, group in enumerate(self.groups) if group.window is not None]
        # The most tokens of one chunk. Chunks in flight need not be counted: a sequence that is
        # alone and lacks blocks waits for their results, and then its window has moved.
        ahead = min(config.max_num_batched_tokens, config.long_prefill_tokens or NEVER)
        # By group, the most blocks that one sequence ever holds. The window before a chunk and
        # the chunk itself may begin in the middle of a block, hence one more.
        self._most_blocks = [
            NEVER if group.window is None else self._blocks(group.window - 1 + ahead) + 1
            for group in self.groups
        ]

    def _blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def peak_blocks(self, num_positions: int) -> int:
        """Return the most blocks that a sequence of `num_positions` holds at once."""
        blocks = self._blocks(num_positions)
        return sum(min(blocks, most) for most in self._most_blocks)

    # match

    def match(self, sequence: Sequence, parent: Sequence | None = None) -> Prefix:
        """Return the longest prefix in the cache, or in the sequence that this one is a fork of.

        It never covers the last token, which must be computed for its logits.
        """
        if sequence.cache_epoch != self.epoch:
            sequence.digests.clear()
            sequence.cache_epoch = self.epoch
        if not sequence.request.reads_cache:
            return self._empty_prefix()
        prefix = self._match_cache(sequence)
        if parent is not None:
            forked = self._match_parent(sequence, parent)
            if forked is not None and forked.num_tokens >= prefix.num_tokens:
                return forked
        return prefix

    def _empty_prefix(self) -> Prefix:
        return Prefix(0, tuple([] for _ in self.groups))

    def _match_cache(self, sequence: Sequence) -> Prefix:
        if not self.config.prefix_caching:
            return self._empty_prefix()
        limit = (len(sequence.tokens) - 1) // self.block_size
        digests = self._digests(sequence, limit)
        if self._windowed:
            tables = self._match_windowed(digests)
        else:
            tables = tuple(self._leading_hits(group, digests) for group in range(len(self.groups)))
        num_blocks = min(map(len, tables))
        for table in tables:
            del table[num_blocks:]
        prefix = Prefix(num_blocks * self.block_size, tables)
        if num_blocks == limit:
            return prefix
        source = self.upcoming.get(digests[num_blocks])
        if source is None:
            return prefix
        until = num_blocks + 1
        while until < limit and self.upcoming.get(digests[until]) is source:
            until += 1
        return prefix._replace(source=source, target=until * self.block_size)

    def _leading_hits(self, group: int, digests: list[bytes]) -> list[int]:
        hits = []
        find = self.pool.indexed(group).get
        for digest in digests:
            block = find(digest)
            if block is None:
                break
            hits.append(block)
        return hits

    def _match_windowed(self, digests: list[bytes]) -> tuple[list[int], ...]:
        """Return the longest tables whose blocks in the next query's window are all cached."""
        # A group without a window reads everything, so its first miss ends the prefix.
        for group in range(len(self.groups)):
            if group not in self._windowed:
                digests = digests[: len(self._leading_hits(group, digests))]
        hits = []
        for group in range(len(self.groups)):
            find = self.pool.indexed(group).get
            hits.append([find(digest, NULL_BLOCK) for digest in digests])
        # Begin with the longest: a miss in a window leaves only the blocks before it.
        length = len(digests)
        while length:
            firsts = self._first_blocks(length * self.block_size)
            misses = [
                index
                for group in self._windowed
                for index in range(firsts[group], length)
                if hits[group][index] == NULL_BLOCK
            ]
            if not misses:
                break
            length = min(misses)
        firsts = self._first_blocks(length * self.block_size)
        return tuple(
            [NULL_BLOCK] * first + table[first:length]
            for table, first in zip(hits, firsts, strict=True)
        )

    def _first_blocks(self, position: int) -> list[int]:
        """Return, by group, the first block that a query at `position` reads."""
        return [group.first_needed(position) // self.block_size for group in self.groups]

    def _match_parent(self, sequence: Sequence, parent: Sequence) -> Prefix | None:
        if parent.status is not Status.RUNNING or parent.cache_epoch != self.epoch:
            return None
        one, other = parent.request, sequence.request
        if (one.lora, one.cache_scope) != (other.lora, other.cache_scope):
            return None
        common = min(_common_length(sequence.tokens, parent.tokens), len(sequence.tokens) - 1)
        num_tokens = min(common, parent.num_computed)
        num_blocks, remainder = divmod(num_tokens, self.block_size)
        num_held = num_blocks + (1 if remainder else 0)
        tables, tails = [], []
        for table, first in zip(parent.tables, self._first_blocks(num_tokens), strict=True):
            if NULL_BLOCK in table[first:num_held]:
                return None  # the parent's window has moved past it
            tables.append([NULL_BLOCK] * min(first, num_blocks) + table[first:num_blocks])
            if remainder:
                tails.append(table[num_blocks])
        prefix = Prefix(num_tokens, tuple(tables), tuple(tails))
        if parent.catching_up and common > num_tokens:
            return prefix._replace(source=parent, target=common)
        return prefix

    # grow

    def fits(self, sequence: Sequence, prefix: Prefix, spare: int) -> bool:
        """Return whether all known tokens could be computed now with `spare` blocks left over.

        Store the number needed in the sequence, so that later steps need not match it again.
        """
        blocks = self._blocks(len(sequence.tokens))
        needed = spare
        ref_counts = self.pool.ref_counts
        for table, most in zip(prefix.tables, self._most_blocks, strict=True):
            held = [block for block in table if block != NULL_BLOCK]
            needed += max(0, min(blocks, most) - len(held))
            needed += [ref_counts[block] for block in held].count(0)
        sequence.num_free_needed = needed
        return needed <= self.pool.num_free

    def lacking_blocks(self, sequence: Sequence) -> int:
        """Return how many blocks a running sequence still lacks for its known tokens."""
        lacking = self._blocks(len(sequence.tokens)) - len(sequence.tables[0])
        return sum(min(lacking, most) for most in self._most_blocks)

    def adopt(
        self, sequence: Sequence, prefix: Prefix, end: int
    ) -> tuple[tuple[int, int], ...] | None:
        """Start a sequence's tables with a prefix, grow them to `end`, and return blocks to copy.

        Return None and change nothing if there are too few blocks.
        """
        held = [block for table in prefix.tables for block in table if block != NULL_BLOCK]
        held.extend(prefix.tails)  # until the destination of the copy is allocated
        for block in held:
            self.pool.acquire(block)
        num_shared = len(prefix.tables[0])
        sequence.tables = tuple(list(table) for table in prefix.tables)
        sequence.num_capacity = num_shared * self.block_size
        sequence.first_block = [0] * len(self.groups)
        sequence.num_computed = sequence.num_planned = prefix.num_tokens
        if self.grow(sequence, end) is None:
            for block in reversed(held):
                self.pool.release(block)
            sequence.tables = ()
            sequence.num_capacity = 0
            sequence.num_computed = sequence.num_planned = 0
            return None
        for block in prefix.tails:
            self.pool.release(block)
        sequence.num_committed = num_shared
        sequence.commit_at = NEVER
        if self.config.prefix_caching:
            sequence.commit_at = (num_shared + 1) * self.block_size
            for digest in sequence.digests[num_shared:]:
                self.upcoming.setdefault(digest, sequence)
        return tuple(
            (tail, table[num_shared])
            for tail, table in zip(prefix.tails, sequence.tables, strict=bool(prefix.tails))
        )

    def grow(self, sequence: Sequence, end: int) -> tuple[tuple[int, ...], ...] | None:
        """Grow the tables to cover the positions before `end`; return the new blocks by group.

        Return None and leave the tables as they are if there are too few blocks.
        """
        for group in self._windowed:
            self._drop_out_of_window(sequence, group)
        count = self._blocks(end) - len(sequence.tables[0])
        if count <= 0:
            return ()
        blocks = self.pool.allocate(count * len(self.groups))
        if blocks is None:
            return None
        added = []
        for index, table in enumerate(sequence.tables):
            part = blocks[index * count : (index + 1) * count]
            table.extend(part)
            added.append(tuple(part))
        sequence.num_capacity += count * self.block_size
        return tuple(added)

    def _drop_out_of_window(self, sequence: Sequence, group: int) -> None:
        """Release the blocks that no query from num_computed on reads, in flight or later."""
        first = self.groups[group].first_needed(sequence.num_computed) // self.block_size
        table = sequence.tables[group]
        for index in range(sequence.first_block[group], first):
            if table[index] != NULL_BLOCK:
                self.pool.release(table[index])
                table[index] = NULL_BLOCK
        sequence.first_block[group] = max(first, sequence.first_block[group])

    # commit

    def commit(self, sequence: Sequence) -> None:
        """Put the blocks that were filled since the last call into the prefix cache."""
        if sequence.cache_epoch != self.epoch:  # computed before a reset
            sequence.commit_at = NEVER
            return
        num_full = sequence.num_computed // self.block_size
        digests = self._digests(sequence, num_full)
        for index in range(sequence.num_committed, num_full):
            digest = digests[index]
            for group, table in enumerate(sequence.tables):
                if table[index] != NULL_BLOCK:
                    self.pool.label(table[index], group, digest)
            if self.upcoming.get(digest) is sequence:
                del self.upcoming[digest]
        sequence.num_committed = num_full
        sequence.commit_at = (num_full + 1) * self.block_size

    # release

    def release(self, sequence: Sequence, forget: bool = False) -> None:
        """Release all blocks, the last first, so that a cached prefix loses its tail first.

        With `forget`, remove everything that the sequence has committed from the prefix cache,
        since its content may be wrong: the blocks that its window has passed too.
        """
        for digest in sequence.digests[sequence.num_committed :]:
            if self.upcoming.get(digest) is sequence:
                del self.upcoming[digest]
        if forget:
            for digest in sequence.digests[: sequence.num_committed]:
                for group in range(len(self.groups)):
                    block = self.pool.find(group, digest)
                    if block is not None:
                        self.pool.unlabel(block)
        for blocks in zip(*map(reversed, sequence.tables), strict=True):
            for block in blocks:
                if block != NULL_BLOCK:
                    self.pool.release(block)
        sequence.tables = ()
        sequence.num_capacity = 0
        sequence.num_committed = 0
        sequence.commit_at = NEVER

    def reset_cache(self) -> None:
        """Clear the prefix cache, and keep blocks that are being computed now out of it."""
        self.epoch += 1
        self.pool.clear_labels()
        self.upcoming.clear()

    def _digests(self, sequence: Sequence, count: int) -> list[bytes]:
        """Return the sequence's chain of digests, extended to at least `count` full blocks."""
        digests = sequence.digests
        begin = len(digests)
        if begin < count:
            block_size = self.block_size
            digest = digests[-1] if digests else self._root(sequence)
            data = sequence.tokens[begin * block_size : count * block_size].tobytes()
            width = block_size * sequence.tokens.itemsize
            for offset in range(0, len(data), width):
                digest = blake2b(
                    digest + data[offset : offset + width], digest_size=DIGEST_BYTES
                ).digest()
                digests.append(digest)
        return digests

    def _root(self, sequence: Sequence) -> bytes:
        """Return the start of the chain: a hash of the conditions for sharing KV at all."""
        request = sequence.request
        scope = request.cache_scope.encode("utf-8", "surrogatepass")
        adapter = (
            b"" if request.lora is None else b"+" + request.lora.encode("utf-8", "surrogatepass")
        )
        salt = b"%d:%d:" % (self.epoch, len(scope)) + scope + adapter
        return blake2b(salt, digest_size=DIGEST_BYTES, key=self._cache_key).digest()


def _common_length(one: array[int], other: array[int]) -> int:
    """Return how many leading tokens two sequences share."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while high - low > 1:  # the first `low` agree, the first `high` do not
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low
