"""Behind the last attention or convolution, only rows whose results are wanted are processed."""

from __future__ import annotations

from octavo.program.listing import ACROSS_ROWS, Buffer, Instruction, Listing, Value


def leave_out_unwanted_rows(listing: Listing) -> None:
    """Process only the wanted rows after the last attention, where rows are independent.

    Earlier values that they still need are selected just before the attention.
    """
    across = [i for i in listing if i.op in ACROSS_ROWS]
    if not across:
        return
    last = across[-1]
    behind = listing.instructions[listing.index(last) :]
    if any(i.op == "Keep" and i.space == "Tokens" for i in behind):
        return  # it needs the results of all rows
    for instruction in behind:
        for value in instruction.writes:
            if value.buffer.space == "Tokens":
                value.buffer.space = "Wanted"
    selected: dict[tuple[Buffer, int, int], Value] = {}
    for instruction in behind[1:]:
        for name in ("x", "y", "values", "chosen"):
            value = getattr(instruction, name)
            if value is None or value.buffer.space != "Tokens":
                continue
            if value.key not in selected:
                buffer = Buffer("Wanted", value.width)
                selected[value.key] = Value(buffer, 0, value.width, value.recorder)
                select = Instruction("Select", value, out=selected[value.key])
                listing.insert(listing.index(last), select)
            listing.change(instruction, **{name: selected[value.key]})
