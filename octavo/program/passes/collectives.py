"""The exchange between ranks that share a model, inserted where a layer's own share is not enough.

It comes before fusion: a product adds a residual once, and not on each rank.
"""

from __future__ import annotations

from octavo.distributed.context import ParallelContext
from octavo.layers import Embedding, Linear, Model, Module
from octavo.layers.moe import ExpertMatrices
from octavo.program.listing import Buffer, Instruction, Listing, Value


def insert_collectives(listing: Listing, model: Model, context: ParallelContext) -> None:
    """Complete the results of layers of which this rank has a share.

    The layers state how (`collective`); an instruction belongs to the layer whose weight it reads.
    """
    for _, layer in model.walk():
        if layer.collective is None:
            continue
        for instruction in [i for i in listing if _is_of(i, layer)]:
            if isinstance(layer, Embedding):
                instruction.first_row = layer.first
            if isinstance(layer, Linear) and layer.columns is not None:
                _gather_input(listing, instruction, layer, context.ranks)
            if layer.collective == "sum":
                _sum_output(listing, instruction)
            else:
                _gather_output(listing, instruction, context.ranks)


def gather_in_place(listing: Listing, rank: int) -> int:
    """Let a rank write its columns of the logits where those of all ranks lie side by side.

    That is for ranks whose outputs are in memory that they share. It returns how many columns each
    has; 0 if the logits are not divided.
    """
    columns = 0
    for gather in [i for i in listing if i.op == "AllGather"]:
        part, out = gather.x, gather.out
        assert part is not None
        assert out is not None
        if out.buffer.place != "LogitsOut":
            continue
        maker = listing.maker(part)
        assert maker is not None
        listing.remove(gather)
        own = Value(out.buffer, rank * part.width, part.width, part.recorder)
        listing.change(maker, out=own)
        columns = part.width
    return columns


def _is_of(instruction: Instruction, layer: Module) -> bool:
    """Return whether an instruction is a layer's; a tied head shares its weight with a table."""
    if isinstance(layer, Embedding):
        return instruction.op == "Embed" and instruction.matrix is layer.weight
    if isinstance(layer, Linear):
        return instruction.op == "Gemm" and instruction.matrix is layer.weight
    if isinstance(layer, ExpertMatrices) and instruction.mixture is not None:
        return instruction.mixture.down is layer.down_weight
    return False


def _sum_output(listing: Listing, instruction: Instruction) -> None:
    """Add up what all ranks compute."""
    assert instruction.out is not None
    part = instruction.out.recorder.new_like(instruction.out)
    total = Instruction("AllReduce", part, out=instruction.out)
    listing.change(instruction, out=part)
    listing.insert(listing.index(instruction) + 1, total)


def _gather_output(listing: Listing, instruction: Instruction, ranks: int) -> None:
    """Put the columns of all ranks side by side, behind what each column becomes by itself."""
    last = instruction
    while last.out is not None and last.out.buffer.place == "Scratch":
        reader = listing.sole_reader(last)
        assert reader is not None
        assert reader.op in ("Scale", "SoftCap"), reader.op
        last = reader
    assert last.out is not None
    part, place = last.out, last.out.buffer.place
    part.buffer.place = "Scratch"
    out = _wide(part, ranks)
    out.buffer.place = place
    listing.insert(listing.index(last) + 1, Instruction("AllGather", part, out=out))


def _gather_input(listing: Listing, product: Instruction, layer: Linear, ranks: int) -> None:
    """Let a product read those inputs, of all ranks', that its matrix has."""
    assert product.x is not None
    whole = _wide(product.x, ranks)
    mine = product.x.recorder.new_like(product.x)
    at = listing.index(product)
    gather = Instruction("AllGather", product.x, out=whole)
    listing.insert(at, gather)
    listing.insert(at + 1, Instruction("Columns", whole, out=mine, columns=layer.columns))
    listing.change(product, x=mine)


def _wide(value: Value, ranks: int) -> Value:
    """Return a new value with the columns of all ranks."""
    width = value.width * ranks
    return Value(Buffer(value.buffer.space, width), 0, width, value.recorder)
