"""The step of sequences that verify drafts, made with hardly any operation of numpy.

`batch.build` needs two dozen of them for such a step, and each costs several microseconds after the
weights have evicted everything else from the caches: together, as long as the rows of a draft take
in a small model. A loop over few rows is faster.
"""

from __future__ import annotations

import numpy as np

from octavo.backends.base import Ints
from octavo.backends.step import LAST_SAMPLE, NO_ROWS, Draws, HostBatch
from octavo.core.plan import StepPlan
from octavo.runner.batch import Step
from octavo.runner.slots import SlotState

MOST_ROWS = 64  # beyond, numpy is faster
_ROWS = np.arange(MOST_ROWS, dtype=np.int32)


def build_drafted(plan: StepPlan, state: SlotState, tables: tuple[Ints, ...]) -> Step | None:
    """Build the step of a plan in which each sequence computes its last sample and drafts.

    Its block tables are `tables`, if there are any. Return None for any other plan, and one with
    too many rows.
    """
    if plan.num_tokens > MOST_ROWS or plan.branches or plan.opened or False in plan.samples:
        return None
    if state.prompt_logprobs or state.pooled or state.drawless or state.adapters:
        return None
    if state.second_from or state.keeps_nothing:
        return None
    drafts_of = dict(plan.drafts)
    tokens: list[int] = []
    positions: list[int] = []
    row_starts = [0]
    num_drafts: list[int] = []
    drafts: list[int] = []
    for slot, start, count in zip(plan.slots, plan.starts, plan.counts, strict=True):
        own = drafts_of.get(slot, ())
        if count != 1 + len(own) or start < state.num_opened[slot]:
            return None  # it catches up, or what it computes is known
        tokens.append(LAST_SAMPLE)
        tokens += own
        positions += range(start, start + count)
        row_starts.append(len(tokens))
        num_drafts.append(count - 1)
        drafts += own
    num_rows, num_slots = len(tokens), len(num_drafts)
    numbers = np.array(
        [*tokens, *positions, *row_starts, *plan.slots, *num_drafts, *drafts], np.int32
    )
    behind_rows = 2 * num_rows + num_slots + 1
    starts_of_rows = numbers[2 * num_rows : behind_rows]
    slots = numbers[behind_rows : behind_rows + num_slots]
    if not tables:
        width = int(state.num_blocks[slots].max())
        tables = tuple([table[slots, :width] for table in state.tables])
    batch = HostBatch(
        token_ids=numbers[:num_rows],
        positions=numbers[num_rows : 2 * num_rows],
        row_starts=starts_of_rows,
        tables=tables,
        logits_rows=_ROWS[:num_rows],
        hidden_rows=NO_ROWS,
        slots=slots,
        copies=plan.copies,
    )
    draws = Draws(
        plan.freed,
        (),
        slots,
        first_rows=starts_of_rows[:-1],
        num_drafts=numbers[behind_rows + num_slots : behind_rows + 2 * num_slots],
        drafts=numbers[behind_rows + 2 * num_slots :],
    )
    return Step(batch, draws, None, {}, {})
