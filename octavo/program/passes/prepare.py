"""Each product's input is converted once into the form that its matrix reads, and normalised then.

Quantised inputs are such a form: a matrix of codes reads rows of codes. Matrices of floats read
rows as they are, which therefore need not be copied.
"""

from __future__ import annotations

from collections.abc import Callable

from octavo.program.listing import Buffer, Instruction, Listing, Op, Prepared

# What may leave rows in the form of products too.
_MAKERS: tuple[Op, ...] = ("Norm", "AddNorm", "Gate", "Attention")


def prepare_products(
    listing: Listing, reads_prepared: Callable[[Instruction], bool] = lambda gemm: True
) -> None:
    """Insert a Prepare before the first product of each input and form, or of some products."""
    made: dict[tuple[Buffer, int, int, str], Prepared] = {}
    products = [i for i in listing if i.op == "Gemm" and reads_prepared(i)]
    for gemm in products:
        assert gemm.x is not None
        assert gemm.matrix is not None
        kind = gemm.matrix.kind
        key = (*gemm.x.key, kind)
        if key not in made:
            made[key] = Prepared(gemm.x.buffer.space, gemm.matrix.inputs, kind)
            prepare = Instruction("Prepare", gemm.x, prepared=made[key], matrix=gemm.matrix)
            listing.insert(listing.index(gemm), prepare)
        gemm.prepared = made[key]
    for gemm in products:
        listing.change(gemm, x=None)


def norm_while_preparing(listing: Listing) -> None:
    """Compute a norm that only products read while their input is prepared.

    Adapters of these products compute it as well, for the few rows that have one.
    """
    for norm in [i for i in listing if i.op == "Norm"]:
        assert norm.out is not None
        if norm.out.buffer.place != "Scratch":
            continue
        readers = listing.readers(norm.out.buffer)
        if [reader.op for reader in readers if reader.op != "Shrink"] != ["Prepare"]:
            continue  # with several readers the norm would be computed several times
        if any(reader.x is None or reader.x.width != norm.out.width for reader in readers):
            continue
        for reader in readers:
            reader.norm = norm.norm
            listing.change(reader, x=norm.x)
        listing.remove(norm)


def prepare_while_making(listing: Listing) -> None:
    """Let what makes rows leave them in the form of products, and as they are if these are read.

    Norms of heads stay apart: the form is one of whole rows.
    """
    for prepare in [i for i in listing if i.op == "Prepare"]:
        x = prepare.x
        assert x is not None
        maker = listing.maker(x)
        if maker is None or maker.op not in _MAKERS or maker.prepared is not None:
            continue
        if maker.out is None or maker.out.key != x.key or prepare.norm is not None:
            continue
        if maker.norm is not None and (maker.norm.heads > 1 or maker.norm.weight_a_head):
            continue
        listing.remove(prepare)
        maker.prepared, maker.matrix = prepare.prepared, prepare.matrix
        if x.buffer.place == "Scratch" and not listing.readers(x.buffer):
            listing.change(maker, out=None)


def read_floats_in_place(listing: Listing) -> None:
    """Leave out conversions that would only copy rows: the products read these themselves."""
    for prepare in [i for i in listing if i.op == "Prepare"]:
        x, prepared = prepare.x, prepare.prepared
        assert x is not None
        assert prepared is not None
        if prepare.norm is not None or prepared.kind != "float":
            continue
        if x.buffer.place != "Scratch" or not x.is_whole:
            continue  # its rows may lie at other distances than prepared ones
        for gemm in [i for i in listing if i.op == "Gemm" and i.prepared is prepared]:
            gemm.prepared = None
            listing.change(gemm, x=x)
        listing.remove(prepare)
