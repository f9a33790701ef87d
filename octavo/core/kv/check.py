"""The invariants of block tables, pool and prefix cache; core/check.py calls them with the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from octavo.core.kv.block_pool import NULL_BLOCK, BlockPool
from octavo.core.kv.manager import KVManager
from octavo.core.kv.page_pool import PagePool
from octavo.core.sequence import Sequence, Status

Place = tuple[int, int]  # KV group, block


class IntegrityError(AssertionError):
    """A contradiction in the core's state: a defect of the program, never of a request."""


def require(condition: bool, message: str, *details: object) -> None:
    """Raise IntegrityError unless the condition holds."""
    if not condition:
        raise IntegrityError(message.format(*details))


def distinct(numbers: Iterable[object]) -> bool:
    """Return whether no two are equal."""
    return max(Counter(numbers).values(), default=1) == 1


def check_kv(kv: KVManager, running: list[Sequence]) -> None:
    """Raise IntegrityError if any invariant of the KV cache does not hold."""
    for sequence in running:
        _check_tables(kv, sequence)
    if isinstance(kv.pool, BlockPool):
        _check_blocks(kv.pool, _holders(kv, running))
    else:
        _check_pages(kv.pool, _holders(kv, running))
    _check_sharing(kv, running)
    _check_index(kv, running)


def _check_tables(kv: KVManager, sequence: Sequence) -> None:
    """Require tables of the right length, just long enough, and null only where nothing is read."""
    name = sequence.request_id
    require(len(sequence.tables) == len(kv.groups), "{}: not one table for each group", name)
    capacity = sequence.num_capacity
    num_blocks = capacity // kv.block_size
    for policy, table in zip(kv.policies, sequence.tables, strict=True):
        length = policy.table_length(sequence, num_blocks)
        message = "{}: a table of {} entries, not {}"
        require(len(table) == length, message, name, len(table), length)
        first = policy.first_block(sequence.num_computed)
        kept = table[first : first + 1] if policy.is_sparse else table[first:]
        is_read = sequence.num_computed > 0 or not policy.is_sparse
        require(not (is_read and NULL_BLOCK in kept), "{}: null block in the window", name)
    require(capacity % kv.block_size == 0, "{}: capacity {}", name, capacity)
    require(sequence.num_planned <= capacity, "{}: planned past its tables", name)
    ahead = kv.config.max_ahead + kv.config.ahead_in_block
    most = sequence.num_planned + kv.block_size + kv.config.max_drafts + ahead
    require(capacity < most, "{}: tables {} tokens too long", name, capacity - most)
    full = sequence.num_computed // kv.block_size
    require(sequence.num_committed <= full, "{}: committed before computed", name)
    current = kv.caches and sequence.cache_epoch == kv.epoch and not sequence.is_exclusive
    require(not current or sequence.num_committed == full, "{}: computed, but not committed", name)


def _holders(kv: KVManager, running: list[Sequence]) -> Counter[Place]:
    """Count the holders of each block."""
    holders = Counter(
        (group, block)
        for sequence in running
        for group, table in enumerate(sequence.tables)
        for block in table
        if block != NULL_BLOCK
    )
    if kv.transfers is not None:
        holders.update((load.content[0], load.block) for load in kv.transfers.loading.values())
    return holders


def _check_blocks(pool: BlockPool, held: Counter[Place]) -> None:
    """Require that reference counts equal the entries in tables, and that all others are free."""
    counts, free = pool.ref_counts, pool.free_blocks()
    holders: Counter[int] = Counter()
    for (_, block), count in held.items():
        holders[block] += count
    num_listed, num_free = len(free), pool.num_free
    require(num_listed == num_free, "{} free blocks listed, {} counted", num_listed, num_free)
    require(distinct(free), "a block is free twice")
    require(counts[NULL_BLOCK] == 0, "the null block is in use")
    message = "block {}: reference count {}, {} holders"
    for block in range(1, pool.num_blocks):
        require(counts[block] == holders[block], message, block, counts[block], holders[block])
    require(not any(block in holders for block in free), "a block in use is free")
    require(len(free) + len(holders) == pool.num_blocks - 1, "blocks are lost")


def _check_pages(pool: PagePool, holders: Counter[Place]) -> None:
    """Require the same of blocks in pages, and that a page in use belongs to one group."""
    users: dict[int, dict[int, None]] = {}
    for group, block in holders:
        users.setdefault(block // pool.blocks_per_page[group], {})[group] = None
    free = pool.free_pages()
    require(0 not in users, "the null page is in use")
    require(distinct(free), "a page is free twice")
    require(users.keys().isdisjoint(free), "a page in use is free")
    require(len(free) + len(users) == pool.num_blocks - 1, "pages are lost")
    for page, groups in users.items():
        owners = sorted(groups)
        require(owners == [pool.owners[page]], "page {} is used by groups {}", page, owners)
    held: list[dict[int, int]] = [{} for _ in pool.blocks_per_page]
    for (group, block), count in holders.items():
        held[group][block] = count
    for group in range(len(held)):
        owned = [page for page in users if pool.owners[page] == group]
        _check_group(pool, group, held[group], owned)
    used = Counter(block // pool.blocks_per_page[group] for group, block in holders)
    for page in range(1, pool.num_blocks):
        require(pool.num_held[page] == used[page], "page {}: {} blocks in use", page, used[page])


def _check_group(pool: PagePool, group: int, held: dict[int, int], pages: list[int]) -> None:
    """Require that each block of the group's pages is counted as it is held, or listed as free."""
    counts, per_page = pool.ref_counts[group], pool.blocks_per_page[group]
    in_use = {block: count for block, count in enumerate(counts) if count}
    message = "block {} of group {}: reference count {}, {} holders"
    for block in {**in_use, **held}:
        count, num_holders = counts[block], held.get(block, 0)
        require(count == num_holders, message, block, group, count, num_holders)
    spare, cached = pool.free_blocks_of(group)
    require(distinct((*spare, *cached)), "a block of group {} is free twice", group)
    free = dict.fromkeys((*spare, *cached))
    blocks = [block for page in pages for block in range(page * per_page, (page + 1) * per_page)]
    lost = [block for block in blocks if block not in held and block not in free]
    require(not lost, "blocks {} of group {} are lost", lost, group)
    require(len(held) + len(free) == len(blocks), "free blocks of group {} are in use", group)
    for listed, has_label in ((spare, False), (cached, True)):
        for block in listed:
            is_right = (pool.label_of(block, group) is not None) == has_label
            require(is_right, "free block {} of group {} is in the wrong list", block, group)


def _check_sharing(kv: KVManager, running: list[Sequence]) -> None:
    """Require that a shared block is full, computed, at one index, and after equal tokens."""
    seen: dict[Place, tuple[Sequence, int, int]] = {}
    is_paged = isinstance(kv.pool, PagePool)
    for sequence in running:
        for group, table in enumerate(sequence.tables):
            for index, block in enumerate(table):
                place = (sequence, group, index)
                other = seen.setdefault((group if is_paged else 0, block), place)
                if block != NULL_BLOCK and other != place:
                    require(other[1:] == place[1:], "block {} is at two places", block)
                    end = kv.policies[group].shared_until(index)
                    _check_shared_block(block, end, sequence, other[0])


def _check_shared_block(block: int, end: int, one: Sequence, other: Sequence) -> None:
    is_computed = end <= min(one.num_computed, other.num_computed)
    require(is_computed, "block {} is shared before it is computed", block)
    are_equal = one.tokens[:end] == other.tokens[:end]
    first, second = one.request, other.request
    salts = [[salt for salt in request.salts if salt[0] < end] for request in (first, second)]
    are_equal = are_equal and salts[0] == salts[1]
    require(are_equal, "block {} is shared after different tokens", block)
    require(first.lora == second.lora, "block {} is shared between adapters", block)
    is_allowed = first.cache_scope == second.cache_scope
    require(is_allowed, "block {} is shared between scopes", block)
    is_same = first.encoder == second.encoder
    require(is_same, "block {} is shared between encoder inputs", block)


def _check_index(kv: KVManager, running: list[Sequence]) -> None:
    """Require that index and labels agree, and that a block's label is its own digest."""
    pool = kv.pool
    for group in range(len(kv.groups)):
        indexed = {block: (group, digest) for digest, block in pool.indexed(group).items()}
        labelled = pool.labelled(group)
        require(indexed == labelled, "index and labels disagree")
    for sequence in running:
        num_full = sequence.num_computed // kv.block_size
        for policy, table in zip(kv.policies, sequence.tables, strict=True):
            group, digests = policy.index, policy.digests_of(sequence)
            num_final = num_full if digests is sequence.digests else len(table)
            for index, block in enumerate(table):
                label = pool.label_of(block, group)
                if label is not None:
                    message = "block {} is cached before it is full"
                    require(index < num_final, message, block)
                    is_own = label == (group, digests[index])
                    require(is_own, "block {} is cached under another digest", block)
    for digest, owner in kv.upcoming.items():
        name, digests = owner.request_id, owner.digests[owner.num_committed :]
        require(owner.status is Status.RUNNING, "{} computes a block, but does not run", name)
        require(digest in digests, "{} computes a block of another digest", name)
