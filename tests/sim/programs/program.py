"""A second model over the slots of a worker, which proposes tokens from KV of its own.

Where a plan asks for it, it computes what it lacks of a slot's tokens, in the groups that it owns:
all that its blocks do not hold, since it was not asked before, or since another sequence of the
same prefix was not. Behind the token that was drawn it then goes on alone, a row at a time, on what
it drew itself. These rows are in no plan: the first model may refuse them, and what was written for
them must never be read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.core.config import CoreConfig
from tests.sim.kv.memory import require
from tests.sim.truth import VOCABULARY, extend, next_token

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.sim.executor import Slot
    from tests.sim.kv.kinds import Rows

OWNER = "drafter"
MOST_BEHIND = 12  # rows that it computes in one step for a sequence that it has not followed


class Program:
    """The second model of one worker."""

    def __init__(self, config: CoreConfig, groups: list[Rows]) -> None:
        owners = [group.owner for group in config.groups]
        self._size = config.block_size
        self._most = config.max_ahead
        self._groups = [
            group for group, owner in zip(groups, owners, strict=True) if owner == OWNER
        ]
        self.num_proposed = 0
        self.num_behind = 0  # rows of tokens that were known before the step

    def follow(self, slot: Slot, start: int, end: int) -> bool:
        """Compute the rows before `end` that the blocks lack; return whether all are there now.

        The chunk begins at `start`: what was known before is a part at a time. A window that has
        lost rows which are needed for that cannot be filled again.
        """
        firsts = [self._first_lacking(group, slot, start, end) for group in self._groups]
        has_windows = any(group.window is not None for group in self._groups)
        if has_windows and min(firsts) < start:
            return False
        self.num_behind += sum(max(0, start - first) for first in firsts)
        until = end
        if min(firsts) < start - MOST_BEHIND:
            until = min(firsts) + MOST_BEHIND
        for group, first in zip(self._groups, firsts, strict=True):
            if first < until:
                group.compute(slot, first, until, slot.tokens[first:until])
            slot.cells[group.group][:] = group.codes_of(slot, end)
        return until == end

    def _first_lacking(self, group: Rows, slot: Slot, start: int, end: int) -> int:
        """Return the first position whose row is not in its block, of those that are read."""
        cells = slot.cells[group.group]
        cells[:] = group.codes_of(slot, end)
        for position in range(group.oldest(start), end):
            index, place = divmod(position, self._size)
            block = slot.tables[group.group][index]
            if group.memory.cells[group.group][block][place] != cells[position]:
                return position
        return end

    def propose(self, slot: Slot, length: int, slots: Iterable[Slot]) -> tuple[int, ...]:
        """Return so many tokens behind the known ones, by a row for each but the last."""
        first = len(slot.tokens) - 1
        require(slot.position == first, f"{slot.request_id}: proposes at {first} too early")
        require(0 < length <= self._most, f"{slot.request_id}: {length} proposals")
        for group in self._groups:
            room = len(slot.tables[group.group]) * self._size - first
            require(length <= room, f"{slot.request_id}: {length} proposals, and {room} rows")
        tokens: list[int] = []
        for place in range(length):
            if tokens:
                self._compute(slot, first + place, tokens[-1], slots)
            tokens.append(self._proposed(slot, tokens))
        for group in self._groups:
            del slot.cells[group.group][first + 1 :]
        self.num_proposed += len(tokens)
        return tuple(tokens)

    def _compute(self, slot: Slot, position: int, token: int, slots: Iterable[Slot]) -> None:
        """Write a row that is in no plan, where no other sequence reads, and read its prefix."""
        for group in self._groups:
            index = group.group
            block = slot.tables[index][position // self._size]
            for other in slots:
                oldest = group.oldest(other.position) // self._size  # earlier entries are dropped
                is_shared = other is not slot and block in other.tables[index][oldest:]
                require(not is_shared, f"{slot.request_id}: a proposal in {other.request_id}'s KV")
            group.compute(slot, position, position + 1, [token])

    def _proposed(self, slot: Slot, behind: list[int]) -> int:
        """Return the second model's next token.

        It is mostly the first one's, but hardly ever in some stretches of a text: then nothing is
        proposed for a while, and more again behind them.
        """
        state = slot.states[-1]
        for token in behind:
            state = extend(state, token)
        token = next_token(state)
        is_poor = (len(slot.tokens) + len(slot.request_id)) // 12 % 3 == 1
        is_right = state % 8 == 0 if is_poor else state % 4 > 0
        return token if is_right else (token + 1) % VOCABULARY
