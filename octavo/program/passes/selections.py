"""Only selected rows are normalised."""

from __future__ import annotations

from octavo.program.listing import Instruction, Listing


def select_before_norms(listing: Listing) -> None:
    """Move a norm behind a selection, so that only selected rows are normalised."""
    for norm in [i for i in listing if i.op == "Norm"]:
        assert norm.out is not None
        selections = listing.readers(norm.out.buffer)
        if not selections or any(i.op != "Select" for i in selections):
            continue
        for select in selections:
            assert select.out is not None
            assert norm.x is not None
            between = norm.x.recorder.new_like(select.out)
            behind = Instruction("Norm", between, out=select.out, norm=norm.norm)
            listing.change(select, x=norm.x, out=between)
            listing.insert(listing.index(select) + 1, behind)
        listing.remove(norm)
