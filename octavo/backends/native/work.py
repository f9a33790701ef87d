"""Counts the bytes and operations of each instruction of a step, from its shapes."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from octavo.backends.native import _native
from octavo.backends.native.packing import Matrix as PackedMatrix
from octavo.program.listing import Instruction, Space
from octavo.program.operands import Matrix


class SequenceSize(Struct, frozen=True):
    """The rows of one sequence in a step, from position `first` on; `logits` of them are wanted."""

    first: int
    rows: int
    logits: int = 1


class Work(Struct, frozen=True):
    """Bytes of weights or of keys and values; multiplications and additions count one each."""

    bytes_read: int = 0
    operations: int = 0


def product_weights(instructions: Sequence[Instruction]) -> list[_native.Matrix]:
    """Return each matrix that a product of these instructions reads, once."""
    read: list[object] = []
    for i in instructions:
        if i.experts is not None and i.op != "SortPairs":
            read.extend(i.experts.matrices)
        elif i.op == "Gemm":
            read.append(i.matrix)
    pieces = [piece.native for m in read if isinstance(m, PackedMatrix) for piece in m.pieces]
    return list({id(piece): piece for piece in pieces}.values())


def work_of(i: Instruction, sequences: Sequence[SequenceSize], kv_bytes: float, top_k: int) -> Work:
    """Count one instruction; `kv_bytes` are the bytes of a number in the cache, with its scale.

    The experts in use are estimated as if rows chose independently. The keys and values of a
    sequence count once, however many of its rows see them.
    """
    wanted = sum(each.logits for each in sequences)
    rows: dict[Space, int] = {
        "Tokens": sum(each.rows for each in sequences),
        "Wanted": wanted,
        "Logits": wanted,
        "Hidden": 0,
    }
    if i.attend is not None:
        return _attention(i, sequences, kv_bytes)
    if i.op == "HeadGemm":
        assert i.experts is not None
        one = _product(i.experts.matrices[0], rows[i.space])
        count = len(i.experts.matrices)
        return Work(count * one.bytes_read, count * one.operations)
    if i.experts is not None and i.op != "SortPairs":
        count = len(i.experts.matrices)
        used = count * (1 - (1 - top_k / count) ** rows[i.space])
        one = _product(i.experts.matrices[0], rows[i.space] * top_k)
        return Work(round(one.bytes_read * used), one.operations)
    if i.op == "Gemm":
        assert i.matrix is not None
        return _product(i.matrix, rows[_read_space(i)])
    if i.op == "Embed":
        assert i.matrix is not None
        return Work(i.matrix.num_bytes * rows["Tokens"] // i.matrix.outputs)
    return Work()


def _read_space(gemm: Instruction) -> Space:
    """Return the kind of rows that a product reads, prepared or as they are."""
    if gemm.prepared is not None:
        return gemm.prepared.space
    assert gemm.x is not None
    return gemm.x.buffer.space


def _product(matrix: Matrix, rows: int) -> Work:
    return Work(matrix.num_bytes if rows else 0, 2 * rows * matrix.outputs * matrix.inputs)


def _attention(i: Instruction, sequences: Sequence[SequenceSize], kv_bytes: float) -> Work:
    attend = i.attend
    assert attend is not None
    read = products = 0
    for each in sequences:
        seen = [
            min(position + 1, attend.window or position + 1)
            for position in range(each.first, each.first + each.rows)
        ]
        read += each.first + each.rows - (each.first + 1 - seen[0])
        products += sum(seen)
    # A latent row is read once, as a key and as a value.
    kept = attend.head_dim + (0 if attend.latent else attend.value_dim)
    operations = 2 * products * attend.heads * (attend.head_dim + attend.value_dim)
    return Work(round(read * attend.kv_heads * kept * kv_bytes), operations)
