"""The operations that kernels compute, where `octavo.backends.cuda.providers` chooses them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace
from torch import Tensor

from octavo.backends.cuda.batch import DeviceBatch
from octavo.backends.cuda.kernels import adapters, experts, gate, norm, paged
from octavo.backends.cuda.kernels.adapter_slots import (
    AdapterRows,
    SlotTables,
    plan,
)
from octavo.backends.cuda.kernels.place import is_placed
from octavo.backends.cuda.kernels.rounding import Results
from octavo.backends.step import NO_ADAPTER
from octavo.backends.torch import adapters as torch_adapters
from octavo.backends.torch.interpreter import (
    Meaning,
    end_product,
    leave,
    multiplied,
    replace_wholes,
)
from octavo.backends.torch.run import Run
from octavo.program.listing import Instruction, Op, Space


def _norm(run: Run, i: Instruction) -> None:
    assert i.norm is not None
    x = run[i.x]
    results = _room(x, x.shape[1], i)
    norm.norm_into(results, x, i.norm, _batch_of(run).home)
    _leave(run, i, results, x)


def _add_norm(run: Run, i: Instruction) -> None:
    assert i.norm is not None
    x = run[i.x]
    results = _room(x, x.shape[1], i)
    run[i.total] = norm.add_norm_into(results, x, run[i.y], i.norm, _batch_of(run).home)
    _leave(run, i, results, x)


def _gate(run: Run, i: Instruction) -> None:
    assert i.activation is not None
    x = run[i.x]
    results = _room(x, x.shape[1], i)
    gate.gate_into(results, x, run[i.y], i.activation, _batch_of(run).home)
    _leave(run, i, results, x)


class _Low(NamedTuple):
    """The low numbers that adapters make of rows: those of kernels, and those of torch."""

    by_kernels: Tensor | None
    others: Tensor | None


class _Adapted(NamedTuple):
    """The rows of a space that have adapters: whose kernels add, and whether there are others."""

    by_kernels: AdapterRows | None
    has_others: bool


def _shrink(run: Run, i: Instruction) -> None:
    assert i.adapters is not None
    assert i.out is not None
    x, rows = run[i.x], _adapted(run, i.out.buffer.space)
    by_kernels = others = None
    if rows.by_kernels is not None:
        home = _batch_of(run).home
        by_kernels = adapters.shrink(x, i.adapters, _tables(run), rows.by_kernels, home)
    if rows.has_others:
        others = x.new_zeros(len(x), i.out.width)
        torch_adapters.shrink(x, others, run.changes(i, _tables(run).is_plain))
    run.contents[i.out.buffer] = _Low(by_kernels, others)


def _gemm(run: Run, i: Instruction) -> None:
    y = multiplied(run, i)
    if i.low is not None:
        assert i.adapters is not None
        low: _Low = run.contents[i.low.buffer]
        rows = _adapted(run, i.low.buffer.space)
        if low.by_kernels is not None and rows.by_kernels is not None:
            home = _batch_of(run).home
            adapters.expand(y, low.by_kernels, i.adapters, _tables(run), rows.by_kernels, home)
        if low.others is not None:
            torch_adapters.expand(y, i.bias, low.others, run.changes(i, _tables(run).is_plain))
            replace_wholes(run, i, y)
    end_product(run, i, y)


def _adapted(run: Run, space: Space) -> _Adapted:
    """Return the rows of a space that have adapters, found when its first product runs."""
    if space not in run.by_kernels:
        slots = run.adapters_of(space)
        used = [each for each in np.unique(slots).tolist() if each != NO_ADAPTER]
        for slot in used:
            run.adapter_in(slot)  # refuses one that is empty
        plain = [slot for slot in used if _tables(run).is_plain(slot)]
        found = None
        if plain:
            planned = plan(np.where(np.isin(slots, plain), slots, NO_ADAPTER))
            found = AdapterRows(*_batch_of(run).home.upload(planned))
        run.by_kernels[space] = _Adapted(found, len(plain) < len(used))
    made: _Adapted = run.by_kernels[space]
    return made


def _tables(run: Run) -> SlotTables:
    assert isinstance(run.batch.adapter_slots, SlotTables)
    return run.batch.adapter_slots


def _attention(run: Run, i: Instruction) -> None:
    assert i.attend is not None
    space = i.made_space
    batch, layer, q, k = _batch_of(run), i.attend, run[i.x], run[i.y]
    if not is_placed(layer):
        q = q if layer.q_norm is None else norm.norm(q, layer.q_norm, batch.home)
        k = k if layer.k_norm is None else norm.norm(k, layer.k_norm, batch.home)
        layer = replace(layer, q_norm=None, k_norm=None)
    turns = None if layer.rope is None else run.tables(layer.rope, q.dtype)
    if space == "Tokens":
        results = _room(q, layer.heads * layer.head_dim, i)
        paged.attend_into(results, q, k, run[i.values], layer, batch, turns)
        _leave(run, i, results, q)
        return
    out = paged.attend(q, k, run[i.values], layer, batch, turns)
    leave(run, i, out.index_select(0, run.rows(space)))


def _experts(run: Run, i: Instruction) -> None:
    assert i.mixture is not None
    batch = _batch_of(run)
    run[i.out] = experts.mix(run[i.x], run[i.y], run[i.chosen], i.mixture, batch.home, batch.marks)


def _room(like: Tensor, width: int, i: Instruction) -> Results:
    """Make room for what an instruction leaves of as many rows as another value has."""
    kind = None if i.prepared is None else i.prepared.kind
    return Results.of(like, width, kind, has_floats=i.out is not None)


def _leave(run: Run, i: Instruction, results: Results, like: Tensor) -> None:
    if i.out is not None:
        assert results.floats is not None
        run[i.out] = results.floats
    if i.prepared is not None:
        run.contents[i.prepared] = results.rounded(like.dtype)


def _batch_of(run: Run) -> DeviceBatch:
    assert isinstance(run.batch, DeviceBatch)
    return run.batch


KERNEL_MEANINGS: Mapping[Op, Meaning] = {
    "Norm": _norm,
    "AddNorm": _add_norm,
    "Gate": _gate,
    "Attention": _attention,
    "Experts": _experts,
    "Shrink": _shrink,
    "Gemm": _gemm,
}
