"""The block tables of all sequences: found in the prefix cache, grown, committed, released.

Sharing is by content: the content of a full block is named by a digest (digests.py) of all tokens
up to its end. What is found, kept and dropped is decided by the policy of each KV group
(policies.py); this file combines their answers.

Two things must never happen:

1. A block enters the prefix cache before its KV is written. `commit` reads only num_computed,
   which results raise and plans do not.
2. A block in two tables is written to. Only full blocks are shared. The partial block at the end
   of a fork's prefix is copied at once, into the fork's first own block, since its next chunk
   writes there. So tables grow only at the end.

The table of a group that does not keep every position is as long as the others, but blocks that no
later query reads are released and replaced by the null block.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import partial
from itertools import zip_longest
from typing import NamedTuple

from octavo.core.config import CoreConfig
from octavo.core.kv.block_pool import NULL_BLOCK, BlockPool
from octavo.core.kv.cache_log import CacheLog
from octavo.core.kv.digests import PrefixDigests
from octavo.core.kv.page_pool import PagePool
from octavo.core.kv.policies import NEVER, Pool, policies_for
from octavo.core.kv.transfers import Content, KVIndex, Transfers
from octavo.core.request import Request
from octavo.core.sequence import Sequence, Status

ELSEWHERE = -1  # in place of a block that would have to be loaded


class Prefix(NamedTuple):
    """Leading tokens of a sequence whose KV exists already, and the blocks that hold it."""

    num_tokens: int
    tables: tuple[list[int], ...]  # by group: shared full blocks, null where nothing is read
    tails: tuple[int, ...] = ()  # by group: the partial block to be copied after them, or null
    source: Sequence | None = None  # a sequence that computes more of the same prefix
    target: int = 0  # … and has it when so many positions are computed


def make_pool(config: CoreConfig) -> Pool:
    """Return the pool for a configuration's groups."""
    per_page = config.blocks_per_page
    if all(count == 1 for count in per_page):
        return BlockPool(config.num_blocks, len(config.groups))
    return PagePool(config.num_blocks, per_page)


class KVManager:
    """The block tables over one pool. Verbs: match, adopt, grow, commit, release."""

    def __init__(
        self,
        config: CoreConfig,
        cache_key: bytes,
        pool: Pool | None = None,
        index: KVIndex | None = None,
    ) -> None:
        self.config = config
        self.block_size = config.block_size
        self.groups = config.groups
        self.pool = pool or make_pool(config)
        self.digests = PrefixDigests(config.block_size, cache_key)
        self.policies = policies_for(config, self.pool, self.digests)
        self.caches = config.prefix_caching and all(each.can_share for each in self.policies)
        # What comes from other places is named by a digest alone, and its tokens are not at hand.
        is_logged = config.logs_cache and self.caches and index is None
        self.log = CacheLog(config) if is_logged else None
        self.pool.log = self.log
        self.transfers = None if index is None else Transfers(self.pool, index)
        self.upcoming: dict[bytes, Sequence] = {}  # digest → the sequence that computes that block
        self._dropping = [policy for policy in self.policies if policy.drops]
        self._is_dense = all(policy.is_dense for policy in self.policies)
        self._blocks_per_page = config.blocks_per_page

    @property
    def epoch(self) -> int:
        """The number of resets so far: KV is shared only within one epoch."""
        return self.digests.epoch

    def _blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def peak_pages(self, num_positions: int, num_encoder: int = 0) -> int:
        """Return the most pages that a sequence of `num_positions` takes when it is alone."""
        blocks = self._blocks(num_positions)
        return sum(
            [
                -(-policy.most_held(blocks, num_encoder) // per_page)
                for policy, per_page in zip(self.policies, self._blocks_per_page, strict=True)
            ]
        )

    # match

    def match(
        self, sequence: Sequence, parent: Sequence | None = None, is_settled: bool = False
    ) -> Prefix:
        """Return the longest prefix in the cache, or in the sequence that this one is a fork of.

        It never covers the last token, which must be computed for its logits. `is_settled` says
        that no step in flight computes anything for the parent.
        """
        if sequence.cache_epoch != self.digests.epoch:
            sequence.digests.clear()
            sequence.cache_epoch = self.digests.epoch
        if sequence.is_exclusive or not sequence.request.reads_cache:
            return self.empty_prefix()
        prefix = self._match_cache(sequence) if self.caches else self.empty_prefix()
        if parent is not None:
            forked = self._match_parent(sequence, parent, is_settled)
            if forked is not None and forked.num_tokens >= prefix.num_tokens:
                return forked
        return prefix

    def empty_prefix(self) -> Prefix:
        """Return the prefix of a sequence that shares nothing."""
        return Prefix(0, tuple([[] for _ in self.groups]))

    def _match_cache(self, sequence: Sequence) -> Prefix:
        limit = (len(sequence.tokens) - 1) // self.block_size
        digests = self.digests.of(sequence, limit)
        indexed = self.pool.indexed
        policies = self.policies
        hits = [policy.hits(indexed(policy.index).get, sequence, digests) for policy in policies]
        num_blocks = self._longest(hits, limit)
        tables = tuple(
            [policy.shared(each, num_blocks) for policy, each in zip(policies, hits, strict=True)]
        )
        prefix = Prefix(num_blocks * self.block_size, tables)
        if num_blocks == limit:
            return prefix
        upcoming = self.upcoming
        source = upcoming.get(digests[num_blocks])
        if source is None:
            return prefix
        until = num_blocks + 1
        while until < limit and upcoming.get(digests[until]) is source:
            until += 1
        return prefix._replace(source=source, target=until * self.block_size)

    def find_elsewhere(self, sequence: Sequence, num_tokens: int) -> list[Content]:
        """Return the blocks that other places have, and that give a prefix of more tokens."""
        if self.transfers is None or not self.caches or not sequence.request.reads_cache:
            return []
        has = self.transfers.index.has
        limit = (len(sequence.tokens) - 1) // self.block_size
        digests = self.digests.of(sequence, limit)
        hits = []
        for policy in self.policies:
            find = partial(_find_anywhere, self.pool.indexed(policy.index), has, policy.index)
            hits.append(policy.hits(find, sequence, digests))
        num_blocks = self._longest(hits, limit)
        if num_blocks * self.block_size <= num_tokens:
            return []
        return [
            (policy.index, digest)
            for policy, each in zip(self.policies, hits, strict=True)
            for block, digest in zip(
                policy.shared(each, num_blocks), policy.digests_of(sequence), strict=False
            )
            if block == ELSEWHERE
        ]

    def _longest(self, hits: list[list[int]], limit: int) -> int:
        """Return the longest prefix, in blocks, that every group can continue."""
        before = -1
        while before != limit:
            before = limit
            for policy, each in zip(self.policies, hits, strict=True):
                limit = policy.longest(each, limit)
        return limit

    def _match_parent(
        self, sequence: Sequence, parent: Sequence, is_settled: bool
    ) -> Prefix | None:
        if parent.status is not Status.RUNNING or parent.cache_epoch != self.digests.epoch:
            return None
        one, other = parent.request, sequence.request
        if (one.lora, one.cache_scope) != (other.lora, other.cache_scope):
            return None
        if one.encoder != other.encoder:
            return None
        common = min(_common_length(sequence.tokens, parent.tokens), len(sequence.tokens) - 1)
        if one.salts != other.salts:
            common = min(common, _first_difference(one, other))
        num_tokens = min(common, parent.num_computed)
        before = NEVER
        while num_tokens != before:
            before = num_tokens
            for policy in self.policies:
                num_tokens = policy.fork_length(parent, num_tokens, is_settled)
                if num_tokens < 0:
                    return None
        policies = self.policies
        tables = tuple([policy.forked(sequence, parent, num_tokens) for policy in policies])
        tails: tuple[int, ...] = ()
        if num_tokens % self.block_size:
            tails = tuple([policy.forked_tail(parent, num_tokens) for policy in policies])
        prefix = Prefix(num_tokens, tables, tails)
        if parent.catching_up and common > parent.num_computed:
            return prefix._replace(source=parent, target=common)
        return prefix

    # grow

    def fits(self, sequence: Sequence, prefix: Prefix, spare: int) -> bool:
        """Return whether all known tokens could be computed now with `spare` pages left over.

        Store the number needed in the sequence, without the spare ones, which others may need less
        later, so that later steps need not match it again.
        """
        pool = self.pool
        blocks = self._blocks(len(sequence.tokens))
        encoder = sequence.request.encoder
        num_encoder = 0 if encoder is None else encoder.num_positions
        missing = [
            max(0, policy.most_held(blocks, num_encoder) - len(table) + table.count(NULL_BLOCK))
            for policy, table in zip(self.policies, prefix.tables, strict=True)
        ]
        needed = pool.pages_for(missing) + pool.pages_taken_by(prefix.tables)
        sequence.num_free_needed = needed
        return needed + spare <= pool.num_free

    def lacking_pages(self, sequence: Sequence) -> int:
        """Return how many pages a running sequence still lacks for its known tokens.

        What drops blocks as it advances lacks no more than it ever has at once, less what it has.
        """
        total = self._blocks(len(sequence.tokens))
        lacking = total - sequence.num_capacity // self.block_size
        if lacking <= 0:
            return 0
        counts = [policy.most_held(lacking, 0) for policy in self.policies]
        for policy in self._dropping:
            table = sequence.tables[policy.index]
            left = policy.most_held(total, 0) - len(table) + table.count(NULL_BLOCK)
            counts[policy.index] = max(0, min(counts[policy.index], left))
        return self.pool.pages_for(counts)

    def adopt(
        self, sequence: Sequence, prefix: Prefix, end: int
    ) -> tuple[tuple[int, int, int], ...] | None:
        """Start a sequence's tables with a prefix, grow them to `end`, and return blocks to copy.

        Return None and change nothing if there are too few blocks.
        """
        pool = self.pool
        held = [
            (block, group)
            for group, table in enumerate(prefix.tables)
            for block in table
            if block != NULL_BLOCK
        ]
        # Tails are held until the destination of the copy is allocated.
        tails = [(tail, group) for group, tail in enumerate(prefix.tails) if tail != NULL_BLOCK]
        held.extend(tails)
        acquire = pool.acquire
        for block, group in held:
            acquire(block, group)
        num_shared = prefix.num_tokens // self.block_size
        sequence.tables = tuple([list(table) for table in prefix.tables])
        sequence.num_capacity = num_shared * self.block_size
        sequence.first_block = [0] * len(self.groups)
        sequence.num_computed = sequence.num_planned = prefix.num_tokens
        if self.grow(sequence, end) is None:
            for block, group in reversed(held):
                pool.release(block, group)
            sequence.tables = ()
            sequence.num_capacity = 0
            sequence.num_computed = sequence.num_planned = 0
            return None
        for block, group in tails:
            pool.release(block, group)
        if not self._is_dense:
            sequence.encodes = tuple(
                [
                    policy.index
                    for policy, table in zip(self.policies, prefix.tables, strict=True)
                    if policy.writes_at_start(table, sequence)
                ]
            )
        sequence.num_committed = num_shared
        sequence.commit_at = NEVER
        if self.caches and not sequence.is_exclusive:
            sequence.commit_at = (num_shared + 1) * self.block_size
            upcoming = self.upcoming
            for digest in sequence.digests[num_shared:]:
                upcoming.setdefault(digest, sequence)
        return tuple([(tail, sequence.tables[group][num_shared], group) for tail, group in tails])

    def grow(self, sequence: Sequence, end: int) -> tuple[tuple[int, ...], ...] | None:
        """Grow the tables to cover the positions before `end`; return the new entries by group.

        Return None and leave the tables as they are if there are too few blocks.
        """
        for policy in self._dropping:
            policy.drop(sequence)
        begin = sequence.num_capacity // self.block_size
        count = self._blocks(end) - begin
        if count <= 0:
            return ()
        tables = sequence.tables
        if self._is_dense:
            blocks = self.pool.allocate(*[count] * len(tables))
            if blocks is None:
                return None
            parts = [blocks[at : at + count] for at in range(0, len(blocks), count)]
        else:
            placed = self._place(sequence, begin, end)
            if placed is None:
                return None
            parts = placed
        for table, part in zip(tables, parts, strict=True):
            table.extend(part)
        sequence.num_capacity += count * self.block_size
        return tuple(map(tuple, parts))

    def _place(self, sequence: Sequence, begin: int, end: int) -> list[list[int]] | None:
        """Allocate what each policy wants, and return the new entries of each table."""
        counts = [policy.count_new(sequence, begin, end) for policy in self.policies]
        blocks = self.pool.allocate(*counts)
        if blocks is None:
            return None
        parts, at = [], 0
        for policy, count in zip(self.policies, counts, strict=True):
            parts.append(policy.place(blocks[at : at + count], sequence, begin, end))
            at += count
        return parts

    # commit

    def commit(self, sequence: Sequence) -> None:
        """Put the blocks that were filled since the last call into the prefix cache."""
        if sequence.cache_epoch != self.digests.epoch:  # computed before a reset
            sequence.commit_at = NEVER
            return
        num_full = sequence.num_computed // self.block_size
        digests = self.digests.of(sequence, num_full)
        begin, label = sequence.num_committed, self.pool.label
        for policy in self.policies:
            new: dict[bytes, None] = {}
            for block, digest in policy.final_blocks(sequence, begin, num_full, digests):
                if label(block, policy.index, digest):
                    new[digest] = None
                if self.transfers is not None and self.pool.label_of(block, policy.index) == (
                    policy.index,
                    digest,
                ):
                    self.transfers.offer(policy.index, block, digest)
            if self.log is not None and new:
                root = self.digests.root(sequence.request)
                self.log.store(policy.index, sequence, root, range(begin, num_full), new)
        upcoming = self.upcoming
        for digest in digests[begin:num_full]:
            if upcoming.get(digest) is sequence:
                del upcoming[digest]
        sequence.num_committed = num_full
        sequence.commit_at = (num_full + 1) * self.block_size

    # release

    def release(self, sequence: Sequence, forget: bool = False) -> None:
        """Release all blocks, the last first, so that a cached prefix loses its tail first.

        With `forget`, remove everything that the sequence has committed from the prefix cache,
        since its content may be wrong: the blocks that its window has passed too.
        """
        pool, upcoming = self.pool, self.upcoming
        for digest in sequence.digests[sequence.num_committed :]:
            if upcoming.get(digest) is sequence:
                del upcoming[digest]
        if forget:
            self._forget(sequence)
        tables = sequence.tables
        if len(tables) == 1:
            release = pool.release
            for block in reversed(tables[0]):
                if block != NULL_BLOCK:
                    release(block)
        else:
            for blocks in zip_longest(*map(reversed, tables), fillvalue=NULL_BLOCK):
                for group, block in enumerate(blocks):
                    if block != NULL_BLOCK:
                        pool.release(block, group)
        sequence.tables = ()
        sequence.num_capacity = 0
        sequence.num_committed = 0
        sequence.commit_at = NEVER

    def _forget(self, sequence: Sequence) -> None:
        """Remove the labels of everything that the sequence has committed."""
        for policy in self.policies:
            for digest in policy.committed(sequence):
                block = self.pool.find(policy.index, digest)
                if block is not None:
                    self.pool.unlabel(block, policy.index)
                if self.transfers is not None:
                    self.transfers.forget(policy.index, digest)

    def reset_cache(self) -> None:
        """Clear the prefix cache, and keep blocks that are being computed now out of it."""
        self.digests.epoch += 1
        self.pool.clear_labels()
        if self.log is not None:
            self.log.clear()
        self.upcoming.clear()
        if self.transfers is not None:
            self.transfers.reset()


def _find_anywhere(
    here: dict[bytes, int], has: Callable[[int, bytes], bool], group: int, digest: bytes
) -> int | None:
    """Return the block with this digest, ELSEWHERE if it could be loaded, else None."""
    return here.get(digest) or (ELSEWHERE if has(group, digest) else None)


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


def _first_difference(one: Request, other: Request) -> int:
    """Return the first position at which the salts of two requests differ."""
    differing = [salt for salt in one.salts if salt not in other.salts]
    differing += [salt for salt in other.salts if salt not in one.salts]
    return min([position for position, _ in differing], default=NEVER)
