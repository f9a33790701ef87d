"""The steps that several passes share: a pair of instructions becomes one."""

from __future__ import annotations

from octavo.program.listing import Instruction, Listing, Op


def pairs(listing: Listing, first: Op, second: Op) -> list[tuple[Instruction, Instruction]]:
    """Find each instruction `first` whose only reader is an instruction `second`."""
    found = []
    for instruction in listing:
        reader = listing.sole_reader(instruction) if instruction.op == first else None
        if reader is not None and reader.op == second:
            found.append((instruction, reader))
    return found


def replace(listing: Listing, old: Instruction, *, by: Instruction) -> None:
    """Remove an instruction and let another one write its output."""
    listing.remove(old)
    listing.change(by, out=old.out)
