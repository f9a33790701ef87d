"""A second model over the slots of a worker, which proposes tokens from KV of its own.

Each chunk is computed by it too, as by the first model, in the groups that it owns. Behind the
token that was drawn it then goes on alone, a row at a time, on what it drew itself. These rows are
in no plan: the first model may refuse them, and what was written for them must never be read.
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


class Program:
    """The second model of one worker."""

    def __init__(self, config: CoreConfig, groups: list[Rows]) -> None:
        owners = [group.owner for group in config.groups]
        self._size = config.block_size
        self._groups = [
            group for group, owner in zip(groups, owners, strict=True) if owner == OWNER
        ]
        self.num_proposed = 0
        self.num_without_room = 0  # tokens that it could not propose

    def propose(self, slot: Slot, length: int, slots: Iterable[Slot]) -> tuple[int, ...]:
        """Return up to so many tokens behind the known ones, by a row for each.

        The tables have room for the known tokens; what they have beyond that is the rest of a
        block, and no row may be written behind it.
        """
        first = len(slot.tokens) - 1
        require(slot.position == first, f"{slot.request_id}: proposes at {first} too early")
        num_blocks = [len(slot.tables[group.group]) for group in self._groups]
        room = max(0, min(num_blocks, default=0) * self._size - first)
        self.num_without_room += max(0, length - room)
        for group in self._groups:
            del slot.cells[group.group][first:]  # of drafts that were refused
        tokens = [slot.tokens[-1]]
        for position in range(first, first + min(length, room)):
            self._compute(slot, position, tokens[-1], slots)
            tokens.append(_proposed(slot, tokens[1:]))
        for group in self._groups:
            del slot.cells[group.group][first:]
        self.num_proposed += len(tokens) - 1
        return tuple(tokens[1:])

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


def _proposed(slot: Slot, behind: list[int]) -> int:
    """Return the second model's next token, which is the first one's in most cases."""
    state = slot.states[-1]
    for token in behind:
        state = extend(state, token)
    token = next_token(state)
    return token if state % 4 else (token + 1) % VOCABULARY
