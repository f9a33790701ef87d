"""Finds room for a listing's buffers, and the places where threads must meet.

Room is counted in bytes a row, for the number of rows is not known: a buffer at offset o begins
o times the rows behind its space's beginning. Two buffers may share room if one is dead before
the other is born.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from octavo.program.listing import Buffer, Instruction, Listing, Prepared, Space

_FLOATS = 16  # a row's stride is a multiple of this many
# Instructions that may write over what they read, each element behind having been read.
_IN_PLACE = {
    "Gemm": ("y",),
    "Add": ("x", "y"),
    "Multiply": ("x",),
    "Scale": ("x",),
    "SoftCap": ("x",),
    "Activate": ("x",),
    "Norm": ("x",),
}
# Every thread does its even share of the rows: two of these on the same rows need no meeting.
_BY_ROWS = frozenset(
    ("Embed", "Norm", "Activate", "Gate", "Add", "Multiply", "Scale", "SoftCap", "Route")
)


@dataclass(frozen=True, slots=True)
class Room:
    """A run of bytes a row."""

    space: Space
    area: str  # "floats" or "prepared"
    offset: int
    row_bytes: int

    def overlaps(self, other: Room) -> bool:
        return (
            (self.space, self.area) == (other.space, other.area)
            and self.offset < other.offset + other.row_bytes
            and other.offset < self.offset + self.row_bytes
        )


@dataclass(slots=True)
class Plan:
    """Where everything is."""

    rooms: dict[int, Room] = field(default_factory=dict)  # by the id of a Buffer or Prepared
    row_bytes: dict[tuple[Space, str], int] = field(default_factory=dict)

    def room(self, thing: Buffer | Prepared) -> Room:
        return self.rooms[id(thing)]


def stride(width: int) -> int:
    """Floats from one row to the next."""
    return -(-width // _FLOATS) * _FLOATS


def plan(listing: Listing, prepared_bytes: dict[int, int]) -> Plan:
    """Room for everything; `prepared_bytes` are of each Prepared, a row, by its id."""
    made = Plan()
    spans = _spans(listing)
    taken: list[tuple[int, Room]] = []  # the last use of each, and where it is
    for at, instruction in enumerate(listing):
        taken = [(last, room) for last, room in taken if last >= at]
        for thing, row_bytes in _born(instruction, made, prepared_bytes):
            last = spans[id(thing)][1]
            room = _in_place(instruction, thing, spans, at, made)
            if room is None:
                area = "prepared" if isinstance(thing, Prepared) else "floats"
                room = _first_fit(taken, thing.space, area, row_bytes)
            made.rooms[id(thing)] = room
            taken.append((last, room))
            key = (room.space, room.area)
            end = room.offset + room.row_bytes
            made.row_bytes[key] = max(made.row_bytes.get(key, 0), end)
    return made


def _things(instruction: Instruction) -> Iterable[Buffer | Prepared]:
    for value in (*instruction.reads, *instruction.writes):
        if value.buffer.place == "Scratch":
            yield value.buffer
    if instruction.prepared is not None:
        yield instruction.prepared


def _spans(listing: Listing) -> dict[int, tuple[int, int]]:
    spans: dict[int, tuple[int, int]] = {}
    for at, instruction in enumerate(listing):
        for thing in _things(instruction):
            spans[id(thing)] = (spans.get(id(thing), (at, at))[0], at)
    return spans


def _born(
    instruction: Instruction, made: Plan, prepared_bytes: dict[int, int]
) -> Iterable[tuple[Buffer | Prepared, int]]:
    for thing in _things(instruction):
        if id(thing) not in made.rooms:
            if isinstance(thing, Prepared):
                yield thing, prepared_bytes[id(thing)]
            else:
                yield thing, 4 * stride(thing.width)


def _in_place(
    instruction: Instruction,
    thing: Buffer | Prepared,
    spans: dict[int, tuple[int, int]],
    at: int,
    made: Plan,
) -> Room | None:
    """The room of something read that nobody reads again, and that may be written over."""
    if isinstance(thing, Prepared) or instruction.out is None:
        return None
    if thing is not instruction.out.buffer:
        return None
    for name in _IN_PLACE.get(instruction.op, ()):
        read = getattr(instruction, name)
        if read is None or read.buffer.place != "Scratch" or not read.is_whole:
            continue
        buffer = read.buffer
        same = (buffer.space, buffer.width) == (thing.space, thing.width)
        if same and spans[id(buffer)][1] == at:
            return made.room(buffer)
    return None


def _first_fit(taken: list[tuple[int, Room]], space: Space, area: str, row_bytes: int) -> Room:
    offset = 0
    for _, room in sorted(taken, key=lambda entry: entry[1].offset):
        if (room.space, room.area) != (space, area):
            continue
        if offset + row_bytes <= room.offset:
            break
        offset = max(offset, room.offset + room.row_bytes)
    return Room(space, area, offset, row_bytes)


# meetings


@dataclass(frozen=True, slots=True)
class _Access:
    room: Room
    writes: bool
    by_rows: Space | None  # of which each thread touches its even share alone
    is_met: bool = False  # those who come later know that it is over


_ROPES = Room("Tokens", "rope tables", 0, 1)
_PAIRS = Room("Pairs", "sorted pairs", 0, 1)


def place_barriers(listing: Listing, made: Plan) -> None:
    """All meet before an instruction touches what others may be at work on since they last met."""
    since: list[_Access] = []
    for instruction in listing:
        mine = list(_accesses(instruction, made))
        instruction.barrier = any(_clash(one, other) for one in since for other in mine)
        lasting = [access for access in mine if not access.is_met]
        since = lasting if instruction.barrier else since + lasting


def _clash(one: _Access, other: _Access) -> bool:
    if not (one.writes or other.writes) or not one.room.overlaps(other.room):
        return False
    return one.by_rows is None or one.by_rows != other.by_rows


def _accesses(instruction: Instruction, made: Plan) -> Iterable[_Access]:
    op, space = instruction.op, instruction.space
    by_rows = space if op in _BY_ROWS else None
    for values, writes in ((instruction.reads, False), (instruction.writes, True)):
        for value in values:
            if value.buffer.place == "Scratch":
                # Attention norms and turns what it reads; a selection writes its own rows.
                changed = writes or (op == "Attention" and value is not instruction.out)
                mine = space if op == "Select" and writes else by_rows
                yield _Access(made.room(value.buffer), changed, mine)
    if instruction.prepared is not None:
        # Whoever prepares meets the others behind it, or does it in memory of its own.
        room = made.room(instruction.prepared)
        yield _Access(room, True, None, is_met=True) if op != "Gemm" else _Access(room, False, None)
        if op.startswith("Experts"):
            yield _Access(room, False, None)
    if op in ("RopeTables", "Attention"):
        yield _Access(_ROPES, op == "RopeTables", None)
    if op == "SortPairs" or op.startswith("Experts"):
        yield _Access(_PAIRS, op == "SortPairs", None)
