"""Emits a listing as a native program."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from octavo.backends.native import _native
from octavo.backends.native.layout import Layout, lay_out, place_barriers
from octavo.backends.native.packing import Experts, Matrix, Vector, interleaved
from octavo.layers import Rope
from octavo.program import operands
from octavo.program.listing import (
    Buffer,
    Convolve,
    Distances,
    Instruction,
    Listing,
    Norm,
    Prepared,
    Value,
)

_SCORES = {"softmax": "Softmax", "chosen": "Chosen", "sigmoid": "Sigmoid"}

MakeVector = Callable[[NDArray[np.float32]], Vector]


class Emitter:
    """Fills one program with the instructions of a listing."""

    def __init__(
        self,
        program: _native.Program,
        tier: str,
        vector: MakeVector,
        adapted: Mapping[int, int] | None = None,
        *,
        in_ranks: bool = False,
    ) -> None:
        self._program = program
        self._in_ranks = in_ranks
        # By the id of a packed matrix: its number among those that adapters change.
        self._adapted = adapted or {}
        self._tier = tier
        self._vector = vector  # keeps floats where the program can read them
        self._ropes: dict[Rope, int] = {}
        self._layout = Layout()
        self._kept: list[Buffer] = []  # outputs of inner layers, in their order

    def emit(self, listing: Listing) -> frozenset[int]:
        """Lay the buffers out, append every instruction, and return where the barriers are."""
        prepared = {
            id(i.prepared): self._prepared_bytes(i) for i in listing if i.prepared is not None
        }
        self._layout = lay_out(listing, prepared)
        written = [value.buffer for i in listing for value in i.writes]
        self._kept = [buffer for buffer in written if buffer.place == "KeptOut"]
        barriers = place_barriers(listing, self._layout, in_ranks=self._in_ranks)
        adapted_barriers = place_barriers(
            listing, self._layout, with_adapters=True, in_ranks=self._in_ranks
        )
        for space in ("Tokens", "Wanted", "Logits", "Hidden", "Pairs"):
            sizes = (
                self._layout.row_bytes.get((space, area), 0) for area in ("floats", "prepared")
            )
            self._program.set_scratch(getattr(_native.Space, space), *sizes)
        for number, instruction in enumerate(listing):
            made = self._made(instruction)
            made.barrier = number in barriers
            # It overwrites what the product before it has written, perhaps by other threads.
            made.adapted_barrier = number in adapted_barriers or instruction.op == "WholeGemm"
            self._program.append(made)
        return barriers

    def _prepared_bytes(self, instruction: Instruction) -> int:
        format_ = _format_of(instruction)
        assert instruction.prepared is not None
        size: int = _native.prepared_bytes(self._tier, format_, instruction.prepared.inputs)
        return size

    def _made(self, i: Instruction) -> _native.Instruction:
        made = _native.Instruction()
        made.op = getattr(_native.Op, i.op)
        made.space = getattr(_native.Space, i.space)
        for name in ("x", "y", "out", "values", "chosen", "low"):
            value = getattr(i, name)
            if value is not None:
                setattr(made, name, self._ref(value))
        if i.norm is not None:
            made.norm = _norm(i.norm)
        if i.op == "Prepare":
            assert isinstance(i.matrix, Matrix)
            order = i.matrix.pieces[0].order
            if order is not None:
                made.order = order.inputs
        if i.prepared is not None:
            made.prepared = self._prepared(i, i.prepared)
        elif i.op == "Gemm":
            made.prepared = self._unprepared(i)
        made.activation = getattr(_native.Activation, i.activation or "None_")
        made.factor, made.cap, made.by_position = i.factor, i.cap, i.ids == "Positions"
        if i.ids == "Types":
            made.by_type = True
        if i.first_row is not None:
            made.first_row = i.first_row
        if i.matrix is not None and i.op != "Prepare":
            made.pieces = self._pieces(i.matrix, i.bias, i.gated)
        if i.adapters is not None:
            made.product = i.adapters.number
        if isinstance(i.experts, Experts) and i.experts.are_whole:
            made.are_whole, made.redundant = True, i.experts.redundant
        if i.experts is not None and i.op != "SortPairs":
            made.pieces, made.passed = self._expert_pieces(i), i.passed
        if i.attend is not None:
            self._attend(i, made)
        if i.op in ("Keep", "Recall"):
            made.group, made.layer = i.place
        if i.op == "Spread":
            assert i.columns is not None
            made.order = np.ascontiguousarray(i.columns, np.int32)
        if i.convolve is not None:
            made.convolve = self._convolve(i.convolve)
            made.group, made.layer = i.convolve.place
        if i.routing is not None:
            experts = len(i.experts.matrices) if i.experts is not None else 0
            if i.op == "Route":
                assert i.x is not None
                experts = i.x.width
            routing = i.routing
            scores = getattr(_native.Scores, _SCORES[routing.scores])
            route = _native.RouteShape(
                experts, routing.top_k, scores, routing.normalise, routing.scale
            )
            route.groups, route.top_groups = routing.groups, routing.top_groups
            route.group_best = routing.group_best
            route.bias = 0 if i.bias is None else i.bias.address
            made.route = route
        return made

    def _ref(self, value: Value) -> _native.Ref:
        buffer = value.buffer
        offset = 0
        if buffer.place == "Scratch":
            offset = self._layout.extent(buffer).offset
        elif buffer.place == "KeptOut":
            offset = self._kept.index(buffer)
        return _native.Ref(
            getattr(_native.Where, buffer.place),
            getattr(_native.Space, buffer.space),
            offset,
            value.first,
            value.width,
            self._layout.stride(buffer),
        )

    def _prepared(self, i: Instruction, prepared: Prepared) -> _native.Prepared:
        space = getattr(_native.Space, prepared.space)
        offset = self._layout.extent(prepared).offset
        return _native.Prepared(space, _format_of(i), prepared.inputs, offset)

    def _unprepared(self, i: Instruction) -> _native.Prepared:
        """Return the form of rows that a product reads where they are."""
        assert i.x is not None
        assert i.matrix is not None
        format_, inputs = _format_of(i), i.matrix.inputs
        row_bytes = _native.prepared_bytes(self._tier, format_, inputs)
        assert row_bytes == 4 * self._layout.stride(i.x.buffer), (
            "kernels find prepared rows at this distance"
        )
        return _native.Prepared(getattr(_native.Space, i.x.buffer.space), format_, inputs, 0)

    def _pieces(
        self, matrix: operands.Matrix, bias: Vector | None, gated: bool
    ) -> list[_native.Piece]:
        assert isinstance(matrix, Matrix)
        if gated and bias is not None:
            bias = self._interleaved(bias.values)
        made = []
        for piece in matrix.pieces:
            address = 0 if bias is None else bias.address + 4 * piece.first
            adapted = self._adapted.get(id(piece.native), -1)
            made.append(_native.Piece(piece.native, piece.first, address, gated, adapted))
        return made

    def _interleaved(self, values: NDArray[np.float32]) -> Vector:
        order = interleaved(len(values) // 2)
        return self._vector(np.where(order < 0, np.float32(0), values[np.maximum(order, 0)]))

    def _expert_pieces(self, i: Instruction) -> list[_native.Piece]:
        assert i.experts is not None
        matrices = i.experts.matrices
        biases: list[Vector | None] = [None] * len(matrices)
        if i.bias is not None:
            rows = i.bias.values.reshape(len(matrices), -1)
            biases = [self._vector(row) for row in rows]
        pairs = zip(matrices, biases, strict=True)
        return [self._pieces(matrix, bias, i.gated)[0] for matrix, bias in pairs]

    def _attend(self, i: Instruction, made: _native.Instruction) -> None:
        attend = i.attend
        assert attend is not None
        shape = _native.AttentionShape(
            attend.heads,
            attend.kv_heads,
            attend.head_dim,
            attend.scale,
            attend.softcap,
            attend.window,
            attend.sinks.address if attend.sinks is not None else 0,
        )
        shape.latent, shape.skipped = attend.latent, attend.skipped
        if attend.both_ways:
            shape.both_ways = True
        if attend.distances is not None:
            shape.distances = self._distances(attend.distances)
            shape.reach = attend.distances.reach
        made.attention = shape
        made.group, made.layer = attend.place
        made.rope = -1 if attend.rope is None else self._rope(attend.rope)
        if attend.q_norm is not None:
            made.norm = _norm(attend.q_norm)
        if attend.k_norm is not None:
            made.k_norm = _norm(attend.k_norm)

    def _convolve(self, convolve: Convolve) -> _native.ConvolveShape:
        """Return a convolution whose weights lie input by input."""
        made, weight = _native.ConvolveShape(), convolve.weight
        assert isinstance(weight, Vector)
        by_channel = weight.values.reshape(-1, convolve.kernel)
        made.weight = self._vector(np.ascontiguousarray(by_channel.T).reshape(-1)).address
        made.bias = 0 if convolve.bias is None else convolve.bias.address
        made.kernel = convolve.kernel
        return made

    def _distances(self, distances: Distances) -> int:
        """Return the address of each head's values, distance by distance."""
        weight = distances.weight
        assert isinstance(weight, Vector)
        by_bucket = weight.values.reshape(max(distances.buckets) + 1, -1)
        by_distance = np.ascontiguousarray(by_bucket[list(distances.buckets)].T)
        address: int = self._vector(by_distance.reshape(-1)).address
        return address

    def _rope(self, rope: Rope) -> int:
        if rope not in self._ropes:
            self._ropes[rope] = self._program.add_rope(
                list(rope.frequencies), rope.interleaved, rope.magnitude
            )
        return self._ropes[rope]


def _format_of(i: Instruction) -> _native.Format:
    """Return a format of the kind of its matrices: all formats of a kind read the same rows."""
    matrix = i.matrix if i.matrix is not None else i.experts.matrices[0] if i.experts else None
    assert isinstance(matrix, Matrix), i.op
    format_: _native.Format = matrix.pieces[0].native.format
    return format_


def _norm(norm: Norm) -> _native.NormShape:
    made = _native.NormShape()
    made.weight = norm.weight.address
    made.bias = 0 if norm.bias is None else norm.bias.address
    made.eps, made.offset, made.is_rms = norm.eps, norm.offset, norm.is_rms
    made.heads, made.weight_a_head = norm.heads, norm.weight_a_head
    return made
