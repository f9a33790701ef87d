"""Norms and rotations of queries and keys become a part of the attention that reads them."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from octavo.layers import Rope
from octavo.program.listing import Instruction, Listing, Norm, Value


class _Bare(NamedTuple):
    """Queries or keys before their norm and rotation, and the instructions that compute these."""

    value: Value
    norm: Norm | None
    rope: Rope | None
    around: tuple[Instruction, ...]


def take_into_attention(listing: Listing) -> None:
    """Let an attention normalise and rotate its queries and keys, if both rotate alike.

    So does what keeps keys for a later one.
    """
    for instruction in [i for i in listing if i.op == "Attention"]:
        attend = instruction.attend
        assert attend is not None
        assert instruction.x is not None
        assert instruction.y is not None
        q, k = (_bare(listing, value, instruction) for value in (instruction.x, instruction.y))
        if q.rope != k.rope:
            continue
        for absorbed in (*q.around, *k.around):
            listing.remove(absorbed)
        listing.change(instruction, x=q.value, y=k.value)
        instruction.attend = replace(attend, rope=q.rope, q_norm=q.norm, k_norm=k.norm)
    for instruction in [i for i in listing if i.op == "KeepKV"]:
        assert instruction.attend is not None
        assert instruction.y is not None
        k = _bare(listing, instruction.y, instruction)
        for absorbed in k.around:
            listing.remove(absorbed)
        listing.change(instruction, y=k.value)
        instruction.attend = replace(instruction.attend, rope=k.rope, k_norm=k.norm)


def _bare(listing: Listing, value: Value, reader: Instruction) -> _Bare:
    """Look through the rotation and the norm that nothing but `reader` needs."""
    rope, norm = None, None
    around = []
    maker = listing.maker(value)
    if maker is not None and maker.op == "Rope" and listing.sole_reader(maker) is reader:
        assert maker.x is not None
        around.append(maker)
        rope, value, reader = maker.rope, maker.x, maker
        maker = listing.maker(value)
    if maker is not None and maker.op == "Norm" and listing.sole_reader(maker) is reader:
        assert maker.x is not None
        around.append(maker)
        norm, value = maker.norm, maker.x
    return _Bare(value, norm, rope, tuple(around))
