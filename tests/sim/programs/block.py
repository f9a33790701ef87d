"""A second model that proposes a block of tokens in one pass, over rows that the first one keeps.

It keeps nothing of its own, so it lacks nothing. In the places behind the known tokens its pass
leaves rows, one for the last token and one for each that it may propose, however few were asked
for. The first model writes over those places before it reads them; no other sequence may.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.core.config import CoreConfig
from tests.sim.kv.memory import require
from tests.sim.programs.program import GUESS, Program

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.sim.executor import Slot
    from tests.sim.kv.kinds import Rows


class BlockProgram(Program):
    """The second model of one worker."""

    def __init__(self, config: CoreConfig, groups: list[Rows]) -> None:
        super().__init__(config, groups)
        self._context = [group for group in groups if group.kind == "full" and not group.is_owned]

    def follow(self, slot: Slot, start: int, end: int) -> bool:
        """Compute nothing, since it lacks no rows."""
        return True

    def propose(self, slot: Slot, length: int, slots: Iterable[Slot]) -> tuple[int, ...]:
        """Return so many tokens behind the known ones, by a row for each that there may be."""
        first, rows = len(slot.tokens) - 1, self._most + 1
        require(slot.position == first, f"{slot.request_id}: proposes at {first} too early")
        require(0 < length <= self._most, f"{slot.request_id}: {length} proposals")
        for group in self._context:
            self._read(group, slot, first)
            room = len(slot.tables[group.group]) * self._size - first
            require(rows <= room, f"{slot.request_id}: a block of {rows} rows, and {room} places")
            for position in range(first, first + rows):
                self._leave(group, slot, position, slots)
        tokens: list[int] = []
        for _ in range(length):
            tokens.append(self._proposed(slot, tokens))
        self.num_proposed += length
        return tuple(tokens)

    def _read(self, group: Rows, slot: Slot, end: int) -> None:
        """Read the rows before a position, which must be those of the text."""
        right, cells = group.codes_of(slot, end), group.memory.cells[group.group]
        for position in range(group.oldest(end), end):
            block = slot.tables[group.group][position // self._size]
            found = cells[block][position % self._size]
            require(found == right[position], f"{slot.request_id}: no context at {position}")

    def _leave(self, group: Rows, slot: Slot, position: int, slots: Iterable[Slot]) -> None:
        """Write a row of the block, where no other sequence reads."""
        block = self._own_block(group, slot, position, slots)
        group.memory.cells[group.group][block][position % self._size] = GUESS
        self.num_guessed += 1
