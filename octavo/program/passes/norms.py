"""A sum and the norm that reads it become one instruction, which writes both."""

from __future__ import annotations

from octavo.program.listing import Instruction, Listing


def norm_while_adding(listing: Listing) -> None:
    """Let an addition normalise its sum too, as the residual stream of a layer needs.

    The pass comes after those that look for norms.
    """
    for add in [i for i in listing if i.op == "Add"]:
        norm = _norm_of_rows(listing, add)
        if norm is None:
            continue
        at = listing.index(add)
        listing.remove(add)
        listing.remove(norm)
        joined = Instruction("AddNorm", add.x, add.y, norm.out, total=add.out, norm=norm.norm)
        listing.insert(at, joined)


def _norm_of_rows(listing: Listing, add: Instruction) -> Instruction | None:
    """Return the first norm of whole rows that reads a sum, if there is one."""
    assert add.out is not None
    for reader in listing.readers(add.out.buffer):
        if reader.op != "Norm" or reader.x is None or reader.x.key != add.out.key:
            continue
        assert reader.norm is not None
        if reader.norm.heads == 1 and not reader.norm.weight_a_head:
            return reader
    return None
