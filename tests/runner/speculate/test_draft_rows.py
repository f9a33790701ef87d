"""Which rows of a second model are counted in the blocks of texts, and when."""

from __future__ import annotations

from typing import Any

from octavo.backends.base import DRAFTER
from octavo.backends.step import NO_ROWS, StepOutput
from octavo.core.config import KVGroup
from octavo.core.plan import NewSlot
from octavo.runner.slots import SlotState
from octavo.runner.speculate.ahead import AheadWork
from octavo.runner.speculate.draft_model import DraftModelProposer
from tests.runner.plans import make_plan, new_slot
from tests.runner.tiny import VOCABULARY, make_config

BLOCK = 4
OF_MODEL = 50  # added to the ids of the second model's blocks: those of the first


class Read:
    """A block table that counts the entries that are read."""

    def __init__(self, table: Any) -> None:
        self.table = table
        self.count = 0

    def __getitem__(self, key: Any) -> Any:
        found = self.table[key]
        self.count += found.size
        return found

    def __setitem__(self, key: Any, value: Any) -> None:
        self.table[key] = value


class Texts:
    """The texts of a second model whose layers have a window, with its blocks by hand."""

    def __init__(self, window: int | None) -> None:
        config = make_config(
            block_size=BLOCK, groups=(KVGroup(), KVGroup(window=window, owner=DRAFTER))
        )
        self.state = SlotState(config, VOCABULARY, {})
        self.proposer = DraftModelProposer(4)
        self.proposer.attach(self.state, config)

    def begin(self, slot: int, *blocks: int, num_cached: int = 0, copied: int = 0) -> None:
        """Open a slot with a prompt that ends in the last of these blocks, a copy perhaps."""
        tables = tuple(OF_MODEL + each for each in blocks), blocks
        new: NewSlot = new_slot(slot, list(range(2, 1 + BLOCK * len(blocks))), tables)
        self.state.open(new)
        self.proposer.open(new)
        chunk = slot, num_cached, len(new.tokens) - num_cached, True
        copies = ((copied, blocks[-1], 1),) if copied else ()
        self.proposer.take_blocks(make_plan(opened=(new,), copies=copies, chunks=(chunk,)))

    def grow(self, slot: int, block: int) -> None:
        added = ((OF_MODEL + block,), (block,))
        self.state.grow(slot, added)
        self.proposer.take_blocks(make_plan(new_blocks=((slot, added),)))

    def compute(self, slot: int, num_rows: int) -> None:
        """Let the second model compute the leading rows of a text."""
        self.proposer.collect(AheadWork({slot: num_rows}, {}, {}), NO_ROWS, StepOutput(()), ())

    def num_rows(self, slot: int) -> int:
        return self.proposer._texts[slot].num_rows


def test_a_prefix_has_the_rows_that_were_computed_in_its_blocks() -> None:
    texts = Texts(None)
    texts.begin(0, 1, 2, 3)
    texts.compute(0, 10)
    texts.begin(1, 1, 2, 4, num_cached=8)
    assert texts.num_rows(1) == 8
    texts.begin(2, 1, 2, 3, 5, num_cached=12)
    assert texts.num_rows(2) == 10


def test_the_copy_of_a_fork_has_only_the_rows_that_it_shares() -> None:
    texts = Texts(None)
    texts.begin(0, 1, 2, 3)
    texts.compute(0, 12)
    texts.begin(1, 1, 2, 4, num_cached=10, copied=3)  # its own text differs from the eleventh on
    assert texts.num_rows(1) == 10
    texts.begin(2, 1, 2, 4, 5, num_cached=12)  # what the model has written of it was cached
    assert texts.num_rows(2) == 10


def test_a_block_that_left_a_window_has_the_rows_of_its_next_sequence() -> None:
    texts = Texts(5)
    texts.begin(0, 1, 2, 3, 4)
    texts.begin(1, 5)
    texts.compute(0, 15)
    texts.grow(1, 1)  # it has left the window of the first sequence
    texts.compute(1, 4)
    texts.begin(2, 5, 1, 6, num_cached=8)
    assert texts.num_rows(2) == 4
    texts.begin(3, 0, 2, 3, 7, num_cached=12)  # these have not been given away
    assert texts.num_rows(3) == 12


def test_only_entries_that_are_new_are_read_at_an_admission() -> None:
    texts = Texts(None)
    texts.begin(0, *range(1, 21))
    texts.compute(0, 78)
    texts.begin(1, 30)
    full, ours = texts.state.tables
    read = Read(ours)
    tables: Any = (full, read)
    texts.state.tables = tables
    texts.compute(0, 79)
    texts.begin(2, *range(1, 20), 31, num_cached=76)
    assert read.count == 1
    assert texts.num_rows(2) == 76
