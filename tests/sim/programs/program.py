"""A second model over the slots of a worker, which proposes tokens from KV of its own.

Where a plan asks for it, it computes what it lacks of a slot's tokens, in the groups that it owns:
all that its blocks do not hold, since it was not asked before, or since another sequence of the
same prefix was not. Behind the token that was drawn it then goes on alone, a row at a time, on what
it drew itself. These rows are in no plan: the first model may refuse them, and what was written for
them must never be read.

Where the first model keeps latent rows without a window, the second one reads them: its row of a
position needs the first model's row of the position before. Behind a token that was drawn there is
none yet. So it leaves a guess there, from which it goes on; the first model writes over it. No row
that came of a guess is right, not even if its token is accepted. Every other row follows from the
tokens up to its own, so it is never found to be another one, whichever sequence computed it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.core.config import CoreConfig
from tests.sim.kv.memory import POISON, require
from tests.sim.truth import VOCABULARY, extend, next_token

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.sim.executor import Slot
    from tests.sim.kv.kinds import Rows

OWNER = "drafter"
GUESS = 1 << 100  # in the codes of rows that came of a guess, and of guesses
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
        self._source = next(filter(_is_source, groups), None)  # the rows that it reads
        self.num_guessed = 0
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
                self._read_source(slot, first, until)
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
            found = group.memory.cells[group.group][block][place]
            if found != cells[position]:
                is_empty = self._source is None or found == POISON or found & GUESS
                is_own = position >= slot.num_cached  # what is there may be of a forked text
                why = f"{slot.request_id}: a row at {position} of other tokens"
                require(is_own or bool(is_empty), why)
                return position
        return end

    def _read_source(self, slot: Slot, first: int, end: int) -> None:
        """Read the first model's rows of the positions before, which must be those of the text."""
        if self._source is None:
            return
        group, size = self._source, self._size
        right = group.codes_of(slot, end - 1)
        for position in range(max(0, first - 1), end - 1):
            block = slot.tables[group.group][position // size]
            found = group.memory.cells[group.group][block][position % size]
            require(found == right[position], f"{slot.request_id}: no hidden state at {position}")

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
            if self._source is not None:
                self._guess(slot, first + place, slots)
            tokens.append(self._proposed(slot, tokens))
        for group in self._groups:
            del slot.cells[group.group][first + 1 :]
        self.num_proposed += len(tokens)
        return tuple(tokens)

    def _compute(self, slot: Slot, position: int, token: int, slots: Iterable[Slot]) -> None:
        """Write a row that is in no plan, where no other sequence reads, and read its prefix."""
        for group in self._groups:
            block = self._own_block(group, slot, position, slots)
            group.compute(slot, position, position + 1, [token])
            if self._source is not None:
                slot.cells[group.group][position] |= GUESS
                group.memory.cells[group.group][block][position % self._size] |= GUESS

    def _own_block(self, group: Rows, slot: Slot, position: int, slots: Iterable[Slot]) -> int:
        """Return the block of a position, which no other sequence may read."""
        index = group.group
        block = slot.tables[index][position // self._size]
        for other in slots:
            oldest = group.oldest(other.position) // self._size  # earlier entries are dropped
            is_shared = other is not slot and block in other.tables[index][oldest:]
            require(not is_shared, f"{slot.request_id}: a proposal in {other.request_id}'s KV")
        return block

    def _guess(self, slot: Slot, position: int, slots: Iterable[Slot]) -> None:
        """Leave a guess in place of the first model's row, of a token that it has not computed."""
        group = self._source
        assert group is not None
        block = self._own_block(group, slot, position, slots)
        group.memory.cells[group.group][block][position % self._size] = GUESS
        self.num_guessed += 1

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


def _is_source(group: Rows) -> bool:
    """Return whether the second model reads what the first one keeps there."""
    return group.kind == "latent" and group.window is None and not group.is_owned
