"""The part of a further program in a step: what it lacks, and then its proposals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np

from octavo.backends.base import Floats, Ints
from octavo.backends.step import NO_ROWS, Ahead, Draws, HostBatch, StepOutput
from octavo.backends.torch.sampling.slot import Slot
from octavo.backends.torch.sampling.step_sampler import StepSampler
from octavo.layers import DraftBlock


@dataclass(slots=True)
class _Turn:
    """A sample for which tokens are proposed."""

    slot: Slot  # a branch of the open one
    sample: int
    sequence: int
    position: int  # of its last token
    drawn_from: int  # the row of logits of its last token
    num_left: int
    width: int  # candidates for each place
    num_drafts: int  # of the sample
    num_main: int  # accepted drafts that are the first of the sample's rows
    tokens: list[int] = field(default_factory=list)


def propose(
    batch: HostBatch,
    draws: Draws,
    output: StepOutput,
    sampler: StepSampler,
    run: Callable[[int, HostBatch, Ints], Floats],
) -> tuple[tuple[int, ...], ...]:
    """Return what a program proposes for each sample; `run` gives the logits of its rows.

    It gets the number of the pass, the rows, and the rows of logits from which the samples of
    those that go on were drawn.
    First it computes what it lacks, whether tokens are proposed or not.
    """
    assert draws.ahead is not None
    turns = _turns(batch, draws, draws.ahead, output, sampler)
    rows = _Rows(batch)
    _add_lacking(rows, draws.ahead, [turn for turn in turns if turn.num_left], output)
    number = 0
    while rows.token_ids:
        drawn_from = np.array([turn.drawn_from for turn in turns if turn.num_left], np.int32)
        logits = run(number, rows.made(), drawn_from)
        number += 1
        rest = [turn for turn in turns if turn.num_left]
        if rest:
            slots, widths = [turn.slot for turn in rest], [turn.width for turn in rest]
            _go_on(rest, sampler.candidates(logits, slots, widths))
        rows = _Rows(batch)
        for turn in turns:
            if turn.num_left:
                rows.add(turn.slot.tokens[-1], turn.position)
                rows.end(turn.sequence, wanted=(1, 1))
    return tuple(tuple(turn.tokens) for turn in turns)


def propose_block(
    batch: HostBatch,
    draws: Draws,
    output: StepOutput,
    sampler: StepSampler,
    block: DraftBlock,
    run: Callable[[int, HostBatch, Ints], Floats],
) -> tuple[tuple[int, ...], ...]:
    """Return what a program proposes that has a row for each token, in one pass."""
    assert draws.ahead is not None
    turns = _turns(batch, draws, draws.ahead, output, sampler)
    rest = [turn for turn in turns if turn.num_left]
    if not rest:
        return ((),) * len(turns)
    if max(turn.num_left for turn in rest) > block.num_tokens:
        raise ValueError("a block proposes fewer tokens than it has rows")
    rows, firsts = _Rows(batch), {}
    for turn in rest:
        firsts[turn.sample] = rows.num_wanted
        rows.add(turn.slot.tokens[-1], turn.position)
        for place in range(1, block.rows):
            rows.add(block.mask, turn.position + place)
        rows.end(turn.sequence, wanted=(block.num_tokens, turn.num_left))
    logits = run(0, rows.made(), NO_ROWS)
    for place in range(block.num_tokens):
        rest = [turn for turn in turns if turn.num_left]
        at = [firsts[turn.sample] + place for turn in rest]
        slots, widths = [turn.slot for turn in rest], [turn.width for turn in rest]
        _go_on(rest, sampler.candidates(logits[at], slots, widths))
    return tuple(tuple(turn.tokens) for turn in turns)


def _turns(
    batch: HostBatch, draws: Draws, ahead: Ahead, output: StepOutput, sampler: StepSampler
) -> list[_Turn]:
    """Return the state of each sample after its draws.

    A sample that failed, or that has a processor written in Python, gets no steps.
    """
    failed = {slot for slot, _ in output.failures}
    turns = []
    for sample, number in enumerate(draws.slots.tolist()):
        row = int(batch.logits_rows[draws.first_rows[sample]])
        sequence = int(np.searchsorted(batch.row_starts, row, side="right")) - 1
        # The last token known before, the drafts that were accepted, and the token behind them.
        count = len(output.tokens[sample])
        position = int(batch.positions[row]) + count
        walk = sampler.walks[sample]
        drawn_from = int(draws.first_rows[sample]) + walk[-1]
        num_main = sum(takewhile(bool, [n == row for n, row in enumerate(walk)])) - 1
        slot = sampler.slots[number]
        has_none = number in failed or slot.sampling.processors
        num_left = 0 if has_none else int(ahead.num_steps[sample])
        num_drafts = 0 if draws.num_drafts is None else int(draws.num_drafts[sample])
        width = int(ahead.widths[sample]) if len(ahead.widths) else 1
        at = (sample, sequence, position, drawn_from, num_left, width, num_drafts, num_main)
        turns.append(_Turn(slot.branch(), *at))
    return turns


def _add_lacking(rows: _Rows, ahead: Ahead, turns: list[_Turn], output: StepOutput) -> None:
    """Add the known tokens that a program lacks, and those that the turns have got."""
    of_sequence = {turn.sequence: turn for turn in turns}
    for sequence in range(len(ahead.row_starts) - 1):
        for row in range(*ahead.row_starts[sequence : sequence + 2].tolist()):
            rows.add(int(ahead.token_ids[row]), int(ahead.positions[row]))
        turn = of_sequence.get(sequence)
        if turn is not None:
            tokens = output.tokens[turn.sample]
            num_written = int(ahead.num_written[turn.sample])
            is_all = num_written >= turn.num_drafts
            num_written = len(tokens) - 1 if is_all else min(num_written, turn.num_main)
            first = turn.position + 1 - len(tokens)
            for place in range(num_written, len(tokens)):
                rows.add(tokens[place], first + place)
        rows.end(sequence, wanted=(1, int(turn is not None)))


def _go_on(turns: list[_Turn], candidates: list[list[int]]) -> None:
    """Give each turn the tokens that were drawn for it; one whose draw failed ends."""
    for turn, tokens in zip(turns, candidates, strict=True):
        if not tokens:
            turn.num_left = 0
            continue
        turn.slot.append(tokens[0])
        turn.tokens.extend([*tokens, *[-1] * (turn.width - len(tokens))])
        turn.position += 1
        turn.num_left -= 1


class _Rows:
    """Rows of some sequences of a batch."""

    def __init__(self, batch: HostBatch) -> None:
        self._batch = batch
        self.token_ids: list[int] = []
        self._positions: list[int] = []
        self._starts = [0]
        self._sequences: list[int] = []
        self._wanted: list[int] = []

    @property
    def num_wanted(self) -> int:
        """The number of rows whose logits are wanted."""
        return len(self._wanted)

    def add(self, token: int, position: int) -> None:
        self.token_ids.append(token)
        self._positions.append(position)

    def end(self, sequence: int, *, wanted: tuple[int, int]) -> None:
        """End the rows of a sequence, if it has any.

        The logits are wanted of so many among its last ones, from the first of these on.
        """
        count = len(self.token_ids)
        if count == self._starts[-1]:
            return
        self._starts.append(count)
        self._sequences.append(sequence)
        last, num_wanted = wanted
        self._wanted += range(count - last, count - last + num_wanted)

    def made(self) -> HostBatch:
        """Return the batch of these rows."""
        return HostBatch(
            np.array(self.token_ids, np.int32),
            np.array(self._positions, np.int32),
            np.array(self._starts, np.int32),
            tuple(table[self._sequences] for table in self._batch.tables),
            np.array(self._wanted, np.int32),
        )
