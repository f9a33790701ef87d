"""The arrays of one forward pass, made from a plan, and the purpose of each wanted row.

Logits are computed for these rows, in this order:

    the last row of each sampling chunk; where the chunk ends in drafts, also the row before each
    rows of prompts whose log-probabilities a request wants

Hidden states are computed for the rows of prompts that an embedding needs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from octavo.backends.base import Longs
from octavo.backends.step import HostBatch
from octavo.core.plan import StepPlan
from octavo.runner.slots import SlotState

_NO_ROWS = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class PromptRows:
    """Rows of the logits that predict a prompt's tokens."""

    slot: int
    first_row: int  # of the logits
    first_position: int  # of the tokens that they predict
    count: int


@dataclass(frozen=True, slots=True)
class HiddenRows:
    """Rows of the hidden states that one slot's embedding needs."""

    slot: int
    first_row: int  # of the hidden states
    count: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """The purpose of each row of the logits and of the hidden states."""

    chunks: Longs  # [samples]: the plan's chunks that sample
    slots: Longs  # [samples]: their slots
    first_rows: Longs  # [samples]: the logits row of the last known token
    drafts: dict[int, tuple[int, ...]]  # slot → drafts; their rows follow the first
    prompts: tuple[PromptRows, ...]
    hidden: tuple[HiddenRows, ...] = ()


def build(plan: StepPlan, state: SlotState) -> tuple[HostBatch, Wanted]:
    """Build the batch of a plan whose differences have been applied to `state`."""
    for slot, drafts in plan.drafts:
        state.write_drafts(slot, drafts)
    slots = np.array(plan.slots, np.int64)
    starts = np.array(plan.starts, np.int64)
    if len(slots) == plan.num_tokens:  # one token each, as in most steps; this is cheaper
        lasts, row_slots, positions = starts, slots, starts
        ends = np.arange(1, len(slots) + 1)
    else:
        counts = np.array(plan.counts, np.int64)
        ends = np.cumsum(counts)
        lasts = starts + counts - 1
        owners = np.repeat(np.arange(len(slots)), counts)
        row_slots = slots[owners]
        positions = np.arange(int(ends[-1])) + (lasts + 1 - ends)[owners]
    blocks = int(lasts.max()) // state.block_size + 1
    rows, wanted = _wanted(plan, state, slots, ends)
    hidden_rows = _NO_ROWS
    if state.pools:
        hidden_rows, hidden = _hidden_rows(plan, state, ends)
        wanted = replace(wanted, hidden=hidden)
    row_starts = np.zeros(len(slots) + 1, np.int32)
    row_starts[1:] = ends
    batch = HostBatch(
        token_ids=state.tokens[row_slots, positions],
        positions=positions.astype(np.int32),
        row_starts=row_starts,
        tables=tuple([table[slots, :blocks] for table in state.tables]),
        logits_rows=rows.astype(np.int32),
        hidden_rows=hidden_rows.astype(np.int32),
    )
    return batch, wanted


def _wanted(plan: StepPlan, state: SlotState, slots: Longs, ends: Longs) -> tuple[Longs, Wanted]:
    if False in plan.samples:
        chunks = np.flatnonzero(np.array(plan.samples))
        sampled, rows = slots[chunks], ends[chunks] - 1
    else:
        chunks, sampled, rows = np.arange(len(slots)), slots, ends - 1
    first_rows = np.arange(len(chunks))
    drafts = dict(plan.drafts)
    if drafts:
        lengths = np.array([1 + len(drafts.get(slot, ())) for slot in sampled.tolist()])
        behind = np.cumsum(lengths)
        first_rows = behind - lengths
        spans = [np.arange(row - n + 1, row + 1) for row, n in zip(rows, lengths, strict=True)]
        rows = np.concatenate(spans)
    prompts: tuple[PromptRows, ...] = ()
    if state.wants_prompt_logprobs:
        more, prompts = _prompt_rows(plan, state, ends, len(rows))
        rows = np.concatenate((rows, *more))
    return rows, Wanted(chunks, sampled, first_rows, drafts, prompts)


def _prompt_rows(
    plan: StepPlan, state: SlotState, ends: Longs, first_row: int
) -> tuple[list[Longs], tuple[PromptRows, ...]]:
    """Select the rows that predict prompt tokens: position p predicts the token at p + 1."""
    rows, prompts = [], []
    chunks = zip(plan.slots, plan.starts, plan.counts, ends.tolist(), strict=True)
    for slot, start, count, end in chunks:
        if slot not in state.wants_prompt_logprobs:
            continue
        num = min(start + count, int(state.num_prompt[slot]) - 1) - start
        if num > 0:
            rows.append(np.arange(end - count, end - count + num))
            prompts.append(PromptRows(slot, first_row, start + 1, num))
            first_row += num
    return rows, tuple(prompts)


def _hidden_rows(
    plan: StepPlan, state: SlotState, ends: Longs
) -> tuple[Longs, tuple[HiddenRows, ...]]:
    rows, hidden, first_row = [np.zeros(0, np.int64)], [], 0
    chunks = zip(plan.slots, plan.starts, plan.counts, ends.tolist(), strict=True)
    for slot, start, count, end in chunks:
        pool = state.pools.get(slot)
        positions = range(0) if pool is None else pool.wanted(start, count)
        if positions:
            rows.append(np.array(positions) + (end - count - start))
            hidden.append(HiddenRows(slot, first_row, len(positions)))
            first_row += len(positions)
    return np.concatenate(rows), tuple(hidden)
