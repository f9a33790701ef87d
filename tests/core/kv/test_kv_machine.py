"""Block pool and KV manager compared with a model that records the content of every block.

Hypothesis draws sequences over a two-letter alphabet, so that prefixes are often equal, and lets
them grow, compute, fork and leave in any order. The model is simple on purpose: for each position
of each block it records (group, conditions, all tokens up to that position), and it answers every
question by searching through all records.
"""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from octavo.core.config import KVGroup
from octavo.core.kv.block_pool import NULL_BLOCK, BlockPool
from octavo.core.kv.manager import KVManager, Prefix
from octavo.core.sequence import Sequence, Status
from tests.core.make import KEY, a_line, config, request

Content = tuple[int, tuple[Any, ...], tuple[int, ...]]  # group, conditions, tokens so far

GROUPS = {
    "full": (KVGroup(),),
    "window": (KVGroup(window=3),),
    "both": (KVGroup(), KVGroup(window=5)),
    "three": (KVGroup(window=1), KVGroup(), KVGroup(window=4)),
}
LETTERS = st.integers(0, 1)
# Mostly one letter, so that two sequences often share a long prefix, and seldom everything.
TEXTS = st.builds(
    lambda count, rest: [0] * count + rest,
    st.integers(1, 16),
    st.lists(LETTERS, max_size=3),
)
REFUSED = st.sampled_from([False] * 9 + [True])  # the next allocation fails
WHICH = st.integers(0, 1_000_000)  # an index, modulo the number of choices


SETTINGS = settings(max_examples=500, stateful_step_count=50)


class ObservedPool(BlockPool):
    """A pool that is compared, call by call, with a plain list of free blocks."""

    __slots__ = ("evicted", "free", "refuses")

    def __init__(self, num_blocks: int, num_groups: int) -> None:
        super().__init__(num_blocks, num_groups)
        self.free = [*range(1, num_blocks)]  # in order of reuse
        self.evicted: list[int] = []  # allocated since the model was last updated
        self.refuses = False

    def allocate(self, *counts: int) -> list[int] | None:
        if self.refuses:
            return None
        count = sum(counts)
        expected = self.free[:count] if count <= len(self.free) else None
        blocks = super().allocate(*counts)
        assert blocks == expected
        del self.free[: len(blocks or ())]
        self.evicted += blocks or ()
        return blocks

    def acquire(self, block: int, group: int = 0) -> None:
        if block in self.free:
            self.free.remove(block)
        super().acquire(block)

    def release(self, block: int, group: int = 0) -> None:
        super().release(block)
        if self.ref_counts[block] == 0:
            self.free.insert(0 if self.labels[block] is None else len(self.free), block)


class KVMachine(RuleBasedStateMachine):
    """The verbs of the KV manager in any order, and the model."""

    @initialize(
        groups=st.sampled_from(list(GROUPS)),
        block_size=st.integers(1, 4),
        num_blocks=st.integers(8, 60),
        caching=st.sampled_from([True, True, False]),
    )
    def build(self, groups: str, block_size: int, num_blocks: int, caching: bool) -> None:
        self.size = block_size
        self.config = config(
            groups=GROUPS[groups],
            block_size=block_size,
            num_blocks=num_blocks,
            prefix_caching=caching,
            max_loras=1,
        )
        self.pool = ObservedPool(num_blocks, len(self.config.groups))
        self.kv = KVManager(self.config, KEY, self.pool)
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.number = 0
        self.cells: dict[tuple[int, int], Content] = {}  # (block, offset in it) → content
        self.cached: dict[Content, int] = {}  # content of a full block's last position → the block

    # the model

    def conditions(self, one: Sequence) -> tuple[Any, ...]:
        """Return the conditions that must be equal for KV to be shared."""
        return one.cache_epoch, one.request.cache_scope, one.request.lora

    def content(self, one: Sequence, group: int, position: int) -> Content:
        """Return the right content of a position of a sequence."""
        return group, self.conditions(one), tuple(one.tokens[: position + 1])

    def nulls(self, tables: tuple[list[int], ...]) -> list[int]:
        """Return how often each table contains the null block."""
        return [table.count(NULL_BLOCK) for table in tables]

    def cell(self, one: Sequence, group: int, position: int) -> tuple[int, int]:
        """Return the block and the offset of a position of a sequence."""
        return one.tables[group][position // self.size], position % self.size

    def forget_evicted(self) -> None:
        """Remove blocks that were allocated again from the cached ones."""
        gone = set(self.pool.evicted)
        self.pool.evicted.clear()
        self.cached = {what: block for what, block in self.cached.items() if block not in gone}

    def best_hit(self, one: Sequence) -> int:
        """Return the longest prefix in whole blocks with every block that the next query reads."""
        most = (len(one.tokens) - 1) // self.size if self.config.prefix_caching else 0
        for num_blocks in range(most, 0, -1):
            needed = [
                self.content(one, group, (index + 1) * self.size - 1)
                for group, kind in enumerate(self.config.groups)
                for index in range(num_blocks)
                if (index + 1) * self.size > kind.first_needed(num_blocks * self.size)
            ]
            if all(content in self.cached for content in needed):
                return num_blocks * self.size
        return 0

    def best_fork(self, one: Sequence, parent: Sequence) -> int:
        """Return how much of a parent's KV a fork can share; -1 if none."""
        if self.conditions(one) != self.conditions(parent):
            return -1
        common = 0
        while common < min(len(one.tokens), len(parent.tokens)):
            if one.tokens[common] != parent.tokens[common]:
                break
            common += 1
        count = min(common, len(one.tokens) - 1, parent.num_computed)
        for group, kind in enumerate(self.config.groups):
            first = kind.first_needed(count) // self.size * self.size
            for position in range(first, count):
                if self.cell(parent, group, position)[0] == NULL_BLOCK:
                    return -1
        return count

    def reads(self, one: Sequence, position: int) -> None:
        """Check that a query reads back what all positions in its window wrote."""
        for group, kind in enumerate(self.config.groups):
            for past in range(kind.first_needed(position), position):
                found = self.cells[self.cell(one, group, past)]
                assert found == self.content(one, group, past)

    # the rules

    @rule(
        known=TEXTS,
        scope=st.sampled_from(["", "", "", "other"]),
        lora=st.sampled_from([None, None, None, "adapter"]),
        kin=st.none() | WHICH,
        follows=st.booleans(),
        patient=st.booleans(),
        part=st.integers(1, 20),
        refused=REFUSED,
    )
    def start(
        self,
        known: list[int],
        scope: str,
        lora: str | None,
        kin: int | None,
        follows: bool,
        patient: bool,
        part: int,
        refused: bool,
    ) -> None:
        """Start a new sequence, perhaps as a fork that continues a parent's tokens."""
        self.number += 1
        parent = self.running[kin % len(self.running)] if kin is not None and self.running else None
        if parent is not None and follows:
            known = [*parent.tokens[: part * 2], *known]
            scope, lora = parent.request.cache_scope, parent.request.lora
        made = request(str(self.number), known, max_tokens=50, cache_scope=scope, lora=lora)
        one = Sequence(made, (0, 0.0, self.number), made.max_total, 0.0, a_line())
        self.try_to_start(one, parent, patient, part, refused)

    @precondition(lambda self: self.waiting)
    @rule(which=WHICH, patient=st.booleans(), part=st.integers(1, 20), refused=REFUSED)
    def try_again(self, which: int, patient: bool, part: int, refused: bool) -> None:
        """Start a sequence that waited for a prefix or for blocks, or was preempted."""
        one = self.waiting.pop(which % len(self.waiting))
        self.try_to_start(one, None, patient, part, refused)

    def try_to_start(
        self, one: Sequence, parent: Sequence | None, patient: bool, part: int, refused: bool
    ) -> None:
        """Match; start with a chunk of `part`, unless it is patient and there is a source."""
        prefix = self.kv.match(one, parent)
        self.check_match(one, parent, prefix)
        if prefix.source is not None and patient:
            self.waiting.append(one)
            return
        self.pool.refuses = refused
        self.begin(one, prefix, min(prefix.num_tokens + part, len(one.tokens)))

    def check_match(self, one: Sequence, parent: Sequence | None, prefix: Prefix) -> None:
        """Check the length of a match, and that its source computes more of the prefix."""
        hit = self.best_hit(one)
        fork = -1 if parent is None else self.best_fork(one, parent)
        assert prefix.num_tokens == max(hit, fork)
        assert bool(prefix.tails) == bool(prefix.num_tokens % self.size)
        if prefix.source is not None:
            source, target = prefix.source, prefix.target
            assert any(source is each for each in self.running)
            assert source.catching_up
            assert prefix.num_tokens < target < len(one.tokens)
            assert source.num_computed < target <= len(source.tokens)
            assert source.tokens[:target] == one.tokens[:target]
            assert self.conditions(source) == self.conditions(one)

    def begin(self, one: Sequence, prefix: Prefix, end: int) -> None:
        """Check that adopt succeeds exactly if there are enough blocks, or changes nothing."""
        held = [block for table in prefix.tables for block in table if block != NULL_BLOCK]
        left = self.pool.num_free - [self.pool.ref_counts[block] for block in held].count(0)

        def enough_for(end: int) -> bool:
            count = -(-end // self.size) - len(prefix.tables[0])
            return count * len(self.config.groups) <= left

        enough = enough_for(end)
        fits = self.kv.fits(one, prefix, 0)
        assert enough_for(len(one.tokens)) or not fits
        assert fits or not enough_for(len(one.tokens)) or any(self.nulls(prefix.tables))
        before = self.pool.ref_counts[:], sorted(self.pool.free)
        copies = self.kv.adopt(one, prefix, end)
        self.forget_evicted()
        if not enough or self.pool.refuses:
            assert copies is None
            assert (self.pool.ref_counts, sorted(self.pool.free)) == before
            assert not one.tables
            assert (one.num_capacity, one.num_computed, one.num_planned) == (0, 0, 0)
            self.pool.refuses = False
            self.waiting.append(one)
            return
        assert copies is not None
        for source, destination, _ in copies:
            for offset in range(self.size):
                if (source, offset) in self.cells:
                    self.cells[destination, offset] = self.cells[source, offset]
        one.status = Status.RUNNING
        one.num_planned = end
        self.running.append(one)
        self.reads(one, one.num_computed)

    @precondition(lambda self: self.running)
    @rule(which=WHICH, more=st.integers(0, 20), refused=REFUSED)
    def grow(self, which: int, more: int, refused: bool) -> None:
        """Grow the tables of a running sequence for another chunk."""
        one = self.running[which % len(self.running)]
        end = min(one.num_planned + more, len(one.tokens))
        before = [list(table) for table in one.tables]
        self.pool.refuses = refused
        added = self.kv.grow(one, end)
        count = -(-end // self.size) - len(before[0])
        self.forget_evicted()
        if added is None:
            assert self.pool.refuses or count * len(before) > self.pool.num_free
            added = ((),) * len(before)
        else:
            assert [len(part) for part in added] == ([count] * len(before) if count > 0 else [])
            one.num_planned = end
        self.pool.refuses = False
        added = added or ((),) * len(before)
        for table, old, new in zip(one.tables, before, added, strict=True):
            assert len(table) == len(old) + len(new)
            assert all(now in (was, NULL_BLOCK) for now, was in zip(table, old, strict=False))
            assert table[len(old) :] == list(new)

    @precondition(lambda self: self.running)
    @rule(which=WHICH, most=st.integers(1, 20), token=LETTERS)
    def compute(self, which: int, most: int, token: int) -> None:
        """Apply a result: positions are computed, and the last one yields a token."""
        one = self.running[which % len(self.running)]
        end = min(one.num_computed + most, one.num_planned)
        for position in range(one.num_computed, end):
            self.reads(one, position)
            for group in range(len(self.config.groups)):
                block, offset = self.cell(one, group, position)
                assert self.pool.ref_counts[block] == 1, "a shared block is written to"
                assert self.pool.labels[block] is None, "a cached block is written to"
                self.cells[block, offset] = self.content(one, group, position)
        full = range(one.num_computed // self.size, end // self.size)
        if end == len(one.tokens):
            one.tokens.append(token)
            one.catching_up = False
        one.num_computed = end
        if one.num_computed >= one.commit_at:
            self.kv.commit(one)
        if self.config.prefix_caching and one.cache_epoch == self.kv.epoch:
            for group, table in enumerate(one.tables):
                for index in full:
                    content = self.content(one, group, (index + 1) * self.size - 1)
                    self.cached.setdefault(content, table[index])

    @precondition(lambda self: self.running)
    @rule(which=WHICH, forget=st.sampled_from([False, False, False, True]), back=st.booleans())
    def release(self, which: int, forget: bool, back: bool) -> None:
        """Release a sequence that ends or is preempted; the tail of its own blocks goes first."""
        one = self.running.pop(which % len(self.running))
        tables = [list(table) for table in one.tables]
        full = range(self.size - 1, one.num_computed, self.size)  # where its full blocks end
        contents = [self.content(one, g, at) for g in range(len(tables)) for at in full]
        self.kv.release(one, forget)
        one.status = Status.FINISHED
        if back:
            one.status = Status.WAITING
            one.rewind()
            self.waiting.append(one)
        if forget:  # everything it computed, blocks that its window has passed included
            for content in contents:
                self.cached.pop(content, None)
        free = self.pool.free_blocks()
        for table in tables:
            freed = [b for b in table if self.pool.ref_counts[b] == 0 and self.pool.labels[b]]
            assert sorted(freed, key=free.index) == freed[::-1]

    @rule(really=st.sampled_from([False, False, False, True]))
    def reset_cache(self, really: bool) -> None:
        """Reset the prefix cache in one of four calls."""
        if really:
            self.kv.reset_cache()
            self.cached.clear()

    # invariants

    @invariant()
    def blocks_are_counted(self) -> None:
        """Count the references to each block in all tables."""
        names = [b for one in self.running for table in one.tables for b in table]
        for block in range(1, self.config.num_blocks):
            assert self.pool.ref_counts[block] == names.count(block)
        assert self.pool.free_blocks() == self.pool.free
        assert len(self.pool.free) == self.pool.num_free
        assert all(names.count(block) == 0 for block in self.pool.free)

    @invariant()
    def cached_blocks_have_their_content(self) -> None:
        """Compare the labels with the model, and each labelled block with its content."""
        labelled = {block for block, label in enumerate(self.pool.labels) if label is not None}
        assert labelled == set(self.cached.values())
        for (group, conditions, known), block in self.cached.items():
            begin = len(known) - self.size
            for offset in range(self.size):
                expected = (group, conditions, known[: begin + offset + 1])
                assert self.cells[block, offset] == expected

    @invariant()
    def tables_are_complete_in_their_window(self) -> None:
        """Require tables of equal length, with null blocks only before the window."""
        for one in self.running:
            assert {len(table) * self.size for table in one.tables} == {one.num_capacity}
            assert one.num_capacity >= one.num_planned
            for table, kind in zip(one.tables, self.config.groups, strict=True):
                first = kind.first_needed(one.num_computed)
                nulls = [index for index, block in enumerate(table) if block == NULL_BLOCK]
                assert all((index + 1) * self.size <= first for index in nulls)

    @invariant()
    def upcoming_blocks_have_a_running_source(self) -> None:
        """Require that only running sequences are sources, of blocks not yet committed."""
        for digest, owner in self.kv.upcoming.items():
            assert any(owner is one for one in self.running)
            assert digest in owner.digests[owner.num_committed :]


@pytest.mark.slow
def test_the_verbs_in_any_order_agree_with_the_model() -> None:
    run_state_machine_as_test(KVMachine, settings=SETTINGS)
