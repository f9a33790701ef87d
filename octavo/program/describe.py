"""A listing as text, for people and for tests: one line for each instruction and barrier."""

from __future__ import annotations

from collections.abc import Container, Iterable

from octavo.program.listing import Instruction, Listing

BARRIER = "│"


def describe(listing: Listing, barriers: Container[int] = ()) -> str:
    """Return one line for each instruction, and BARRIER before those with these numbers."""
    lines = []
    for number, instruction in enumerate(listing):
        if number in barriers:
            lines.append(BARRIER)
        lines.append(describe_one(instruction))
    return "\n".join(lines)


def describe_one(instruction: Instruction) -> str:
    """Return one instruction as a line of words."""
    return " ".join(_words(instruction))


def _words(i: Instruction) -> Iterable[str]:
    yield i.op.lower()
    if i.norm is not None and i.op != "Norm":
        yield "norm+"
    if i.matrix is not None:
        yield f"[{i.matrix.outputs}×{i.matrix.inputs} {i.matrix.formats}]"
    experts = i.experts if i.mixture is None else i.mixture.gate_up
    if experts is not None:
        yield f"of {len(experts.matrices)} {'heads' if i.op == 'HeadGemm' else 'experts'}"
        if i.op != "SortPairs":
            matrix = experts.matrices[0]
            yield f"[{matrix.outputs}×{matrix.inputs} {matrix.formats}]"
    if i.attend is not None:
        attend = i.attend
        yield f"{attend.heads}/{attend.kv_heads}×{attend.head_dim}"
        if attend.window:
            yield f"window {attend.window}"
        if attend.q_norm or attend.k_norm:
            yield "+qk-norm"
        if attend.rope:
            yield "+rope"
    if i.adapters is not None:
        yield f"to {i.adapters.width}" if i.op == "Shrink" else "+adapters"
    if i.bias is not None:
        yield "+bias"
    if i.factor != 1.0:
        yield f"×{i.factor:g}"
    if i.cap:
        yield f"cap {i.cap:g}"
    if i.activation:
        yield f"+{i.activation}"
    if i.gated:
        yield "+gate"
    if i.op == "Gemm" and i.y is not None:
        yield "+residual"
