"""Runs a listing instruction by instruction: the meaning of every operation of a listing.

The reference backend runs a listing as it was recorded. A listing that passes have rewritten runs
too, and its results tell whether the passes changed what it computes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from octavo.backends.torch import experts, ops, states
from octavo.backends.torch.adapters import (
    change_looked_up,
    expand,
    replace_products,
    shrink,
)
from octavo.backends.torch.attention import TorchBatch, attend, write
from octavo.backends.torch.run import Run
from octavo.backends.torch.weights import TorchExperts, TorchMatrix
from octavo.distributed.communicator import Communicator, Floats
from octavo.program.listing import Buffer, Instruction, Listing, Op, Prepared
from octavo.program.operands import Matrix

# The score of a token that a smaller vocabulary lacks; a finite one, as those of all others.
UNLIKELY = -1e30


class Outputs(NamedTuple):
    """The values that a listing computes for the caller."""

    logits: Tensor
    hidden: Tensor
    kept: tuple[Tensor, ...] = ()  # what earlier layers read, if a pass keeps it
    states: Tensor | None = None  # of the rows of logits, if a pass gives them


class Interpreter:
    """A listing, ready to be run."""

    def __init__(
        self,
        listing: Listing,
        communicator: Communicator[Any] | None = None,
        meaning_of: Callable[[Instruction], Meaning] | None = None,
    ) -> None:
        self._communicator = communicator
        meaning_of = meaning_of or _plain_meaning_of
        outputs = [value.buffer for i in listing for value in i.writes]
        self._places = {buffer.place: buffer for buffer in outputs}
        self._kept = [buffer for buffer in outputs if buffer.place == "KeptOut"]
        last_reads = {
            buffer: number
            for number, instruction in enumerate(listing)
            for buffer in _contents_of(instruction)
            if isinstance(buffer, Prepared) or buffer.place == "Scratch"
        }
        done: list[list[Any]] = [[] for _ in listing.instructions]
        for buffer, number in last_reads.items():
            done[number].append(buffer)
        self._steps = [
            (meaning_of(instruction), instruction, tuple(buffers))
            for instruction, buffers in zip(listing, done, strict=True)
        ]

    @property
    def instructions(self) -> list[Instruction]:
        """The instructions of the listing, in the order in which they run."""
        return [instruction for _, instruction, _ in self._steps]

    def run(self, batch: TorchBatch) -> Outputs:
        """Run all instructions; values are freed behind their last reader."""
        run = Run(batch, self._communicator)
        contents = run.contents
        for meaning, instruction, done in self._steps:
            meaning(run, instruction)
            for buffer in done:
                contents.pop(buffer, None)
        hidden = contents[self._places["HiddenOut"]]
        logits = hidden.new_zeros(len(batch.logits_rows), 0)  # of a model without a head
        if "LogitsOut" in self._places:
            logits = contents[self._places["LogitsOut"]]
        states = contents[self._places["StateOut"]] if "StateOut" in self._places else None
        return Outputs(logits, hidden, tuple(contents[buffer] for buffer in self._kept), states)


def _plain_meaning_of(instruction: Instruction) -> Meaning:
    return MEANINGS[instruction.op]


def _contents_of(instruction: Instruction) -> list[Buffer | Prepared]:
    """Return what an instruction reads or writes."""
    touched: list[Buffer | Prepared] = [
        value.buffer for value in (*instruction.reads, *instruction.writes)
    ]
    if instruction.prepared is not None:
        touched.append(instruction.prepared)
    return touched


# the meaning of each operation, with everything that passes may have merged into it


def _embed(run: Run, i: Instruction) -> None:
    batch = run.batch
    ids = {"Tokens": batch.token_ids, "Positions": batch.positions, "Types": batch.types}[i.ids]
    table = _matrix(i.matrix).values
    if i.first_row is None:
        found = functional.embedding(ids, table)
    else:  # rows of other ranks are zero, so that the sum over all ranks is the row
        own = ids - i.first_row
        is_own = (own >= 0) & (own < len(table))
        found = functional.embedding(own.clamp(0, len(table) - 1), table)
        found = found * is_own[:, None]
    if i.adapters is not None:
        change_looked_up(found, ids, run.changes(i))
    run[i.out] = _scaled(found, i.factor)


def _select(run: Run, i: Instruction) -> None:
    assert i.x is not None
    assert i.out is not None
    rows = run.rows(i.out.buffer.space)
    if i.x.buffer.space == "Wanted":
        rows = torch.searchsorted(run.rows("Wanted"), rows)
    run[i.out] = run[i.x].index_select(0, rows)


def _norm(run: Run, i: Instruction) -> None:
    assert i.norm is not None
    leave(run, i, ops.norm(run[i.x], i.norm))


def _prepare(run: Run, i: Instruction) -> None:
    assert i.prepared is not None
    x = run[i.x]
    x = x if i.norm is None else ops.norm(x, i.norm)
    run.contents[i.prepared] = _matrix(i.matrix).formed(x)


def leave(run: Run, i: Instruction, x: Tensor) -> None:
    """Leave a result as rows, in the form that products read, or in both."""
    if i.out is not None:
        run[i.out] = x
    if i.prepared is not None:
        run.contents[i.prepared] = _matrix(i.matrix).formed(x)


def _gemm(run: Run, i: Instruction) -> None:
    y = multiplied(run, i)
    if i.low is not None:
        expand(y, i.bias, run[i.low], run.changes(i))
        replace_wholes(run, i, y)
    end_product(run, i, y)


def multiplied(run: Run, i: Instruction) -> Tensor:
    """Return the sums of a product."""
    matrix = _matrix(i.matrix)
    if i.prepared is None:
        return matrix.product(run[i.x], i.bias)
    return matrix.product_of(run.contents[i.prepared], i.bias)


def replace_wholes(run: Run, i: Instruction, y: Tensor) -> None:
    """Multiply rows with their adapters' own matrices instead, where a product may have any."""
    assert i.adapters is not None
    if i.adapters.has_wholes:
        x = run[i.x] if i.prepared is None else run.contents[i.prepared]
        replace_products(y, x, run.changes(i))


def end_product(run: Run, i: Instruction, y: Tensor) -> None:
    """Apply to the sums of a product what else it does, and leave the result."""
    y = _scaled(y, i.factor)
    y = ops.soft_cap(y, i.cap) if i.cap else y
    if i.gated:
        assert i.activation is not None
        y = _gated(y, i.activation)
    elif i.activation is not None:
        y = ops.ACTIVATIONS[i.activation](y)
    run[i.out] = y if i.y is None else run[i.y] + y


def _whole_gemm(run: Run, i: Instruction) -> None:
    x, y = run[i.x], run[i.out]
    x = x if i.norm is None else ops.norm(x, i.norm)
    own = torch.zeros_like(y)
    replace_products(own, x, run.changes(i))
    own = _scaled(own, i.factor)
    own = ops.soft_cap(own, i.cap) if i.cap else own
    for change, factor, rows in run.changes(i):
        if change.whole is not None and factor:
            y[rows] = own[rows]


def _head_gemm(run: Run, i: Instruction) -> None:
    assert isinstance(i.experts, TorchExperts)
    matrices = i.experts.matrices
    x = run[i.x]
    heads = x.reshape(len(x), len(matrices), -1).unbind(1)
    parts: list[Tensor] = []
    for head, matrix in zip(heads, matrices, strict=True):
        parts += [head[:, : i.passed], matrix.product(head[:, i.passed :], None)]
    run[i.out] = torch.cat(parts, 1)


def _rope(run: Run, i: Instruction) -> None:
    assert i.rope is not None
    run[i.out] = run.rotate(run[i.x], i.rope, i.head_dim)


def _attention(run: Run, i: Instruction) -> None:
    assert i.attend is not None
    q, k = run[i.x], run[i.y]
    q = q if i.attend.q_norm is None else ops.norm(q, i.attend.q_norm)
    k = k if i.attend.k_norm is None else ops.norm(k, i.attend.k_norm)
    if i.attend.rope is not None:
        q = run.rotate(q, i.attend.rope, i.attend.head_dim)
        k = run.rotate(k, i.attend.rope, i.attend.head_dim - i.attend.latent)
    out = attend(q, k, run[i.values], i.attend, run.batch)
    space = i.made_space
    leave(run, i, out if space == "Tokens" else out.index_select(0, run.rows(space)))


def _convolve(run: Run, i: Instruction) -> None:
    assert i.convolve is not None
    assert i.out is not None
    out = states.convolve(run[i.x], i.convolve, run.batch)
    space = i.out.buffer.space
    run[i.out] = out if space == "Tokens" else out.index_select(0, run.rows(space))


def _activate(run: Run, i: Instruction) -> None:
    assert i.activation is not None
    run[i.out] = ops.ACTIVATIONS[i.activation](run[i.x])


def _gate(run: Run, i: Instruction) -> None:
    assert i.activation is not None
    leave(run, i, ops.gate(run[i.x], run[i.y], i.activation))


def _add(run: Run, i: Instruction) -> None:
    run[i.out] = run[i.x] + run[i.y]


def _add_norm(run: Run, i: Instruction) -> None:
    assert i.norm is not None
    run[i.total] = total = run[i.x] + run[i.y]
    leave(run, i, ops.norm(total, i.norm))


def _multiply(run: Run, i: Instruction) -> None:
    run[i.out] = run[i.x] * run[i.y]


def _scale(run: Run, i: Instruction) -> None:
    run[i.out] = run[i.x] * i.factor


def _soft_cap(run: Run, i: Instruction) -> None:
    run[i.out] = ops.soft_cap(run[i.x], i.cap)


def _route(run: Run, i: Instruction) -> None:
    assert i.routing is not None
    run[i.out], run[i.chosen] = ops.route(run[i.x], i.routing, i.bias)


def _experts(run: Run, i: Instruction) -> None:
    assert i.mixture is not None
    run[i.out] = experts.mix(run[i.x], run[i.y], run[i.chosen], i.mixture)


def _sort_pairs(run: Run, i: Instruction) -> None:
    run.pairs, run.pair_weights = list(experts.sort_pairs(run[i.chosen])), run[i.x]


def _experts_in(run: Run, i: Instruction) -> None:
    assert i.activation is not None
    run[i.out] = experts.gated_products(_layer(i), run[i.x], run.pairs, i.activation)


def _experts_out(run: Run, i: Instruction) -> None:
    assert run.pair_weights is not None
    add = experts.weighted_products if i.chosen is not None else experts.weighted_sums
    run[i.out] = add(_layer(i), run[i.x], run.pairs, run.pair_weights)


def _add_experts(run: Run, i: Instruction) -> None:
    assert run.pair_weights is not None
    run[i.out] = experts.sums(run[i.x], run.pairs, len(run.pair_weights))


def _all_reduce(run: Run, i: Instruction) -> None:
    total = _through(run.others.all_reduce, run[i.x])
    run[i.out] = total if i.y is None else run[i.y] + total


def _all_gather(run: Run, i: Instruction) -> None:
    run[i.out] = _through(run.others.all_gather, run[i.x])


def _columns(run: Run, i: Instruction) -> None:
    assert i.columns is not None
    run[i.out] = run[i.x][:, torch.from_numpy(i.columns)]


def _shrink(run: Run, i: Instruction) -> None:
    """Multiply each row by its adapter's first matrices; what no adapter makes is zero."""
    assert i.out is not None
    x = run[i.x]
    x = x if i.norm is None else ops.norm(x, i.norm)
    low = x.new_zeros(len(x), i.out.width)
    shrink(x, low, run.changes(i))
    run[i.out] = low


def _keep(run: Run, i: Instruction) -> None:
    """Keep rows in the places of their positions."""
    assert i.x is not None
    (group, index), space = i.place, i.x.buffer.space
    kept = run.batch.buffers.layers[group][index].keys
    if space == "Tokens":
        run.batch.write(group, kept, run[i.x])
        return
    rows, (blocks, inside) = run.rows(space), run.batch.row_cells[group]
    kept[blocks[rows], inside[rows]] = run[i.x].float()


def _keep_kv(run: Run, i: Instruction) -> None:
    """Keep keys and values of all rows for attentions of later passes."""
    assert i.attend is not None
    k = run[i.y]
    k = k if i.attend.k_norm is None else ops.norm(k, i.attend.k_norm)
    if i.attend.rope is not None:
        k = run.rotate(k, i.attend.rope, i.attend.head_dim)
    write(k, run[i.values], i.attend, run.batch)


def _recall(run: Run, i: Instruction) -> None:
    """Read the rows of the positions before; the first position has none."""
    (group, index), host, buffers = i.place, run.batch.host, run.batch.buffers
    before = host.positions.astype(np.int64) - 1
    owners = np.repeat(np.arange(len(host.row_starts) - 1), np.diff(host.row_starts))
    at, inside = np.divmod(np.maximum(before, 0), buffers.block_size)
    blocks = host.tables[group][owners, at].astype(np.int64)
    on_device = buffers.home.upload([blocks, inside, np.flatnonzero(before < 0)])
    found = buffers.layers[group][index].keys[on_device[0], on_device[1]]
    found[on_device[2]] = 0.0
    run[i.out] = found.to(buffers.dtype)


def _given(run: Run, i: Instruction) -> None:
    assert run.batch.given is not None, "a program reads states, and is given none"
    run[i.out] = run.batch.given


def _spread(run: Run, i: Instruction) -> None:
    assert i.columns is not None
    assert i.out is not None
    x = run[i.x]
    (columns,) = run.batch.buffers.home.upload([i.columns])
    unlikely = max(UNLIKELY, torch.finfo(x.dtype).min)  # finite in float16 too
    out = x.new_full((len(x), i.out.width), unlikely)
    out[:, columns] = x
    run[i.out] = out


def _through(exchange: Callable[[Floats], Floats], values: Tensor) -> Tensor:
    """Exchange values as float32, so that sums of shorter types are rounded once."""
    return torch.from_numpy(exchange(values.float().numpy())).to(values.dtype)


def _layer(i: Instruction) -> experts.Layer:
    assert isinstance(i.experts, TorchExperts)
    return experts.Layer(i.experts, i.bias)


def _matrix(matrix: Matrix | None) -> TorchMatrix:
    assert isinstance(matrix, TorchMatrix)
    return matrix


def _gated(both: Tensor, activation: str) -> Tensor:
    gates, ups = both.chunk(2, dim=-1)
    return ops.gate(gates, ups, activation)


def _scaled(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1.0 else x * factor


def _rope_tables(run: Run, i: Instruction) -> None:
    """Leave the tables to the first rotation of the step."""


Meaning = Callable[[Run, Instruction], None]

MEANINGS: dict[Op, Meaning] = {
    "Embed": _embed,
    "Select": _select,
    "Norm": _norm,
    "Gemm": _gemm,
    "HeadGemm": _head_gemm,
    "Rope": _rope,
    "Attention": _attention,
    "Convolve": _convolve,
    "Activate": _activate,
    "Gate": _gate,
    "Add": _add,
    "Multiply": _multiply,
    "Scale": _scale,
    "SoftCap": _soft_cap,
    "Route": _route,
    "Experts": _experts,
    "RopeTables": _rope_tables,
    "Prepare": _prepare,
    "SortPairs": _sort_pairs,
    "ExpertsIn": _experts_in,
    "ExpertsOut": _experts_out,
    "AddExperts": _add_experts,
    "AllReduce": _all_reduce,
    "AllGather": _all_gather,
    "Columns": _columns,
    "Shrink": _shrink,
    "WholeGemm": _whole_gemm,
    "AddNorm": _add_norm,
    "Keep": _keep,
    "KeepKV": _keep_kv,
    "Recall": _recall,
    "Spread": _spread,
    "Given": _given,
}
