"""Attention normalises and rotates its own queries and keys."""

from __future__ import annotations

from octavo.layers import RMSNorm, Rope
from octavo.program.listing import Value
from octavo.program.passes.attention import take_into_attention
from tests.program.recorded import POSITIONS, Recorded

ROPE = Rope((1.0, 0.5, 0.2, 0.1))


def normed(r: Recorded, x: Value, heads: int) -> Value:
    norm = RMSNorm(8, 1e-6)
    norm.weight = object()
    return r.recorder.head_norm(x, norm, heads)


def test_norms_and_rotations_become_a_part_of_attention() -> None:
    r = Recorded()
    q, k, v = r.qkv(r.x)
    q, k = (normed(r, x, heads) for x, heads in ((q, 2), (k, 1)))
    q, k = (r.recorder.rope(x, POSITIONS, ROPE, 8) for x in (q, k))
    r.attend(q, k, v)
    assert r.after(take_into_attention) == "gemm [32×32 F32]; attention 2/1×8 +qk-norm +rope"
    attention = r.listing().instructions[-1]
    assert attention.attend is not None
    assert attention.attend.q_norm is not None
    assert attention.attend.q_norm.heads == 2
    assert attention.attend.rope is ROPE


def test_attention_without_either_stays_as_it_is() -> None:
    r = Recorded()
    r.attend(*r.qkv(r.x))
    assert r.after(take_into_attention) == "gemm [32×32 F32]; attention 2/1×8"


def test_queries_and_keys_that_turn_differently_stay_outside() -> None:
    r = Recorded()
    q, k, v = r.qkv(r.x)
    q = r.recorder.rope(q, POSITIONS, ROPE, 8)
    r.attend(q, k, v)
    assert r.after(take_into_attention) == "gemm [32×32 F32]; rope; attention 2/1×8"


def test_rotated_keys_with_another_reader_stay_outside() -> None:
    r = Recorded()
    q, k, v = r.qkv(r.x)
    q, k = (r.recorder.rope(x, POSITIONS, ROPE, 8) for x in (q, k))
    r.attend(q, k, v)
    _ = k * 2.0
    text = r.after(take_into_attention)
    assert text == "gemm [32×32 F32]; rope; rope; attention 2/1×8; scale ×2"
