"""Hidden states of earlier layers as further outputs, for drafters that read them."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.program.listing import ACROSS_ROWS, Buffer, Instruction, Listing, Value


def keep_hidden(listing: Listing, layers: Iterable[int]) -> None:
    """Keep what these layers read, of the rows whose hidden states are wanted.

    The outputs are in the order of the layers. The pass comes before fusion, which joins the
    layers' first instructions.
    """
    mixers = [i for i in listing if i.op in ACROSS_ROWS]
    for number in sorted(set(layers)):
        value, reader = input_of(listing, mixers[number])
        buffer = Buffer("Hidden", value.width, "KeptOut")
        out = Value(buffer, 0, value.width, value.recorder)
        listing.insert(listing.index(reader), Instruction("Select", value, out=out))


def input_of(listing: Listing, mixer: Instruction) -> tuple[Value, Instruction]:
    """Return the residual stream that a layer reads, and what first reads it.

    Values are not rotated, and normalised only if they are latents. A convolution's input is gated.
    """
    values = mixer.values or mixer.x
    assert values is not None
    maker = listing.maker(values)
    if maker is not None and maker.op in ("Norm", "Multiply"):
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
