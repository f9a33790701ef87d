"""Proposes what a second model of the same vocabulary draws, with KV of its own in the same pool.

The plan says for which slots the second model computes, and how much it proposes (core/plan.py).
Here is kept how far it has computed each text, so that a step names exactly the rows that it lacks:
those of a prompt's chunk, or one or two behind a step in which it proposed, or many where it has
not been used for a while. Rows of drafts that were accepted are kept: they are what it would
compute again. Those of refused drafts are overwritten before anything reads them. A second model
that reads the first one's hidden states computes all rows of drafts again.

A block of a cached prefix has rows of the second model as far as a sequence has computed them
there, which may be none. So the rows of each block are counted. A count is made final when another
sequence may read it: as long as texts only grow, this costs nothing.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import takewhile

import numpy as np

from octavo.backends.base import DRAFTER, Ints
from octavo.backends.step import NO_ROWS, Ahead, StepOutput
from octavo.core.config import CoreConfig
from octavo.core.plan import NewSlot, StepPlan
from octavo.runner.batch import Step
from octavo.runner.slots import SlotState
from octavo.runner.speculate.ahead import AheadWork, ComputedProposer, Wanted, wanted_by
from octavo.runner.speculate.proposer import NOTHING, Proposal, Turn

CATCH_UP_TOKENS = 256  # that it computes in one step for sequences that it has not followed


class _Text:
    """The text of a slot, as far as the second model has computed it."""

    __slots__ = ("drafts", "is_lost", "num_noted", "num_rows", "proposal")

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows  # of the leading tokens, which all are known
        self.num_noted = num_rows  # of these, those that are counted in their blocks
        self.proposal: tuple[int, ...] = ()  # behind the last known token; the last has no row
        self.drafts = NOTHING  # these tokens, and the candidates beside them
        self.is_lost = False  # rows that it would have to read have left its windows


class DraftModelProposer(ComputedProposer):
    """The rows and the proposals of a second model; implements `AheadProposer`."""

    def __init__(self, most: int, *, reads_hidden: bool = False) -> None:
        super().__init__(most)
        # It reads what the first model computes of the tokens before. Of proposals that is known
        # only once they are verified: until then it reads its own guess, and no row is right.
        self._reads_hidden = reads_hidden
        self._texts: dict[int, _Text] = {}
        self._drafting: set[int] = set()
        self._state: SlotState
        self._size = self._budget = 0
        self._groups: tuple[int, ...] = ()
        self._has_windows = False
        self._rows: tuple[dict[int, int], ...] = ()  # by group: of each block, the leading rows

    def attach(self, state: SlotState, config: CoreConfig) -> None:
        """Take the slots whose texts the second model reads, and the groups that are its own."""
        super().attach(state, config)
        self._state, self._size = state, config.block_size
        self._budget = config.max_num_batched_tokens
        owners = [group.owner for group in config.groups]
        self._groups = tuple([index for index, owner in enumerate(owners) if owner == DRAFTER])
        self._has_windows = any(config.groups[index].window for index in self._groups)
        self._rows = tuple([{0: self._size} for _ in self._groups])

    @property
    def is_used(self) -> bool:
        """True if any open slot may get drafts."""
        return bool(self._texts)

    # implementing Proposer

    def open(self, new: NewSlot) -> None:
        self._drafting.add(new.slot)  # its tables are read when the plan is known

    def free(self, slot: int) -> None:
        self._drafting.remove(slot)
        text = self._texts.pop(slot, None)
        if text is not None:
            self._note(slot, text)

    def propose(self, turns: Sequence[Turn]) -> Sequence[Proposal]:
        texts = [self._texts.get(turn.slot) for turn in turns]
        return [NOTHING if text is None else text.drafts for text in texts]

    # the rows in blocks

    def _note(self, slot: int, text: _Text) -> None:
        """Count the rows of a text in its blocks."""
        if text.num_rows == text.num_noted:
            return
        first, (full, rest) = text.num_noted // self._size, divmod(text.num_rows, self._size)
        for group, rows in zip(self._groups, self._rows, strict=True):
            blocks = self._state.tables[group][slot, first : full + 1].tolist()
            rows.update(dict.fromkeys(blocks[: full - first], self._size))
            if rest:
                rows[blocks[full - first]] = rest
        text.num_noted = text.num_rows

    def take_blocks(self, plan: StepPlan) -> None:
        """Follow the blocks of a plan: new ones have no rows, and copies those of their sources."""
        if not (plan.opened or plan.new_blocks or plan.copies or plan.loads):
            return
        # Blocks that have left a window are still in the tables: what is in them is counted before
        # another sequence gets them.
        if plan.opened or self._has_windows:
            for slot, text in self._texts.items():
                self._note(slot, text)
        starts = {}
        if plan.opened:
            starts = dict(zip(plan.slots, plan.starts, strict=True))
        for at, (group, rows) in enumerate(zip(self._groups, self._rows, strict=True)):
            fresh = [block for _, parts in plan.new_blocks for block in parts[group]]
            fresh += [load.block for load in plan.loads if load.group == group]
            for new in plan.opened:
                fresh += new.tables[group][starts.get(new.slot, 0) // self._size :]
            copied = {to: rows.get(source, 0) for source, to, of in plan.copies if of == group}
            for block in fresh:
                if block:
                    rows.pop(block, None)
            # Of a fork's copy, the rows behind what the fork shares are of the other text.
            for new in plan.opened:
                full, rest = divmod(starts.get(new.slot, 0), self._size)
                if rest and (block := new.tables[group][full]) in copied:
                    copied[block] = min(copied[block], rest)
            self._rows[at].update(copied)
        for new in plan.opened:
            if new.slot in self._drafting:
                self._texts[new.slot] = self._begun(new, starts.get(new.slot, 0))

    def _begun(self, new: NewSlot, num_cached: int) -> _Text:
        """Return the state of a text that begins with a cached prefix."""
        num_rows = num_cached
        for group, rows in zip(self._groups, self._rows, strict=True):
            found = 0
            for block in new.tables[group][: -(-num_cached // self._size)]:
                found += rows.get(block, 0)
                if rows.get(block, 0) < self._size:
                    break
            num_rows = min(num_rows, found)
        text = _Text(num_rows)
        text.is_lost = self._has_windows and num_rows < num_cached
        return text

    # a step

    def prepare(self, plan: StepPlan, step: Step) -> tuple[Step, AheadWork | None]:
        """Add to a step what the second model computes; return it, and what is asked."""
        if not (self._takes_part(plan) or plan.drafts):
            return step, None
        num_written = self._num_written(plan)
        asked = wanted_by(plan)
        num_rows: dict[int, int] = {}
        wanted: dict[int, Wanted] = {}
        tokens, positions, row_starts = [NO_ROWS], [NO_ROWS], [0]
        left = max(0, min(CATCH_UP_TOKENS, self._budget - plan.num_tokens))
        of_drafts = {slot: len(drafts) for slot, drafts in plan.drafts}
        chunks = zip(plan.slots, plan.starts, plan.counts, plan.samples, strict=True)
        for slot, start, count, samples in chunks:
            row_starts.append(row_starts[-1])
            text = self._texts.get(slot)
            if slot not in asked or text is None or text.is_lost:
                continue
            first, end = text.num_rows, start + count - of_drafts.get(slot, 0)
            num_behind = max(0, start - first)
            if num_behind and self._has_windows:
                text.is_lost = True
                continue
            if num_behind > left:
                end = first + left
            elif samples:
                wanted[slot] = asked[slot]
            left -= min(left, num_behind)
            if end > first:
                tokens.append(self._state.tokens[slot, first:end])
                positions.append(np.arange(first, end, dtype=np.int32))
                row_starts[-1] += end - first
                num_rows[slot] = end
        work = AheadWork(num_rows, wanted, num_written)
        if not (num_rows or wanted):
            return step, work
        drawn = step.draws.slots.tolist()
        of_drawn = [wanted.get(slot, Wanted()) for slot in drawn]
        row_starts += [row_starts[-1]] * len(plan.branches)  # which are sequences of the batch too
        ahead = Ahead(
            DRAFTER,
            np.array([each.num_places for each in of_drawn], np.int32),
            np.array([num_written.get(slot, 0) for slot in drawn], np.int32),
            np.concatenate(tokens),
            np.concatenate(positions),
            np.array(row_starts, np.int32),
            np.array([each.width for each in of_drawn], np.int32),
        )
        return step._replace(draws=step.draws._replace(ahead=ahead)), work

    def _num_written(self, plan: StepPlan) -> dict[int, int]:
        """Return how many leading drafts of a plan are those that the second model went on from."""
        found: dict[int, int] = {}
        if self._reads_hidden:
            return found
        for slot, drafts in plan.drafts:
            text = self._texts.get(slot)
            if text is None:
                continue
            pairs = zip(drafts, text.proposal[:-1], strict=False)
            found[slot] = next(
                (at for at, (one, other) in enumerate(pairs) if one != other),
                min(len(drafts), max(0, len(text.proposal) - 1)),
            )
        return found

    def collect(
        self, work: AheadWork, slots: Ints, output: StepOutput, lost: Container[int]
    ) -> None:
        """Take what a step has computed and proposed, before its tokens are known ones."""
        for slot, num_rows in work.num_rows.items():
            if slot not in lost:
                self._texts[slot].num_rows = num_rows
        proposals = output.proposals or ((),) * len(output.tokens)
        for slot, drawn, proposal in zip(slots.tolist(), output.tokens, proposals, strict=True):
            text = self._texts.get(slot)
            if text is None or slot in lost:
                continue
            known = self._state.num_known[slot]
            wanted = work.wanted.get(slot, Wanted())
            before, text.proposal = text.proposal, proposal[:: wanted.width]
            text.drafts = wanted.proposal(proposal)
            if proposal:
                text.num_rows = known + len(drawn)
            elif text.num_rows == known:
                # Of accepted drafts, those that it went on from itself have rows.
                pairs = zip(drawn[:-1], before, strict=False)
                own = sum(takewhile(bool, [one == other for one, other in pairs]))
                text.num_rows += min(own, work.num_written.get(slot, 0))
