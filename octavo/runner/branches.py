"""The rows of branches of drafts: sequences of their own, behind the others of a batch.

A branch has the tables of the chain that it follows, up to its first position, and from there on
its own blocks. Where its first block begins before its first position, the rows of this step at the
positions between are echoed there. So each of its rows reads what it would read if the drafts
before it were the text, in the same order, and positions are those of the text.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from octavo.backends.base import Ints
from octavo.backends.step import HostBatch
from octavo.core.plan import Branch, StepPlan
from octavo.core.trees.form import ROOT


class _Draft(NamedTuple):
    """A row that others may follow."""

    row: int
    position: int
    sequence: int


class BranchRows(NamedTuple):
    """Rows that the branches of a slot add to its sample."""

    rows: list[int]  # of their drafts
    drafts: list[int]
    parents: list[int]  # of each: the row of the sample that it follows


def branch_rows(plan: StepPlan, num_rows: int) -> dict[int, BranchRows]:
    """Return the rows that the branches of a plan get, behind so many others, by slot."""
    found: dict[int, BranchRows] = {}
    num_main = {slot: len(drafts) for slot, drafts in plan.drafts}
    for branch in plan.branches:
        made = found.setdefault(branch.slot, BranchRows([], [], []))
        row_of_sample = num_main[branch.slot] + len(made.rows) + 1
        count = len(branch.tokens)
        made.rows.extend(range(num_rows, num_rows + count))
        made.drafts.extend(branch.tokens)
        parents = [branch.after + 1, *range(row_of_sample, row_of_sample + count - 1)]
        made.parents.extend(parents)
        num_rows += count
    return found


def add_branches(batch: HostBatch, plan: StepPlan, block_size: int) -> HostBatch:
    """Return a batch of a plan's chunks with the rows of its branches behind them."""
    positions, starts = [*batch.positions.tolist()], [*batch.row_starts.tolist()]
    slots = [*batch.slots.tolist()]
    tables = [[*table] for table in batch.tables]
    echoes: list[tuple[int, int, int]] = []
    num_main = {slot: len(drafts) for slot, drafts in plan.drafts}
    drafts: dict[int, list[_Draft]] = {}
    paths: dict[int, list[int]] = {}  # of each branch's sequence: the rows before its first
    chunk_of = {slot: chunk for chunk, slot in enumerate(plan.slots)}
    for branch in plan.branches:
        chunk = chunk_of[branch.slot]
        root = starts[chunk + 1] - num_main[branch.slot] - 1
        known = drafts.setdefault(
            branch.slot,
            [_Draft(row, positions[row], chunk) for row in range(root, starts[chunk + 1])],
        )
        before = known[branch.after - ROOT]
        path = [*paths.get(before.sequence, range(starts[chunk], starts[chunk]))]
        path += range(starts[before.sequence], before.row + 1)
        sequence, first = len(starts) - 1, before.position + 1
        paths[sequence] = path
        entry = first // block_size
        for table, blocks in zip(tables, branch.blocks, strict=True):
            table.append(table[before.sequence].copy())
            table[-1][entry : entry + len(blocks)] = blocks
        echoes += _runs([row for row in path if positions[row] >= entry * block_size], sequence)
        rows = range(len(positions), len(positions) + len(branch.tokens))
        known += [_Draft(row, first + at, sequence) for at, row in enumerate(rows)]
        positions += range(first, first + len(rows))
        starts.append(rows.stop)
        slots.append(branch.slot)
    return _extended(batch, plan.branches, positions, starts, slots)._replace(
        tables=tuple([np.stack(table) for table in tables]),
        echoes=np.array(echoes, np.int32).reshape(-1),
    )


def _runs(rows: list[int], sequence: int) -> list[tuple[int, int, int]]:
    """Return the echoes of rows, of which those that follow each other are one."""
    runs: list[tuple[int, int, int]] = []
    for row in rows:
        if runs and runs[-1][0] + runs[-1][1] == row:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1, sequence)
        else:
            runs.append((row, 1, sequence))
    return runs


def _extended(
    batch: HostBatch,
    branches: tuple[Branch, ...],
    positions: list[int],
    starts: list[int],
    slots: list[int],
) -> HostBatch:
    """Return a batch with the arrays by row and by sequence that branches make longer."""
    tokens = [token for branch in branches for token in branch.tokens]
    adapters, types = batch.adapters, batch.types
    if len(adapters):
        of_slot = dict(zip(batch.slots.tolist(), batch.row_starts.tolist(), strict=False))
        added = [adapters[of_slot[each.slot]] for each in branches for _ in each.tokens]
        adapters = np.concatenate((adapters, np.array(added, np.int32)))
    if len(types):
        types = np.concatenate((types, np.zeros(len(tokens), np.int32)))
    return batch._replace(
        token_ids=np.concatenate((batch.token_ids, np.array(tokens, np.int32))),
        positions=np.array(positions, np.int32),
        row_starts=np.array(starts, np.int32),
        slots=np.array(slots, np.int32),
        adapters=adapters,
        types=types,
    )


def parents_of(num_main: int, added: BranchRows | None) -> Ints:
    """Return which row of its sample each draft follows."""
    main = np.arange(num_main, dtype=np.int32)
    if added is None:
        return main
    return np.concatenate((main, np.array(added.parents, np.int32)))
