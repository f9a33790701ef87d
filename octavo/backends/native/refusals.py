"""The limits of the native engine, checked on a listing after its passes.

Everything refused here runs on the reference backend.
"""

from __future__ import annotations

from typing import get_args

from octavo.backends.native import _native
from octavo.program.listing import Instruction, Listing, Op, UnsupportedError

HEAD_MULTIPLE, MOST_HEAD_DIM = 8, 576  # numbers of a head, for the attention kernels
# Operations without a kernel: passes take them into others, or only other backends run them.
WITHOUT_KERNEL = frozenset(get_args(Op)) - frozenset(_native.Op.__members__)


def refuse_unsupported(listing: Listing) -> None:
    """Refuse a listing that the kernels cannot run, and name what they lack."""
    for instruction in listing:
        reason = _refusal(instruction, listing)
        if reason is not None:
            raise UnsupportedError(reason)


def _refusal(i: Instruction, listing: Listing) -> str | None:
    """Return why an instruction cannot run; None if it can."""
    if i.op in ("Attention", "KeepKV"):
        return _attention_refusal(i, listing)
    if i.op == "Rope":
        assert i.out is not None
        if any(reader.op in ("Attention", "KeepKV") for reader in listing.readers(i.out.buffer)):
            return "queries and keys that turn differently"
        return "a rotation of something else than the queries or keys of an attention"
    if i.op == "Gemm" and i.matrix is not None and i.matrix.gated and not i.gated:
        return "a projection of gates and ups that not only a gate reads"
    return f"the operation {i.op}" if i.op in WITHOUT_KERNEL else None


def _latent_refusal(i: Instruction, listing: Listing) -> str | None:
    assert i.attend is not None
    assert i.x is not None
    if i.attend.latent % HEAD_MULTIPLE:
        return f"latents of {i.attend.latent} numbers: it takes multiples of {HEAD_MULTIPLE}"
    if i.attend.window or i.attend.both_ways or i.attend.q_norm or i.attend.k_norm:
        return "latent attention with a window or with norms of queries or keys"
    # Queries are rotated in place; keys are copied.
    if listing.readers(i.x.buffer) != [i]:
        return "queries that something else reads as well"
    return None


def _attention_refusal(i: Instruction, listing: Listing) -> str | None:
    assert i.attend is not None
    assert i.y is not None
    assert i.values is not None
    dim = i.attend.head_dim
    if dim % HEAD_MULTIPLE or dim > MOST_HEAD_DIM:
        return (
            f"heads of {dim} numbers: it takes multiples of {HEAD_MULTIPLE} up to {MOST_HEAD_DIM}"
        )
    if i.attend.latent:
        return _latent_refusal(i, listing)
    turning = [value for value in (i.x, i.y) if value is not None]
    makers = [listing.maker(value) for value in turning]
    if any(maker is not None and maker.op == "Rope" for maker in makers):
        return "queries and keys that turn differently"
    if i.y.buffer is not i.values.buffer:
        return "keys and values that are not parts of one projection"
    # The attention normalises and rotates them in place.
    if any(listing.readers(value.buffer) != [i] for value in turning):
        return "queries, keys or values that something else reads as well"
    return None
