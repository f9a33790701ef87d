"""Proposals: steps of a further program, each on the token that it drew in the one before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from octavo.backends.base import Floats
from octavo.backends.step import Draws, HostBatch, StepOutput
from octavo.backends.torch.sampling.slot import Slot
from octavo.backends.torch.sampling.step_sampler import StepSampler


@dataclass(slots=True)
class _Turn:
    """A sample for which tokens are proposed."""

    slot: Slot  # a branch of the open one
    sequence: int
    position: int  # of its last token
    num_left: int
    tokens: list[int] = field(default_factory=list)


def propose(
    batch: HostBatch,
    draws: Draws,
    output: StepOutput,
    sampler: StepSampler,
    run: Callable[[HostBatch], Floats],
) -> tuple[tuple[int, ...], ...]:
    """Return what a program proposes for each sample; `run` gives the logits of its rows.

    The program has computed the rows of the batch, whose output this is.
    """
    turns = _turns(batch, draws, output, sampler)
    while rest := [turn for turn in turns if turn.num_left]:
        logits = run(_rows(batch, rest))
        drawn, failures = sampler.draw(logits, [turn.slot for turn in rest])
        for row, (turn, token) in enumerate(zip(rest, drawn.tolist(), strict=True)):
            if row in failures:
                turn.num_left = 0
                continue
            turn.slot.append(token)
            turn.tokens.append(token)
            turn.position += 1
            turn.num_left -= 1
    return tuple(tuple(turn.tokens) for turn in turns)


def _turns(batch: HostBatch, draws: Draws, output: StepOutput, sampler: StepSampler) -> list[_Turn]:
    """Return the state of each sample after its draws.

    A sample that failed, or that has a processor written in Python, gets no steps.
    """
    assert draws.ahead is not None
    failed = {slot for slot, _ in output.failures}
    turns = []
    for sample, number in enumerate(draws.slots.tolist()):
        row = int(batch.logits_rows[draws.first_rows[sample]])
        sequence = int(np.searchsorted(batch.row_starts, row, side="right")) - 1
        # The last token known before, the drafts that were accepted, and the token behind them.
        position = int(batch.positions[row]) + len(output.tokens[sample])
        slot = sampler.slots[number]
        has_none = number in failed or slot.sampling.processors
        num_left = 0 if has_none else int(draws.ahead.num_steps[sample])
        turns.append(_Turn(slot.branch(), sequence, position, num_left))
    return turns


def _rows(batch: HostBatch, turns: list[_Turn]) -> HostBatch:
    """Return a batch with a row for each turn: its last token."""
    sequences = [turn.sequence for turn in turns]
    return HostBatch(
        np.array([turn.slot.tokens[-1] for turn in turns], np.int32),
        np.array([turn.position for turn in turns], np.int32),
        np.arange(len(turns) + 1, dtype=np.int32),
        tuple(table[sequences] for table in batch.tables),
        np.arange(len(turns), dtype=np.int32),
    )
