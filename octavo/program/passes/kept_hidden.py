"""Hidden states of earlier layers as further outputs, for drafters that read them."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.program.listing import Buffer, Instruction, Listing, Value


def keep_hidden(listing: Listing, layers: Iterable[int]) -> None:
    """Keep what these layers read, of the rows whose hidden states are wanted.

    The outputs are in the order of the layers. The pass comes before fusion, which joins the
    layers' first instructions.
    """
    attentions = [i for i in listing if i.op == "Attention"]
    for number in sorted(set(layers)):
        value, reader = _input_of(listing, attentions[number])
        buffer = Buffer("Hidden", value.width, "KeptOut")
        out = Value(buffer, 0, value.width, value.recorder)
        listing.insert(listing.index(reader), Instruction("Select", value, out=out))


def _input_of(listing: Listing, attention: Instruction) -> tuple[Value, Instruction]:
    """Return the residual stream that an attention's layer reads, and what first reads it."""
    values = attention.values
    assert values is not None  # not rotated, and normalised only if they are latents
    maker = listing.maker(values)
    if maker is not None and maker.op == "Norm":
        values = maker.x
        assert values is not None
    (product,) = [
        i
        for i in listing
        if i.out is not None and i.out.buffer is values.buffer and i.x is not None
    ]
    assert product.x is not None
    norm = listing.maker(product.x)
    if norm is None or norm.op != "Norm":
        return product.x, product
    assert norm.x is not None
    return norm.x, norm
