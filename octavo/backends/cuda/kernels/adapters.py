"""Adds what adapters make of rows: a launch for the low numbers of a product, and one for its sums.

Rows with one adapter are taken together, 16 at once, wherever they are in the batch. Inputs are cut
at fixed places, and the parts are added up in their order, so that a row's bits do not depend on
others.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo.backends.cuda.accelerator import Accelerator
from octavo.backends.cuda.kernels.adapter_slots import TILE, AdapterRows, SlotTables
from octavo.backends.cuda.kernels.attention import product
from octavo.program.operands import Adapters

_CUT = 1024  # inputs of a program: 4 programs for each 16 rows of a model of 8B, and 14 of its MLP
_STEP = 128  # inputs that are multiplied at once
_OUTPUTS = 128  # of a program
_UNIT = tl.constexpr(16)  # as `adapter_slots` fills ranks up
_MOST_RANKS = 64  # that are multiplied at once


@triton.jit(do_not_specialize=["rows"])
def shrink_rows(
    x,
    base,  # addresses are numbers of its elements from here
    addresses,  # [slots, parts of all products, 2]: of the first matrix and of the second
    ranks,  # [slots, parts of all products]
    items,  # [items, 3]: a slot, the first of its rows in the order, how many there are
    order,
    low,  # [cuts, rows, parts, most]
    stride,  # numbers from a row of x to the next
    inputs,
    rows,
    first_part,  # of the product
    parts,
    of_slot,  # parts of all products
    most,  # ranks, filled up
    tile: tl.constexpr,
    block_rank: tl.constexpr,
    cut: tl.constexpr,
    step: tl.constexpr,
    exact: tl.constexpr,
):
    """Write some low numbers of rows with one adapter, as far as some of the inputs make them."""
    item, number = tl.program_id(0), tl.program_id(2)
    blocks = tl.cdiv(most, block_rank)
    part, begin = tl.program_id(1) // blocks, tl.program_id(1) % blocks * block_rank
    slot = tl.load(items + item * 3).to(tl.int64)
    first, count = tl.load(items + item * 3 + 1), tl.load(items + item * 3 + 2)
    place = slot * of_slot + first_part + part
    rank = tl.load(ranks + place)
    if begin >= rank:
        return
    down = base + tl.multiple_of(tl.load(addresses + place * 2), 8)
    t = tl.arange(0, tile)
    is_row = t < count
    row = tl.load(order + first + t, mask=is_row, other=0).to(tl.int64)
    r = begin + tl.arange(0, block_rank)
    sums = tl.zeros((tile, block_rank), tl.float32)
    start = number * cut
    for at in tl.range(start, tl.minimum(start + cut, inputs), step, num_stages=3):
        k = at + tl.arange(0, step)
        inside = k < inputs
        values = tl.load(
            x + row[:, None] * stride + k[None, :], mask=is_row[:, None] & inside, other=0.0
        )
        weights = tl.load(
            down + r[:, None] * inputs + k[None, :], mask=(r < rank)[:, None] & inside, other=0.0
        )
        sums += product(values, tl.trans(weights), exact)
    filled = (rank + _UNIT - 1) // _UNIT * _UNIT
    target = low + ((number * rows + row[:, None]) * parts + part) * most + r[None, :]
    tl.store(target, sums, mask=is_row[:, None] & (r < filled))


@triton.jit(do_not_specialize=["rows"])
def expand_rows(
    y,
    low,
    base,
    addresses,
    ranks,
    factors,  # [slots, parts of all products]
    items,
    order,
    blocks,  # [blocks, 4]: a part, the first output in it, its outputs, where they begin in y
    stride,  # numbers from a row of y to the next
    rows,
    first_part,
    parts,
    of_slot,
    most,
    cuts,
    tile: tl.constexpr,
    block_rank: tl.constexpr,
    num_outputs: tl.constexpr,
    unit: tl.constexpr,  # of which all outputs of parts are multiples
    exact: tl.constexpr,
):
    """Add to some sums of rows with one adapter what it makes of their low numbers."""
    item, block = tl.program_id(0), tl.program_id(1)
    slot = tl.load(items + item * 3).to(tl.int64)
    first, count = tl.load(items + item * 3 + 1), tl.load(items + item * 3 + 2)
    part, begin = tl.load(blocks + block * 4), tl.load(blocks + block * 4 + 1)
    begin = tl.multiple_of(begin, num_outputs)
    outputs = tl.multiple_of(tl.load(blocks + block * 4 + 2), unit)
    of_part = tl.multiple_of(tl.load(blocks + block * 4 + 3), unit)
    place = slot * of_slot + first_part + part
    rank = tl.load(ranks + place)
    if rank == 0:
        return
    kind: tl.constexpr = y.dtype.element_ty
    factor = tl.load(factors + place)
    filled = (rank + _UNIT - 1) // _UNIT * _UNIT
    up = base + tl.multiple_of(tl.load(addresses + place * 2 + 1), 8)
    t = tl.arange(0, tile)
    is_row = t < count
    row = tl.load(order + first + t, mask=is_row, other=0).to(tl.int64)
    n = begin + tl.arange(0, num_outputs)
    is_output = n < outputs
    sums = tl.zeros((tile, num_outputs), tl.float32)
    for at in range(0, filled, block_rank):
        r = at + tl.arange(0, block_rank)
        is_low = is_row[:, None] & (r < filled)[None, :]
        values = tl.zeros((tile, block_rank), tl.float32)
        for cut in range(cuts):
            source = low + ((cut * rows + row[:, None]) * parts + part) * most + r[None, :]
            values += tl.load(source, mask=is_low, other=0.0)
        # Rounded as operations of torch round: products, and these once they are scaled.
        values = (values.to(kind).to(tl.float32) * factor).to(kind)
        weights = tl.load(
            up + n[:, None] * filled + r[None, :],
            mask=is_output[:, None] & (r < filled)[None, :],
            other=0.0,
        )
        sums += product(values, tl.trans(weights), exact)
    target = y + row[:, None] * stride + of_part + n[None, :]
    inside = is_row[:, None] & is_output[None, :]
    total = tl.load(target, mask=inside, other=0.0).to(tl.float32)
    tl.store(target, (total + sums.to(kind).to(tl.float32)).to(kind), mask=inside)


def shrink(
    x: Tensor, adapters: Adapters, tables: SlotTables, where: AdapterRows, home: Accelerator
) -> Tensor:
    """Return the low numbers of rows: [cuts of the inputs, rows, parts, ranks].

    Nothing is written for rows without adapters, nor beyond the ranks of others.
    """
    rows, inputs = x.shape
    parts, cuts = len(adapters.parts), triton.cdiv(inputs, _CUT)
    low = x.new_empty(cuts, rows, parts, tables.most, dtype=torch.float32)
    block_rank = _block_rank(tables)
    home.launch(
        shrink_rows,
        (len(where.items), parts * triton.cdiv(tables.most, block_rank), cuts),
        (x, tables.base, tables.addresses, tables.ranks, *where, low),
        (x.stride(0), inputs, rows, tables.first_of(adapters), parts, tables.parts, tables.most),
        tile=TILE,
        block_rank=block_rank,
        cut=_CUT,
        step=_STEP,
        exact=x.dtype == torch.float32,
        num_warps=4,
    )
    return low


def expand(
    y: Tensor,
    low: Tensor,
    adapters: Adapters,
    tables: SlotTables,
    where: AdapterRows,
    home: Accelerator,
) -> None:
    """Add to rows of a product what adapters make of their low numbers."""
    cuts, rows, parts, most = low.shape
    blocks = home.constant(("outputs of parts", adapters.parts), lambda: _blocks(adapters))
    home.launch(
        expand_rows,
        (len(where.items), len(blocks)),
        (y, low, tables.base, tables.addresses, tables.ranks, tables.factors, *where, blocks),
        (y.stride(0), rows, tables.first_of(adapters), parts, tables.parts, most, cuts),
        tile=TILE,
        block_rank=_block_rank(tables),
        num_outputs=_OUTPUTS,
        unit=8 if all(each % 8 == 0 for each in adapters.parts) else 1,
        exact=y.dtype == torch.float32,
        num_warps=4,
    )


def _block_rank(tables: SlotTables) -> int:
    return min(triton.next_power_of_2(tables.most), _MOST_RANKS)


def _blocks(adapters: Adapters) -> np.ndarray:
    """Return the blocks of outputs, none of which has outputs of two parts."""
    found, of_part = [], 0
    for part, outputs in enumerate(adapters.parts):
        found += [(part, begin, outputs, of_part) for begin in range(0, outputs, _OUTPUTS)]
        of_part += outputs
    return np.array(found, np.int32)
