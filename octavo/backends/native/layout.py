"""Lays out a listing's buffers in scratch memory, and places the barriers between threads.

Sizes are bytes a row, since the number of rows is not known: a buffer at offset o begins o times
the rows after its space's memory. Two buffers may share memory if the last use of one comes before
the first use of the other.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, field

from octavo.program.listing import Buffer, Instruction, Listing, Prepared, Space

_FLOATS = 16  # of a line; a row's stride is a multiple of this many
# Instructions that may overwrite what they read: each element is read before it is written.
_IN_PLACE = {
    "Gemm": ("y",),
    "Add": ("x", "y"),
    "Multiply": ("x",),
    "Scale": ("x",),
    "SoftCap": ("x",),
    "Activate": ("x",),
    "Norm": ("x",),
    "AllReduce": ("x", "y"),
}
# Every thread processes its even share of the rows: two of these on the same rows need no barrier.
_BY_ROWS = frozenset(
    (
        *("Embed", "Norm", "Activate", "Gate", "Add", "Multiply", "Scale", "SoftCap", "Route"),
        *("Keep", "Recall", "Spread", "Given", "AddExperts", "AllReduce"),
    )
)


_IN_PLACE_OF_KEYS = ("Attention", "KeepKV")
# Steps in which no row has an adapter leave these out.
_OF_ADAPTERS = ("Shrink", "WholeGemm")


class Extent(Struct, frozen=True):
    """A run of bytes a row."""

    space: Space
    area: str  # "floats" or "prepared"
    offset: int
    row_bytes: int

    def overlaps(self, other: Extent) -> bool:
        return (
            (self.space, self.area) == (other.space, other.area)
            and self.offset < other.offset + other.row_bytes
            and other.offset < self.offset + self.row_bytes
        )


class Layout(Struct):
    """The extent of every buffer, and the bytes a row of every area."""

    extents: dict[int, Extent] = field(default_factory=dict)  # by the id of a Buffer or Prepared
    row_bytes: dict[tuple[Space, str], int] = field(default_factory=dict)
    # Whether rows in scratch are an odd number of lines apart, as prepared ones are: where products
    # read them, rows that are a power of two apart would all map to one set of the L1.
    has_odd_strides: bool = False

    def extent(self, buffer: Buffer | Prepared) -> Extent:
        return self.extents[id(buffer)]

    def stride(self, buffer: Buffer) -> int:
        """Return the floats from one row to the next."""
        floats = stride(buffer.width)
        if self.has_odd_strides and buffer.place == "Scratch":
            floats |= _FLOATS
        return floats


def stride(width: int) -> int:
    """Return so many floats as whole lines."""
    return -(-width // _FLOATS) * _FLOATS


def lay_out(listing: Listing, prepared_bytes: dict[int, int]) -> Layout:
    """Lay out every buffer; `prepared_bytes` has the bytes a row of each Prepared, by its id."""
    reads_in_place = any(i.op == "Gemm" and i.x is not None for i in listing)
    layout = Layout(has_odd_strides=reads_in_place)
    spans = _spans(listing)
    taken: list[tuple[int, Extent]] = []  # with the last use of each
    for at, instruction in enumerate(listing):
        taken = [(last, extent) for last, extent in taken if last >= at]
        for buffer, row_bytes in _first_used(instruction, layout, prepared_bytes):
            last = spans[id(buffer)][1]
            extent = _in_place(instruction, buffer, spans, at, layout)
            if extent is None:
                area = "prepared" if isinstance(buffer, Prepared) else "floats"
                extent = _first_fit(taken, buffer.space, area, row_bytes)
            layout.extents[id(buffer)] = extent
            taken.append((last, extent))
            key = (extent.space, extent.area)
            end = extent.offset + extent.row_bytes
            layout.row_bytes[key] = max(layout.row_bytes.get(key, 0), end)
    return layout


def _buffers(instruction: Instruction) -> Iterable[Buffer | Prepared]:
    for value in (*instruction.reads, *instruction.writes):
        if value.buffer.place == "Scratch":
            yield value.buffer
    if instruction.prepared is not None:
        yield instruction.prepared


def _spans(listing: Listing) -> dict[int, tuple[int, int]]:
    """Return the first and the last use of each buffer."""
    spans: dict[int, tuple[int, int]] = {}
    for at, instruction in enumerate(listing):
        for buffer in _buffers(instruction):
            spans[id(buffer)] = (spans.get(id(buffer), (at, at))[0], at)
    return spans


def _first_used(
    instruction: Instruction, layout: Layout, prepared_bytes: dict[int, int]
) -> Iterable[tuple[Buffer | Prepared, int]]:
    """Yield the buffers that no instruction used before, with their bytes a row."""
    for buffer in _buffers(instruction):
        if id(buffer) not in layout.extents:
            if isinstance(buffer, Prepared):
                yield buffer, prepared_bytes[id(buffer)]
            else:
                yield buffer, 4 * layout.stride(buffer)


def _in_place(
    instruction: Instruction,
    buffer: Buffer | Prepared,
    spans: dict[int, tuple[int, int]],
    at: int,
    layout: Layout,
) -> Extent | None:
    """Return the extent of an input that is not read again and may be overwritten, if any."""
    if isinstance(buffer, Prepared) or instruction.out is None:
        return None
    if buffer is not instruction.out.buffer:
        return None
    for name in _IN_PLACE.get(instruction.op, ()):
        read = getattr(instruction, name)
        if read is None or read.buffer.place != "Scratch" or not read.is_whole:
            continue
        if instruction.op == "Gemm" and instruction.x and instruction.x.buffer is read.buffer:
            continue  # its products read whole rows, of which others are written before
        same = (read.buffer.space, read.buffer.width) == (buffer.space, buffer.width)
        if same and spans[id(read.buffer)][1] == at:
            return layout.extent(read.buffer)
    return None


def _first_fit(taken: list[tuple[int, Extent]], space: Space, area: str, row_bytes: int) -> Extent:
    offset = 0
    for _, extent in sorted(taken, key=lambda entry: entry[1].offset):
        if (extent.space, extent.area) != (space, area):
            continue
        if offset + row_bytes <= extent.offset:
            break
        offset = max(offset, extent.offset + extent.row_bytes)
    return Extent(space, area, offset, row_bytes)


# barriers


class _Access(Struct, frozen=True):
    extent: Extent
    writes: bool
    by_rows: Space | None  # each thread touches only its even share of this space's rows
    is_fenced: bool = False  # the instruction itself has a barrier after it


_ROPES = Extent("Tokens", "rope tables", 0, 1)
_PAIRS = Extent("Pairs", "sorted pairs", 0, 1)


def place_barriers(
    listing: Listing, layout: Layout, *, with_adapters: bool = False, in_ranks: bool = False
) -> frozenset[int]:
    """Return the numbers of the instructions before which all threads wait for each other.

    These conflict with an instruction since the last barrier. A step without adapters leaves out
    the instructions that only adapters need. In ranks a row of a table is looked up by the rank
    that has it, and not by the thread whose share of the rows it is in.
    """
    by_rows = _BY_ROWS - {"Embed"} if in_ranks else _BY_ROWS
    since: list[_Access] = []
    barriers = set()
    for number, instruction in enumerate(listing):
        if instruction.op in _OF_ADAPTERS and not with_adapters:
            continue
        mine = list(_accesses(instruction, layout, by_rows))
        lasting = [access for access in mine if not access.is_fenced]
        if any(_conflict(one, other) for one in since for other in mine):
            barriers.add(number)
            since = lasting
        else:
            since = since + lasting
    return frozenset(barriers)


def _conflict(one: _Access, other: _Access) -> bool:
    if not (one.writes or other.writes) or not one.extent.overlaps(other.extent):
        return False
    if one.by_rows is None or one.by_rows != other.by_rows:
        return True
    # Where buffers lie differently, a row of one shares memory with other rows of the other.
    first, second = one.extent, other.extent
    return (first.offset, first.row_bytes) != (second.offset, second.row_bytes)


def _accesses(
    instruction: Instruction, layout: Layout, ops_by_rows: frozenset[str]
) -> Iterable[_Access]:
    op, space = instruction.op, instruction.space
    by_rows = space if op in ops_by_rows else None
    for values, writes in ((instruction.reads, False), (instruction.writes, True)):
        for value in values:
            if value.buffer.place == "Scratch":
                # Attention normalises and rotates its inputs in place, as what keeps keys does; a
                # selection writes its rows.
                changed = writes or (op in _IN_PLACE_OF_KEYS and value is not instruction.out)
                mine = space if op == "Select" and writes else by_rows
                yield _Access(layout.extent(value.buffer), changed, mine)
    if instruction.prepared is not None:
        # Preparing ends with a barrier, or happens in each thread's own memory.
        extent = layout.extent(instruction.prepared)
        is_read = op == "Gemm"
        yield _Access(extent, not is_read, None, is_fenced=not is_read)
        if op.startswith("Experts"):
            yield _Access(extent, False, None)
    if op in ("RopeTables", *_IN_PLACE_OF_KEYS):
        yield _Access(_ROPES, op == "RopeTables", None)
    if op in ("SortPairs", "AddExperts") or op.startswith("Experts"):
        yield _Access(_PAIRS, op == "SortPairs", None)
