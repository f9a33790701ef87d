"""A batch made from the previous one equals a batch built from nothing.

The worlds of test_worlds.py check this at every step; the tests here cover when a batch is reused.
"""

from __future__ import annotations

from typing import Any

from octavo.core.plan import StepPlan
from octavo.runner import batch_reuse
from octavo.runner.batch import build as build_from_nothing
from tests.runner.checked_batches import CheckedBatches, CheckedTwice
from tests.runner.plans import make_plan, make_runner, new_slot, run


class Counted:
    """A count of the batches that were built from nothing."""

    def __init__(self, monkeypatch: Any) -> None:
        self.count = 0
        monkeypatch.setattr(batch_reuse, "build", self._build)

    def _build(self, *arguments: Any) -> Any:
        self.count += 1
        return build_from_nothing(*arguments)


def start_two(monkeypatch: Any) -> tuple[Any, Counted]:
    """Make a runner in which slots 3 and 1 decode one token a step, and a counter."""
    runner, _ = make_runner()
    runner._batches = CheckedBatches(runner.state)
    counted = Counted(monkeypatch)
    run(
        runner,
        make_plan(
            opened=(
                new_slot(3, list(range(20, 33)), ((1, 2, 3, 4), (5, 6, 7, 8))),
                new_slot(1, [7], ((9,), (10,))),
            ),
            chunks=((3, 0, 13, True), (1, 0, 1, True)),
        ),
    )
    run(runner, on(1, 13, 1))
    assert counted.count == 2
    return runner, counted


def on(step: int, *starts: int, slots: tuple[int, ...] = (3, 1), **parts: Any) -> StepPlan:
    chunks = tuple((slot, start, 1, True) for slot, start in zip(slots, starts, strict=True))
    return make_plan(step=step, chunks=chunks, **parts)


def test_batches_are_reused_until_a_table_must_grow(monkeypatch: Any) -> None:
    runner, counted = start_two(monkeypatch)
    block = runner.state.block_size
    for step in range(2, 30):
        position = 12 + step
        added: dict[str, Any] = {}
        if position % block == 0 and position >= 4 * block:
            added = {"new_blocks": ((3, ((20 + step,), (60 + step,))),)}
        run(runner, on(step, position, step, **added))
    # Built from nothing only where the longer sequence begins another block.
    assert counted.count == 2 + sum(position % block == 0 for position in range(14, 42))


def test_a_shorter_sequence_s_block_is_written_into_the_existing_tables(monkeypatch: Any) -> None:
    runner, counted = start_two(monkeypatch)
    block = runner.state.block_size
    assert block == 4
    run(runner, on(2, 14, 2))
    run(runner, on(3, 15, 3))
    run(runner, on(4, 16, 4, new_blocks=((3, ((11,), (12,))), (1, ((13,), (14,))))))
    run(runner, on(5, 17, 5))
    assert counted.count == 3
    run(runner, on(6, 18, 6))
    assert [table.tolist()[1][:2] for table in runner._batches._batch.tables] == [
        [9, 13],
        [10, 14],
    ]


def test_tables_that_grow_ahead_of_their_sequences_are_built_anew(monkeypatch: Any) -> None:
    """A second model writes behind the next token, in a block that the last step's lack."""
    runner, counted = start_two(monkeypatch)
    run(runner, on(2, 14, 2, new_blocks=((3, ((11,), (12,))),)))
    assert counted.count == 3
    assert [table.tolist()[0][4:] for table in runner._batches._batch.tables] == [[11], [12]]
    run(runner, on(3, 15, 3, new_blocks=((1, ((13,), (14,))),)))
    run(runner, on(4, 16, 4))
    assert counted.count == 3


def test_opened_and_freed_slots_prevent_reuse(monkeypatch: Any) -> None:
    runner, counted = start_two(monkeypatch)
    run(runner, on(2, 2, slots=(1,), freed=(3,)))
    assert counted.count == 3
    run(runner, on(3, 3, slots=(1,)))
    assert counted.count == 3
    run(
        runner,
        on(4, 0, 4, opened=(new_slot(3, [5], ((11,), (12,))),), new_blocks=((1, ((13,), (14,))),)),
    )
    assert counted.count == 4
    # The slot now belongs to another request.
    again = new_slot(3, [6], ((15,), (16,)))
    run(runner, on(5, 0, 5, freed=(3,), opened=(again,)))
    assert counted.count == 5
    run(runner, on(6, 1, 6))
    assert counted.count == 5


def drafted(step: int, *chunks: tuple[int, int, tuple[int, ...]], **parts: Any) -> StepPlan:
    """Make a plan in which each slot computes its last sample, and drafts behind it."""
    return make_plan(
        step=step,
        chunks=tuple((slot, start, 1 + len(drafts), True) for slot, start, drafts in chunks),
        drafts=tuple((slot, drafts) for slot, _, drafts in chunks if drafts),
        **parts,
    )


def test_steps_with_drafts_are_not_built_from_nothing(monkeypatch: Any) -> None:
    runner, counted = start_two(monkeypatch)
    added = {"new_blocks": ((3, ((21,), (22,))), (1, ((23,), (24,))))}
    run(runner, drafted(2, (3, 14, (9, 8)), (1, 2, ()), **added))
    tables = runner._batches._drafted_tables
    assert tables[0].tolist() == [[1, 2, 3, 4, 21], [9, 23, 0, 0, 0]]
    run(runner, drafted(3, (3, 15, ()), (1, 3, (7,))))
    assert runner._batches._drafted_tables is tables
    run(runner, drafted(4, (3, 16, (5,)), (1, 4, (6, 5, 4)), new_blocks=((1, ((25,), (26,))),)))
    assert runner._batches._drafted_tables[1].tolist() == [[5, 6, 7, 8, 22], [10, 24, 26, 0, 0]]
    assert counted.count == 2
    # A step without drafts is built, and the one behind it reads the tables anew.
    run(runner, on(5, 17, 5))
    assert counted.count == 3
    run(runner, drafted(6, (3, 18, (4,)), (1, 6, ())))
    # So does one of other slots.
    run(runner, drafted(7, (1, 7, (4,)), freed=(3,)))
    assert [table.tolist() for table in runner._batches._drafted_tables] == [
        [[9, 23, 25]],
        [[10, 24, 26]],
    ]
    assert counted.count == 3


def test_other_steps_with_drafts_are_built_from_nothing(monkeypatch: Any) -> None:
    runner, counted = start_two(monkeypatch)
    # One catches up beside the drafts of another, with tokens that are known.
    prompt = new_slot(2, [5, 6, 7, 8], ((11, 13), (12, 14)))
    opened = {"opened": (prompt,), "new_blocks": ((1, ((23,), (24,))),)}
    run(runner, make_plan(step=2, chunks=((1, 2, 1, True), (2, 0, 3, False)), **opened))
    assert counted.count == 3
    chunks = ((1, 3, 2, True), (2, 3, 1, True))
    run(runner, make_plan(step=3, chunks=chunks, drafts=((1, (9,)),)))
    assert counted.count == 4
    # More rows than a loop is faster for.
    monkeypatch.setattr("octavo.runner.drafted_batch.MOST_ROWS", 3)
    run(runner, drafted(4, (1, 4, (9,)), (2, 4, ())))
    assert counted.count == 4
    run(runner, drafted(5, (1, 5, (9,)), (2, 5, (8,))))
    assert counted.count == 5


def test_blocks_that_refused_drafts_left_are_in_the_tables() -> None:
    """A plan names a block once, with the first draft in it, although the draft may be refused."""
    runner, _ = make_runner()
    runner._batches = CheckedTwice(runner.state)
    block = runner.state.block_size
    opened = (new_slot(3, list(range(20, 22)), ((1, 2, 3), (4, 5, 6))),)
    run(runner, make_plan(opened=opened, chunks=((3, 0, 2, True),)))
    for position in range(2, 4 * block):
        added: dict[str, Any] = {}
        if position == 2 * block + 1:  # with a draft that lies in the next block
            added = {"new_blocks": ((3, ((7,), (8,))),)}
        run(runner, on(position - 1, position, slots=(3,), **added))
