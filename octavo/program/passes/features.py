"""What a model computes and keeps for a drafter that reads its hidden states."""

from __future__ import annotations

from octavo.layers import Context, Features, HiddenStates, LastStates
from octavo.program.listing import ACROSS_ROWS, Buffer, Instruction, Listing, Value
from octavo.program.passes.kept_hidden import input_of
from octavo.program.recorder import record_context


def keep_features(listing: Listing, features: HiddenStates) -> None:
    """Keep what a drafter reads of every token, or give the last states of those that are drawn.

    The pass comes before fusion, as `keep_hidden` does.
    """
    if isinstance(features, LastStates):
        last, x = _last_state(listing)
        out = Value(Buffer("Logits", x.width, "StateOut"), 0, x.width, x.recorder)
        listing.insert(listing.index(last), Instruction("Select", x, out=out))
        return
    if not features.layers:
        assert isinstance(features, Features)
        last, x = _last_state(listing)
        _keep(listing, x, features, listing.index(last))
        return
    total, at = _sum_of_inputs(listing, features)
    if isinstance(features, Features):
        _keep(listing, total, features, at)
        return
    for number, instruction in enumerate(record_context(features, total)):
        listing.insert(at + number, instruction)


def _sum_of_inputs(listing: Listing, features: Features | Context) -> tuple[Value, int]:
    """Project the inputs of layers; return the sum, and where the next instruction can be."""
    mixers = [i for i in listing if i.op in ACROSS_ROWS]
    total: Value | None = None
    for number, projection in zip(features.layers, features.projections, strict=True):
        x, reader = input_of(listing, mixers[number])
        at = listing.index(reader)
        width = projection.outputs
        out = Value(Buffer("Tokens", width), 0, width, x.recorder)
        listing.insert(at, Instruction("Gemm", x, out=out, matrix=projection.weight))
        if total is not None:
            both = x.recorder.new_like(out)
            listing.insert(at + 1, Instruction("Add", total, out, both))
            out = both
        total = out
    assert total is not None
    maker = listing.maker(total)
    assert maker is not None
    return total, listing.index(maker) + 1


def _keep(listing: Listing, x: Value, features: Features, at: int) -> None:
    listing.insert(at, Instruction("Keep", x, place=features.rows.place))


def _last_state(listing: Listing) -> tuple[Instruction, Value]:
    """Return the last hidden state of all tokens, and what selects the wanted ones of it."""
    (last,) = [i for i in listing if i.out is not None and i.out.buffer.place == "HiddenOut"]
    assert last.x is not None
    return last, last.x
