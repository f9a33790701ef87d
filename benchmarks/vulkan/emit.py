"""A recorded listing as launches of shaders: one for each operation, three for an attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.vulkan.device import MOST_GROUPS, Device, Groups, Launch, Memory
from benchmarks.vulkan.sources import Constant, shader, shader_of_rows
from benchmarks.vulkan.step import CHUNK, Sizes, StepForm
from benchmarks.vulkan.weights import UNIT, DeviceMatrix
from octavo.layers import Rope
from octavo.program.listing import (
    Attend,
    Buffer,
    Instruction,
    Listing,
    Space,
    UnsupportedError,
    Value,
)

NO_TOKEN = 0xFFFFFFFF
OUTPUTS_A_GROUP, ROWS_A_GROUP = 4, 4  # as in product.wgsl
TOKENS_A_PART = 1024  # as in best_of_part.wgsl
_LANES = 64

Turns = Callable[[Rope], Memory]
Cells = Callable[[tuple[int, int]], Memory]


class Emitter:
    """A translator of one listing; `launches` has the result."""

    def __init__(
        self, device: Device, form: StepForm, batch: Memory, drawn: Memory, turns: Turns
    ) -> None:
        self._device = device
        self._form = form
        self._batch = batch
        self._drawn = drawn
        self._turns = turns
        self._cells: Cells
        self._memories: dict[Buffer, Memory] = {}
        self._free: list[Memory] = []
        # The rows that steps write, of each width that a memory has in turn.
        self.extents: list[tuple[Memory, Space, int]] = []
        self.launches: list[Launch] = []
        self.outputs: dict[str, tuple[Buffer, Memory]] = {}

    def emit(self, listing: Listing, cells: Cells) -> None:
        """Emit all operations; memory of values is used again behind their last reader."""
        self._cells = cells
        last = {b: n for n, i in enumerate(listing) for b in _buffers(i)}
        for number, instruction in enumerate(listing):
            _refuse(instruction)
            if instruction.op not in _EMIT:
                raise UnsupportedError(f"the operation {instruction.op}")
            _EMIT[instruction.op](self, instruction)
            for buffer in dict.fromkeys(_buffers(instruction)):
                if last[buffer] == number and buffer.place == "Scratch":
                    self._free.append(self._memories.pop(buffer))
        if "LogitsOut" in self.outputs:
            self._draw(*self.outputs["LogitsOut"])

    # memory

    def _scratch(self, space: Space, width: int) -> Memory:
        """Return the smallest free memory that holds so many rows, or make some."""
        words = self._form.limits.rows * width
        fitting = [memory for memory in self._free if memory.words >= words]
        if not fitting:
            return self._new(space, width)
        chosen = min(fitting, key=lambda memory: memory.words)
        self._free.remove(chosen)
        self.extents.append((chosen, space, width))
        return chosen

    def _new(self, space: Space, width: int) -> Memory:
        made = self._device.memory(self._form.limits.rows * width)
        self.extents.append((made, space, width))
        return made

    def _out(self, value: Value | None) -> Memory:
        assert value is not None
        assert value.is_whole
        buffer = value.buffer
        if buffer.place == "Scratch":
            made = self._scratch(buffer.space, buffer.width)
        else:
            made = self._new(buffer.space, buffer.width)
            self.outputs[buffer.place] = buffer, made
        self._memories[buffer] = made
        return made

    def _in(self, value: Value | None, letter: str) -> tuple[Memory, dict[str, Constant]]:
        """Return a value's memory, and where its columns are there."""
        assert value is not None
        place: dict[str, Constant] = {
            f"{letter}_STRIDE": value.buffer.width,
            f"{letter}_FIRST": value.first,
        }
        return self._memories[value.buffer], place

    def _add(self, name: str, source: str, memories: list[Memory], groups: Any) -> None:
        self.launches.append(self._device.launch(name, source, memories, groups))

    # operations

    def _embed(self, i: Instruction) -> None:
        matrix = _matrix(i)
        out, form = self._out(i.out), self._form
        for part in matrix.parts:
            source = shader_of_rows(
                "embed",
                part.format,
                **_rows(matrix, part.row_words),
                TOKENS_AT=form.tokens,
                OWNERS_AT=form.owners,
                FIRST_OUTPUT=part.first,
                OUTPUTS=part.rows,
                FACTOR=float(i.factor),
                LAST=NO_TOKEN,
            )
            memories = [self._batch, part.memory, self._drawn, out]
            self._add("embed", source, memories, lambda s: (s.rows["Tokens"], 1, 1))

    def _norm(self, i: Instruction) -> None:
        norm = i.norm
        assert norm is not None
        assert i.out is not None
        if not norm.is_rms or norm.weight_a_head:
            raise UnsupportedError("norms of other kinds than RMS")
        x, place = self._in(i.x, "X")
        width, space = i.out.width // norm.heads, i.space
        source = shader(
            "norm",
            **place,
            WIDTH=width,
            HEADS=norm.heads,
            EPS=float(norm.eps),
            OFFSET=float(norm.offset),
        )
        groups = _by_row(space, norm.heads)
        self._add("norm", source, [x, norm.weight, self._out(i.out)], groups)

    def _gemm(self, i: Instruction) -> None:
        matrix = _matrix(i)
        space = i.space
        (x, place), out = self._in(i.x, "X"), self._out(i.out)
        for part in matrix.parts:
            source = shader_of_rows(
                "product",
                part.format,
                **_rows(matrix, part.row_words),
                **place,
                OUTPUTS=part.rows,
                FIRST_OUTPUT=part.first,
                WIDTH=matrix.outputs,
                ROWS_AT=self._form.count(space),
            )
            groups = _of_product(space, part.rows)
            self._add("product", source, [self._batch, part.memory, x, out], groups)

    def _attention(self, i: Instruction) -> None:
        assert i.attend is not None
        attend, form = _plain(i.attend), self._form
        heads, dim, space = attend.heads, attend.head_dim, i.made_space
        shape: dict[str, Constant] = {"HEADS": heads, "KV_HEADS": attend.kv_heads, "HEAD_DIM": dim}
        paged: dict[str, Constant] = {
            "POSITIONS_AT": form.positions,
            "OWNERS_AT": form.owners,
            "TABLES_AT": form.tables,
            "BLOCKS": form.blocks,
            "BLOCK_SIZE": form.block_size,
        }
        (q, of_q), (k, of_k) = self._in(i.x, "Q"), self._in(i.y, "K")
        v, of_v = self._in(i.values, "V")
        rope = attend.rope or Rope(())
        queries, cells = self._scratch("Tokens", heads * dim), self._cells(attend.place)
        parts = self._scratch(space, form.chunks * heads * (dim + 2))
        turns: dict[str, Constant] = {
            "PAIRS": len(rope.frequencies),
            "INTERLEAVED": rope.interleaved,
        }
        source = shader("place", **shape, **paged, **of_q, **of_k, **of_v, **turns)
        memories = [self._batch, self._turns(rope), q, k, v, queries, cells]
        self._add("place", source, memories, lambda s: (s.rows["Tokens"], 1, 1))
        chunks: dict[str, Constant] = {
            "CHUNK": CHUNK,
            "CHUNKS": form.chunks,
            "IS_SELECTED": space != "Tokens",
            "SELECTED_AT": 0 if space == "Tokens" else form.selections["Tokens", space],
        }
        source = shader("attend", **shape, **paged, **chunks, SCALE=float(attend.scale))
        self._add(
            "attend",
            source,
            [self._batch, queries, cells, parts],
            lambda s, n=attend.kv_heads: (s.chunks, n, s.rows[space]),
        )
        at = form.positions
        source = shader("merge", HEADS=heads, HEAD_DIM=dim, POSITIONS_AT=at, **chunks)
        memories = [self._batch, parts, self._out(i.out)]
        self._add("merge", source, memories, _by_row(space, heads))
        self._free += [queries, parts]

    def _gate(self, i: Instruction) -> None:
        if i.activation != "Silu":
            raise UnsupportedError(f"the gate {i.activation}")
        self._elementwise("gate", i)

    def _add_rows(self, i: Instruction) -> None:
        self._elementwise("add", i)

    def _elementwise(self, name: str, i: Instruction) -> None:
        assert i.out is not None
        (x, of_x), (y, of_y) = self._in(i.x, "X"), self._in(i.y, "Y")
        source = shader(name, **of_x, **of_y, WIDTH=i.out.width)
        groups = _by_row(i.space, -(-i.out.width // _LANES))
        self._add(name, source, [x, y, self._out(i.out)], groups)

    def _select(self, i: Instruction) -> None:
        assert i.x is not None
        assert i.out is not None
        x, place = self._in(i.x, "X")
        chosen = i.x.buffer.space, i.out.buffer.space
        at = self._form.selections[chosen]
        source = shader("select", **place, WIDTH=i.out.width, SELECTED_AT=at)
        groups = _by_row(i.out.buffer.space, -(-i.out.width // _LANES))
        self._add("select", source, [self._batch, x, self._out(i.out)], groups)

    def _draw(self, buffer: Buffer, logits: Memory) -> None:
        """Draw the most likely token of each row of logits."""
        parts = -(-buffer.width // TOKENS_A_PART)
        sizes: dict[str, Constant] = {
            "VOCABULARY": buffer.width,
            "PARTS": parts,
            "NO_TOKEN": NO_TOKEN,
        }
        bests = self._scratch("Logits", 2 * parts)
        source = shader("best_of_part", **sizes)
        self._add("best_of_part", source, [logits, bests], _by_row("Logits", parts))
        source = shader("best_of_row", PARTS=parts, NO_TOKEN=NO_TOKEN)
        self._add("best_of_row", source, [bests, self._drawn], lambda s: (s.rows["Logits"], 1, 1))
        self._free.append(bests)


def _buffers(i: Instruction) -> list[Buffer]:
    return [value.buffer for value in (*i.reads, *i.writes)]


def _refuse(i: Instruction) -> None:
    """Refuse what the operations of the probe leave out."""
    others = {
        "a bias": i.bias,
        "adapters": i.adapters or i.low,
        "prepared rows": i.prepared,
        "a part of a table": i.first_row,
        "a cap": i.cap or None,
    }
    for name, value in others.items():
        if value is not None:
            raise UnsupportedError(f"{name} in {i.op}")
    if i.op == "Embed" and i.ids != "Tokens":
        raise UnsupportedError("a table of positions or types")
    if i.op == "Gemm" and (i.y is not None or i.activation is not None or i.factor != 1.0):
        raise UnsupportedError("a product with something behind its sums")


def _plain(attend: Attend) -> Attend:
    """Refuse attentions of other kinds than SmolLM2's."""
    norms = (attend.q_norm, attend.k_norm, attend.sinks, attend.distances)
    if any(each is not None for each in norms) or attend.softcap or attend.window:
        raise UnsupportedError("an attention with norms, sinks, distances, a cap or a window")
    if attend.both_ways or attend.latent or attend.skipped:
        raise UnsupportedError("an attention both ways, of latent rows or with skipped positions")
    return attend


def _matrix(i: Instruction) -> DeviceMatrix:
    assert isinstance(i.matrix, DeviceMatrix)
    return i.matrix


def _rows(matrix: DeviceMatrix, row_words: int) -> dict[str, Constant]:
    units = -(-matrix.inputs // UNIT)
    return {"INPUTS": matrix.inputs, "UNITS": units, "ROW_WORDS": row_words}


def _by_row(space: Space, groups: int) -> Callable[[Sizes], Groups]:
    return lambda sizes: (groups, sizes.rows[space], 1)


def _of_product(space: Space, outputs: int) -> Callable[[Sizes], Groups]:
    """Return the workgroups of a product: more outputs than fit in a line take further lines."""
    groups = -(-outputs // OUTPUTS_A_GROUP)
    lines = -(-groups // MOST_GROUPS)
    width = -(-groups // lines)
    return lambda sizes: (width, lines, -(-sizes.rows[space] // ROWS_A_GROUP))


_EMIT: dict[str, Callable[[Emitter, Instruction], None]] = {
    "Embed": Emitter._embed,
    "Select": Emitter._select,
    "Norm": Emitter._norm,
    "Gemm": Emitter._gemm,
    "Attention": Emitter._attention,
    "Gate": Emitter._gate,
    "Add": Emitter._add_rows,
}
