"""The meaning of each kind of KV group: what a chunk writes, and what it must find.

Full and latent groups have a cell for each position. A state group has one cell in each block,
which must be exactly the state of the prefix up to the position where the sequence stopped, or up
to the end of the block. A cross group has the encoder's positions, which the first chunk writes if
they are not cached. A group without KV must get the whole sequence in every chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from octavo.core.config import CoreConfig
from tests.sim.kv.memory import POISON, Memory, SimulationError, require

if TYPE_CHECKING:
    from tests.sim.executor import Slot

ENCODED = 4095  # in place of a token in the cells of an encoder's positions


class Rows:
    """A cell for each position: full attention, and latent rows."""

    def __init__(self, group: int, config: CoreConfig, memory: Memory) -> None:
        self.group = group
        self.size = config.block_size
        self.window = config.groups[group].window
        self.kind = config.groups[group].kind
        self.is_owned = bool(config.groups[group].owner)  # by another model than the first
        self.num_groups = len(config.groups)
        self.memory = memory

    def base(self, slot: Slot) -> int:
        """Return the part of a cell's code that says what else it depends on."""
        return (slot.conditions * self.num_groups + self.group) << 40

    def allocated(self, blocks: tuple[int, ...]) -> None:
        """Clear the blocks by which a table grows."""
        self.memory.poison(self.group, blocks)

    def opened(
        self, table: tuple[int, ...], first: int, copied: set[int], encodes: tuple[int, ...]
    ) -> None:
        """Clear the blocks of a new table that are not part of its prefix."""
        own = [block for block in table[first // self.size :] if block not in copied]
        self.memory.poison(self.group, own)

    def start(self, slot: Slot, first: int) -> None:
        """Take the prefix as given, and check the versions of its blocks."""
        slot.cells[self.group].extend(self._codes(slot, 0, slot.tokens[:first]))
        oldest = self.oldest(first) // self.size
        self.check_versions(slot, first, slot.tables[self.group][oldest : -(-first // self.size)])

    def check_versions(self, slot: Slot, first: int, blocks: list[int]) -> None:
        """Require that no block was computed with older weights, or by a failed request."""
        for block in blocks:
            version = self.memory.versions[self.group][block]
            if self.is_owned and version == POISON:
                continue  # the second model has not computed it, and will see that
            if version < slot.version:
                why = f"computed with weights {version}, not {slot.version}"
                if version == POISON:
                    why = "which is empty or was left by a failed request"
                raise SimulationError(
                    f"{slot.request_id}: starts at {first} with block {block}, {why}"
                )

    def oldest(self, position: int) -> int:
        """Return the first position that a query reads, computed independently of the core."""
        return 0 if self.window is None else max(0, position - (self.window - 1))

    def _codes(self, slot: Slot, first: int, tokens: list[int]) -> list[int]:
        base = self.base(slot)
        codes = [base | position << 12 | token for position, token in enumerate(tokens, first)]
        if slot.salts:
            codes = [code | slot.salt_at(first + at) << 60 for at, code in enumerate(codes)]
        return codes

    def codes_of(self, slot: Slot, end: int) -> list[int]:
        """Return the right content of all rows before a position."""
        return self._codes(slot, 0, slot.tokens[:end])

    def compute(self, slot: Slot, first: int, end: int, tokens: list[int]) -> None:
        """Write the chunk's tokens, then read the prefix back as attention would."""
        table, cells = slot.tables[self.group], slot.cells[self.group]
        require(end <= len(table) * self.size, f"{slot.request_id}: table too short")
        del cells[first:]
        cells.extend(self._codes(slot, first, tokens))
        size, memory, versions = self.size, *self._views()
        for index in range(first // size, -(-end // size)):
            block = table[index]
            begin, until = max(first, index * size), min(end, (index + 1) * size)
            require(block != 0, f"{slot.request_id}: writes position {begin} to null")
            memory[block][begin - index * size : until - index * size] = cells[begin:until]
            versions[block] = slot.version
        self._read_back(slot, first, end)

    def _views(self) -> tuple[list[list[int]], list[int]]:
        return self.memory.cells[self.group], self.memory.versions[self.group]

    def _read_back(self, slot: Slot, first: int, end: int) -> None:
        size, table, cells = self.size, slot.tables[self.group], slot.cells[self.group]
        memory = self.memory.cells[self.group]
        oldest = self.oldest(first)
        index = oldest // size
        begin = index * size
        if begin < oldest:  # the window begins inside this block
            stop = min(end, begin + size)
            found = memory[table[index]][oldest - begin : stop - begin]
            require(found == cells[oldest:stop], difference(slot, oldest, found, cells))
            begin, index = begin + size, index + 1
        while begin + size <= end:
            found = memory[table[index]]
            if found != cells[begin : begin + size]:
                raise SimulationError(difference(slot, begin, found, cells))
            begin, index = begin + size, index + 1
        if begin < end:
            found = memory[table[index]][: end - begin]
            require(found == cells[begin:end], difference(slot, begin, found, cells))

    def settle(self, slot: Slot, first: int) -> None:
        """Write what depends on how many drafts were accepted."""

    def intact_blocks(self, slot: Slot) -> Iterator[int]:
        """Yield the full blocks with this sequence's content, in its window or not."""
        size, table, cells = self.size, slot.tables[self.group], slot.cells[self.group]
        memory = self.memory.cells[self.group]
        for index, block in enumerate(table[: len(cells) // size]):
            if memory[block] == cells[index * size : (index + 1) * size]:
                yield block


class States(Rows):
    """One cell in each block, of all positions so far."""

    def _code(self, slot: Slot, position: int) -> list[int]:
        return [slot.states[position] << 80 | self.base(slot) | position << 12]

    def allocated(self, blocks: tuple[int, ...]) -> None:
        self.memory.poison(self.group, [block for block in blocks if block])

    def opened(
        self, table: tuple[int, ...], first: int, copied: set[int], encodes: tuple[int, ...]
    ) -> None:
        own = [block for block in table[first // self.size :] if block and block not in copied]
        self.memory.poison(self.group, own)

    def start(self, slot: Slot, first: int) -> None:
        if first:
            entry = (first - 1) // self.size
            self.check_versions(slot, first, slot.tables[self.group][entry : entry + 1])

    def compute(self, slot: Slot, first: int, end: int, tokens: list[int]) -> None:
        if first:
            block = slot.tables[self.group][(first - 1) // self.size]
            require(block != 0, f"{slot.request_id}: no state at {first}")
            found = self.memory.cells[self.group][block]
            right = self._code(slot, first)
            require(found == right, f"{slot.request_id}: another state at {first}: {found}")

    def settle(self, slot: Slot, first: int) -> None:
        end, table = slot.position, slot.tables[self.group]
        last = (end - 1) // self.size
        for entry in range(first // self.size, last + 1):
            block = table[entry]
            require(bool(block) or entry < last, f"{slot.request_id}: no room for a state at {end}")
            if block:
                stop = min(end, (entry + 1) * self.size)
                self.memory.write(self.group, block, self._code(slot, stop), slot.version)

    def intact_blocks(self, slot: Slot) -> Iterator[int]:
        for index, block in enumerate(slot.tables[self.group][: slot.position // self.size]):
            right = self._code(slot, (index + 1) * self.size)
            if block and self.memory.cells[self.group][block] == right:
                yield block


class Encoded(Rows):
    """The positions of an encoder."""

    def _right(self, slot: Slot) -> list[list[int]]:
        """Return the right cells of each block."""
        codes = [self.base(slot) | at << 12 | ENCODED for at in range(slot.num_encoder)]
        return [codes[at : at + self.size] for at in range(0, len(codes), self.size)]

    def opened(
        self, table: tuple[int, ...], first: int, copied: set[int], encodes: tuple[int, ...]
    ) -> None:
        if self.group in encodes:
            self.memory.poison(self.group, table)

    def start(self, slot: Slot, first: int) -> None:
        table, right = slot.tables[self.group], self._right(slot)
        require(len(table) == len(right), f"{slot.request_id}: {len(table)} encoder blocks")
        if self.group not in slot.encodes:
            self.check_versions(slot, first, table)
            return
        for block, cells in zip(table, right, strict=True):
            self.memory.write(self.group, block, cells, slot.version)

    def compute(self, slot: Slot, first: int, end: int, tokens: list[int]) -> None:
        found = [self.memory.cells[self.group][block] for block in slot.tables[self.group]]
        require(found == self._right(slot), f"{slot.request_id}: wrong encoder positions: {found}")

    def intact_blocks(self, slot: Slot) -> Iterator[int]:
        for block, right in zip(slot.tables[self.group], self._right(slot), strict=True):
            if self.memory.cells[self.group][block] == right:
                yield block


class Nothing(Rows):
    """Every step computes the whole sequence."""

    def start(self, slot: Slot, first: int) -> None:
        require(first == 0, f"{slot.request_id}: starts at {first} without KV")

    def compute(self, slot: Slot, first: int, end: int, tokens: list[int]) -> None:
        is_whole = first == 0 and end == len(slot.tokens) and not slot.tables[self.group]
        require(is_whole, f"{slot.request_id}: {first} to {end} without KV")

    def intact_blocks(self, slot: Slot) -> Iterator[int]:
        return iter(())


KINDS: dict[str, type[Rows]] = {
    "full": Rows,
    "latent": Rows,
    "state": States,
    "cross": Encoded,
    "none": Nothing,
}


def difference(slot: Slot, begin: int, found: list[int], cells: list[int]) -> str:
    """Return the message which cell of the prefix has which wrong content."""
    for position, code in enumerate(found, begin):
        if position < len(cells) and code != cells[position]:
            right = cells[position]
            token, place = code & 4095, code >> 12 & 0xFFFFFFF
            content = f"token {token} of position {place}"
            if code == POISON:
                content = "nothing, since it was never written"
            elif code >> 40 != right >> 40:
                content += ", of another adapter, cache scope, salt or KV group"
            should = f"position {position} should hold token {right & 4095}"
            return f"{slot.request_id}: {should}, and holds {content}"
    return f"{slot.request_id}: reads {len(found)} cells at {begin}"
