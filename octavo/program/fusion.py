"""Peephole passes: each finds one pattern in a listing and replaces it by fewer instructions."""

from __future__ import annotations

from dataclasses import replace

from octavo.layers import Rope
from octavo.program.listing import (
    Buffer,
    Instruction,
    Listing,
    Norm,
    Prepared,
    RecordingError,
    Value,
)


def fuse(listing: Listing) -> None:
    """Run all passes, in an order in which each enables the next."""
    take_into_attention(listing)
    leave_out_unwanted_rows(listing)
    scale_embeddings(listing)
    gate_in_products(listing)
    activate_in_products(listing)
    scale_in_products(listing)
    cap_in_products(listing)
    add_residuals_in_products(listing)
    select_before_norms(listing)
    split_products_by_kind(listing)
    prepare_products(listing)
    refuse_what_is_left(listing)


def take_into_attention(listing: Listing) -> None:
    """Move norms and rotations of queries and keys into the attention that reads them."""
    for instruction in [i for i in listing if i.op == "Attention"]:
        attend = instruction.attend
        assert attend is not None
        assert instruction.x is not None
        assert instruction.y is not None
        q, q_rope, q_norm = _unwrap(listing, instruction.x, instruction)
        k, k_rope, k_norm = _unwrap(listing, instruction.y, instruction)
        if q_rope != k_rope:
            raise RecordingError("queries and keys that turn differently")
        listing.change(instruction, x=q, y=k)
        instruction.attend = replace(attend, rope=q_rope, q_norm=q_norm, k_norm=k_norm)
        v = instruction.values
        assert v is not None
        if not q.buffer is k.buffer is v.buffer:
            raise RecordingError("queries, keys and values that are not parts of one projection")
        # The attention normalises and rotates them in place.
        if listing.readers(q.buffer) != [instruction]:
            raise RecordingError("queries, keys or values that something else reads as well")


def _unwrap(
    listing: Listing, value: Value, reader: Instruction
) -> tuple[Value, Rope | None, Norm | None]:
    """Remove the norm and the rotation that only `reader` reads; return their input and both."""
    rope, norm = None, None
    maker = listing.maker(value)
    if maker is not None and maker.op == "Rope" and listing.sole_reader(maker) is reader:
        rope, reader = maker.rope, maker
        assert maker.x is not None
        value = maker.x
        maker = listing.maker(value)
    if maker is not None and maker.op == "Norm" and listing.sole_reader(maker) is reader:
        norm = maker.norm
        assert maker.x is not None
        value = maker.x
        listing.remove(maker)
    if reader.op == "Rope":
        listing.remove(reader)
    return value, rope, norm


def leave_out_unwanted_rows(listing: Listing) -> None:
    """Process only the wanted rows after the last attention, where rows are independent.

    Earlier values that they still need are selected just before the attention, where a barrier
    follows anyway.
    """
    attentions = [i for i in listing if i.op == "Attention"]
    if not attentions:
        return
    last = attentions[-1]
    behind = listing.instructions[listing.index(last) :]
    for instruction in behind:
        for value in instruction.writes:
            if value.buffer.space == "Tokens":
                value.buffer.space = "Wanted"
    selected: dict[tuple[int, int, int], Value] = {}
    for instruction in behind[1:]:
        for name in ("x", "y", "values", "chosen"):
            value = getattr(instruction, name)
            if value is None or value.buffer.space != "Tokens":
                continue
            key = (id(value.buffer), value.first, value.width)
            if key not in selected:
                buffer = Buffer("Wanted", value.width)
                selected[key] = Value(buffer, 0, value.width, value.recorder)
                select = Instruction("Select", value, out=selected[key])
                listing.insert(listing.index(last), select)
            listing.change(instruction, **{name: selected[key]})


def _absorb(listing: Listing, op: str, *, into: str) -> list[tuple[Instruction, Instruction]]:
    """Find the pairs of an instruction `into` and its only reader, of the kind `op`."""
    pairs = []
    for instruction in listing:
        reader = listing.sole_reader(instruction) if instruction.op == into else None
        if reader is not None and reader.op == op:
            pairs.append((instruction, reader))
    return pairs


def _replace(listing: Listing, old: Instruction, *, by: Instruction) -> None:
    """Remove an instruction and let another one write its output."""
    listing.remove(old)
    listing.change(by, out=old.out)


def scale_embeddings(listing: Listing) -> None:
    """Scale an embedding's rows as they are looked up."""
    for embed, scale in _absorb(listing, "Scale", into="Embed"):
        embed.factor *= scale.factor
        _replace(listing, scale, by=embed)


def gate_in_products(listing: Listing) -> None:
    """Compute activation(gate) · up in the product of a matrix that interleaves gate and up."""
    for gemm in [i for i in listing if i.op == "Gemm"]:
        assert gemm.matrix is not None
        assert gemm.out is not None
        if not gemm.matrix.gated:
            continue
        readers = listing.readers(gemm.out.buffer)
        if len(readers) != 1 or readers[0].op != "Gate":
            raise RecordingError("a projection of gates and ups that not only a gate reads")
        gemm.activation, gemm.gated = readers[0].activation, True
        _replace(listing, readers[0], by=gemm)


def activate_in_products(listing: Listing) -> None:
    """Apply an activation in the product whose output it reads."""
    for gemm, activate in _absorb(listing, "Activate", into="Gemm"):
        if gemm.activation is None:
            gemm.activation = activate.activation
            _replace(listing, activate, by=gemm)


def scale_in_products(listing: Listing) -> None:
    """Apply a factor in the product whose output it scales."""
    for gemm, scale in _absorb(listing, "Scale", into="Gemm"):
        if gemm.activation is None and gemm.factor == 1.0:
            gemm.factor = scale.factor
            _replace(listing, scale, by=gemm)


def cap_in_products(listing: Listing) -> None:
    """Apply a soft cap in the product whose output it reads."""
    for gemm, cap in _absorb(listing, "SoftCap", into="Gemm"):
        if gemm.activation is None and gemm.cap == 0.0:
            gemm.cap = cap.cap
            _replace(listing, cap, by=gemm)


def add_residuals_in_products(listing: Listing) -> None:
    """Add a value that is already computed in the product that it is added to."""
    for add in [i for i in listing if i.op == "Add"]:
        for mine, other in ((add.y, add.x), (add.x, add.y)):
            assert mine is not None
            assert other is not None
            gemm = listing.maker(mine)
            if gemm is None or gemm.op != "Gemm" or gemm.gated or gemm.y is not None:
                continue
            if listing.sole_reader(gemm) is not add:
                continue
            maker = listing.maker(other)
            if maker is None or listing.index(maker) > listing.index(gemm):
                continue
            listing.change(gemm, y=other)
            _replace(listing, add, by=gemm)
            break


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


def split_products_by_kind(listing: Listing) -> None:
    """Split a product whose matrix has parts that read inputs of different forms."""
    for gemm in [i for i in listing if i.op == "Gemm"]:
        assert gemm.matrix is not None
        parts = gemm.matrix.by_kind()
        if len(parts) == 1:
            continue
        at = listing.index(gemm)
        listing.remove(gemm)
        for part in reversed(parts):
            listing.insert(at, replace(gemm, matrix=part))


def prepare_products(listing: Listing) -> None:
    """Convert each input once into the form that its matrices read, and normalise it then."""
    made: dict[tuple[int, int, int, str], Prepared] = {}
    for gemm in [i for i in listing if i.op == "Gemm"]:
        assert gemm.x is not None
        assert gemm.matrix is not None
        kind = gemm.matrix.kind
        key = (id(gemm.x.buffer), gemm.x.first, gemm.x.width, kind)
        if key not in made:
            made[key] = Prepared(gemm.x.buffer.space, gemm.matrix.inputs, kind)
            prepare = Instruction("Prepare", gemm.x, prepared=made[key], matrix=gemm.matrix)
            listing.insert(listing.index(gemm), prepare)
        gemm.prepared = made[key]
    for gemm in listing:
        if gemm.op == "Gemm":
            listing.change(gemm, x=None)
    for instruction in listing:
        if instruction.experts is not None and instruction.op != "SortPairs":
            experts = instruction.experts
            instruction.prepared = Prepared("Pairs", experts.inputs, experts.kind)
    norm_while_preparing(listing)


def norm_while_preparing(listing: Listing) -> None:
    """Compute a norm that only products read while their input is prepared."""
    for norm in [i for i in listing if i.op == "Norm"]:
        assert norm.out is not None
        if norm.out.buffer.place != "Scratch":
            continue
        readers = listing.readers(norm.out.buffer)
        if len(readers) != 1 or readers[0].op != "Prepare":
            continue  # with several readers the norm would be computed several times
        prepare = readers[0]
        if prepare.x is not None and prepare.x.width == norm.out.width:
            prepare.norm = norm.norm
            listing.change(prepare, x=norm.x)
            listing.remove(norm)


def refuse_what_is_left(listing: Listing) -> None:
    """Refuse instructions that are only supported as a part of others."""
    for instruction in listing:
        if instruction.op == "Rope":
            raise RecordingError(
                "a rotation of something else than the queries or keys of an attention"
            )
