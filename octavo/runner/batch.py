"""A step for the backend, made from a plan: the arrays of its forward pass, and its draws.

Logits are computed for these rows, in this order:

    the last row of each sampling chunk; where the chunk ends in drafts, also the row before each
    rows of prompts whose log-probabilities a request wants

Hidden states are computed for the rows of prompts that an embedding needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from octavo.backends.base import Ints, Longs
from octavo.backends.step import (
    LAST_SAMPLE,
    NO_ADAPTER,
    NO_ROWS,
    Draws,
    HostBatch,
    PoolRows,
    PromptRows,
    SlotSampling,
    batch_of_copies,
)
from octavo.core.plan import StepPlan
from octavo.runner.branches import add_branches, branch_rows, parents_of
from octavo.runner.slots import SlotState

Opened = tuple[tuple[int, SlotSampling], ...]


class Step(NamedTuple):
    """A plan as the backend computes it, and what its results mean."""

    batch: HostBatch
    draws: Draws
    chunks: Longs | None  # [samples]: the plan's chunks that sample; None: all of them
    prompt_starts: dict[int, int]  # slot → position of the first of its prompt's targets
    pool_starts: dict[int, int]  # slot → position of the first of its pooled rows


def build(plan: StepPlan, state: SlotState, opened: Opened = ()) -> Step:
    """Build the step of a plan whose differences have been applied to `state`."""
    if not plan.slots:
        batch = batch_of_copies(plan.copies)
        return Step(batch, Draws(plan.freed, opened, NO_ROWS, NO_ROWS), None, {}, {})
    slots = np.array(plan.slots, np.int32)
    starts = np.array(plan.starts, np.int32)
    num_rows = sum(plan.counts)
    if len(slots) == num_rows:  # one token each, as in most steps; this is cheaper
        lasts, row_slots, positions = starts, slots, starts
        ends = np.arange(1, len(slots) + 1, dtype=np.int32)
    else:
        counts = np.array(plan.counts, np.int32)
        ends = np.cumsum(counts, dtype=np.int32)
        lasts = starts + counts - 1
        owners = np.repeat(np.arange(len(slots)), counts)
        row_slots = slots[owners]
        positions = np.arange(int(ends[-1]), dtype=np.int32) + (lasts + 1 - ends)[owners]
    # All blocks that they have: plans that continue this one name only new ones.
    blocks = int(state.num_blocks[slots].max())
    # Of the tokens drawn since the opening, a chunk contains the last at most, then drafts.
    is_known = positions < state.num_opened[row_slots]
    token_ids = np.where(is_known, state.tokens[row_slots, positions], np.int32(LAST_SAMPLE))
    rows, chunks, draws = _draws(plan, opened, slots, ends, token_ids, state.drawless)
    starts_of_targets: dict[int, int] = {}
    if state.prompt_logprobs:
        more, prompts, starts_of_targets = _prompt_rows(plan, state, ends, len(rows))
        rows, draws = np.concatenate((rows, *more)), draws._replace(prompts=prompts)
    hidden_rows = NO_ROWS
    pool_starts: dict[int, int] = {}
    if state.pooled:
        hidden_rows, pools, pool_starts = _pool_rows(plan, state, ends)
        draws = draws._replace(pools=pools)
    row_starts = np.zeros(len(slots) + 1, np.int32)
    row_starts[1:] = ends
    tables = tuple([table[slots, :blocks] for table in state.tables])
    if state.keeps_nothing:
        tables = (_own_tables(np.diff(row_starts), state.block_size),) * len(tables)
    types = NO_ROWS
    if state.second_from:
        seconds = [state.second_from.get(slot, int(lasts.max()) + 1) for slot in plan.slots]
        types = (positions >= np.repeat(seconds, np.diff(row_starts))).astype(np.int32)
    adapters = NO_ROWS
    if state.adapters:
        of_slots = [state.adapters.get(slot, NO_ADAPTER) for slot in plan.slots]
        adapters = np.repeat(np.array(of_slots, np.int32), np.diff(row_starts))
    batch = HostBatch(
        token_ids=token_ids,
        positions=positions,
        row_starts=row_starts,
        tables=tables,
        logits_rows=rows,
        hidden_rows=hidden_rows,
        slots=slots,
        copies=plan.copies,
        types=types,
        adapters=adapters,
    )
    if plan.branches:
        batch = add_branches(batch, plan, state.block_size)
    return Step(batch, draws, chunks, starts_of_targets, pool_starts)


def _own_tables(counts: Ints, block_size: int) -> Ints:
    """Return tables of consecutive blocks, from the null block on, which nothing else uses then."""
    num_blocks = -(-counts // block_size)
    first = np.cumsum(num_blocks) - num_blocks
    index = np.arange(int(num_blocks.max()))
    table = np.where(index < num_blocks[:, None], first[:, None] + index, 0)
    return table.astype(np.int32)


def _draws(
    plan: StepPlan,
    opened: Opened,
    slots: Ints,
    ends: Ints,
    token_ids: Ints,
    drawless: Mapping[int, None],
) -> tuple[Ints, Longs | None, Draws]:
    """Return the rows of samples with their drafts, the sampling chunks, and the draws.

    Drafts are written into `token_ids`.
    """
    chunks = None
    if drawless or False in plan.samples:
        pairs = zip(plan.slots, plan.samples, strict=True)
        draws_token = [samples and slot not in drawless for slot, samples in pairs]
        chunks = np.flatnonzero(np.array(draws_token))
        slots, ends = slots[chunks], ends[chunks]
    rows = ends - np.int32(1)
    first_rows = np.arange(len(slots), dtype=np.int32)
    if not plan.drafts:
        return rows, chunks, Draws(plan.freed, opened, slots, first_rows)
    of_slot = dict(plan.drafts)
    per_sample = [of_slot.get(slot, ()) for slot in slots.tolist()]
    for end, main in zip(ends.tolist(), per_sample, strict=True):
        token_ids[end - len(main) : end] = main
    added = branch_rows(plan, len(token_ids)) if plan.branches else {}
    spans, drafts, parents = [], [], []
    for slot, end, main in zip(slots.tolist(), ends.tolist(), per_sample, strict=True):
        branched = added.get(slot)
        spans.append(np.arange(end - len(main) - 1, end, dtype=np.int32))
        drafts.append(main)
        parents.append(parents_of(len(main), branched))
        if branched is not None:
            spans[-1] = np.concatenate((spans[-1], np.array(branched.rows, np.int32)))
            drafts[-1] = (*main, *branched.drafts)
    num_drafts = np.array([len(each) for each in drafts], np.int32)
    draws = Draws(
        plan.freed,
        opened,
        slots,
        first_rows=np.cumsum(num_drafts + 1, dtype=np.int32) - (num_drafts + 1),
        num_drafts=num_drafts,
        drafts=np.array([token for each in drafts for token in each], np.int32),
        parents=np.concatenate(parents) if added else NO_ROWS,
    )
    return np.concatenate(spans), chunks, draws


def _prompt_rows(
    plan: StepPlan, state: SlotState, ends: Ints, first_row: int
) -> tuple[list[Ints], tuple[PromptRows, ...], dict[int, int]]:
    """Select the rows that predict prompt tokens: position p predicts the token at p + 1."""
    rows, prompts, first_targets = [], [], {}
    chunks = zip(plan.slots, plan.starts, plan.counts, ends.tolist(), strict=True)
    for slot, start, count, end in chunks:
        if slot not in state.prompt_logprobs:
            continue
        num = min(start + count, int(state.num_prompt[slot]) - 1) - start
        if num > 0:
            rows.append(np.arange(end - count, end - count + num, dtype=np.int32))
            targets = state.tokens[slot, start + 1 : start + 1 + num].copy()
            prompts.append(PromptRows(slot, first_row, targets, state.prompt_logprobs[slot]))
            first_targets[slot] = start + 1
            first_row += num
    return rows, tuple(prompts), first_targets


def _pool_rows(
    plan: StepPlan, state: SlotState, ends: Ints
) -> tuple[Ints, tuple[PoolRows, ...], dict[int, int]]:
    rows, pools, first_row, pool_starts = [NO_ROWS], [], 0, {}
    chunks = zip(plan.slots, plan.starts, plan.counts, ends.tolist(), strict=True)
    for slot, start, count, end in chunks:
        pooled = state.pooled.get(slot, range(0))
        first, stop = max(start, pooled.start), min(start + count, pooled.stop)
        if first < stop:
            offset = end - count - start
            rows.append(np.arange(first + offset, stop + offset, dtype=np.int32))
            apart = state.pooling[slot].kind == "all"
            pools.append(PoolRows(slot, first_row, stop - first, stop == pooled.stop, apart))
            pool_starts[slot] = first
            first_row += stop - first
    return np.concatenate(rows), tuple(pools), pool_starts
