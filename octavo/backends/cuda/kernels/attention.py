"""Paged attention: the keys of a sequence in chunks of fixed places, merged in their order.

A query's chunks are the same whether it is alone in its sequence's step, as when text is generated,
or one of many, as when a prompt is computed. In the first case each chunk is a program of its own,
and a second kernel merges them; in the second, one program computes and merges all chunks. The sums
and their order are equal in both.
"""

from __future__ import annotations

import triton
import triton.language as tl

from octavo.backends.cuda.kernels.eight_bits import SHIFT, floats_of, scale_of
from octavo.backends.cuda.kernels.rounding import write_results

CHUNK = 512  # positions; so 64 sequences of 4,096 positions and 8 KV heads are 4,096 programs
KEYS = 64  # positions that are multiplied at once, at most
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _exponents(
    start,
    first,
    last,
    of_keys,
    of_values,
    table,
    block_stride,
    cell_stride,
    block_size,
    num_keys: tl.constexpr,
):
    """Return the exponents of keys and values of eight bits, from a position on."""
    positions = start + tl.arange(0, num_keys)
    is_seen = (positions >= first) & (positions <= last)
    block = tl.load(table + positions // block_size, mask=is_seen, other=0).to(tl.int64)
    places = block * block_stride + (positions % block_size) * cell_stride
    keys = tl.load(of_keys + places, mask=is_seen, other=127)
    return keys, tl.load(of_values + places, mask=is_seen, other=127)


@triton.jit
def product(x, y, exact: tl.constexpr):
    """Return a product whose numbers of float32, if they are such, keep all their bits."""
    return tl.dot(x, y, input_precision="ieee") if exact else tl.dot(x, y)


@triton.jit
def _of_seen(scores, positions, at, first, last, softcap, window):
    """Return scores to the base 2, capped; those of positions that a query does not see hide."""
    if softcap > 0:
        turned = tl.exp(-2 * tl.abs(scores / softcap))
        bent = (1 - turned) / (1 + turned) * softcap
        scores = tl.where(scores < 0, -bent, bent)
    is_seen = (positions >= first) & (positions <= last)
    sees = (positions[None, :] <= at[:, None]) & is_seen[None, :]
    sees = sees & ((window == 0) | (positions[None, :] > at[:, None] - window))
    return tl.where(sees, scores * LOG2_E, float("-inf"))


@triton.jit
def _chunk(
    q,  # [queries, numbers of a head], in the type of the products
    at,  # [queries]: their positions, -1 of no query
    last,  # the last position that any of them sees
    first,  # the first one
    chunk,
    keys,
    values,
    key_exponents,
    value_exponents,
    table,
    block_stride,
    cell_stride,
    block_size,
    scale,
    softcap,
    window,
    dim,
    chunk_size: tl.constexpr,
    num_keys: tl.constexpr,
    block_dim: tl.constexpr,
    exact: tl.constexpr,  # products of float32, not of its first bits
    is_short: tl.constexpr,  # keys and values have eight bits
):
    """Return the largest score, the sum of weights and the weighted values of one chunk."""
    shift: tl.constexpr = SHIFT if keys.dtype.element_ty == tl.uint8 else 0
    d = tl.arange(0, block_dim)
    of_head = d < dim
    m = tl.full((q.shape[0],), float("-inf"), tl.float32)
    weights = tl.zeros((q.shape[0],), tl.float32)
    sums = tl.zeros((q.shape[0], block_dim), tl.float32)
    begin = tl.maximum(chunk * chunk_size, first // num_keys * num_keys)
    end = tl.minimum((chunk + 1) * chunk_size, last + 1)
    if is_short:  # those of the next keys are loaded meanwhile too
        of_keys, of_values = _exponents(begin, first, last, key_exponents, value_exponents,
            table, block_stride, cell_stride // dim, block_size, num_keys)  # fmt: skip
    # No condition stands around the loads, so that the compiler loads the next keys meanwhile.
    for start in tl.range(begin, end, num_keys, num_stages=3):
        positions = start + tl.arange(0, num_keys)
        is_seen = (positions >= first) & (positions <= last)
        block = tl.load(table + positions // block_size, mask=is_seen, other=0).to(tl.int64)
        cells = block * block_stride + (positions % block_size) * cell_stride
        offsets = cells[:, None] + d[None, :]
        loaded = is_seen[:, None] & of_head[None, :]
        k = tl.load(keys + offsets, mask=loaded, other=0.0)
        if is_short:
            k = floats_of(k, q.dtype)
        scores = product(q, tl.trans(k), exact) * scale
        if is_short:  # a power of two changes no bit of a sum
            scores *= scale_of(of_keys.to(tl.int32), shift)[None, :]
        scores = _of_seen(scores, positions, at, first, last, softcap, window)
        higher = tl.maximum(m, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # nothing is seen so far
        kept = tl.exp2(m - base)
        shares = tl.exp2(scores - base[:, None])
        v = tl.load(values + offsets, mask=loaded, other=0.0)
        if is_short:
            factors = scale_of(of_values.to(tl.int32), shift)
            v = (floats_of(v, tl.float32) * factors[:, None]).to(q.dtype)
            of_keys, of_values = _exponents(start + num_keys, first, last, key_exponents,
                value_exponents, table, block_stride, cell_stride // dim, block_size, num_keys,
            )  # fmt: skip
        sums = sums * kept[:, None] + product(shares.to(v.dtype), v, exact)
        weights = weights * kept + tl.sum(shares, 1)
        m = higher
    return m, weights, sums


@triton.jit
def _merged(m, weights, sums, chunk_m, chunk_weights, chunk_sums):
    """Return two parts of a softmax as one, the earlier part first."""
    higher = tl.maximum(m, chunk_m)
    base = tl.where(higher == float("-inf"), 0.0, higher)
    kept, taken = tl.exp2(m - base), tl.exp2(chunk_m - base)
    return (
        higher,
        weights * kept + chunk_weights * taken,
        sums * kept[:, None] + chunk_sums * taken[:, None],
    )


@triton.jit
def _begun(sinks, head, is_query, block_dim: tl.constexpr, has_sinks: tl.constexpr):
    """Return the softmax before any chunk: a sink is a key that all see, and has no value."""
    m = tl.full(head.shape, float("-inf"), tl.float32)
    weights = tl.zeros(head.shape, tl.float32)
    if has_sinks:
        m = tl.load(sinks + head, mask=is_query, other=0.0).to(tl.float32) * LOG2_E
        weights += 1.0
    return m, weights, tl.zeros((head.shape[0], block_dim), tl.float32)


@triton.jit(do_not_specialize=["table_stride"])  # a step's longest table decides
def attend_rows(
    q,
    keys,
    values,
    key_exponents,
    value_exponents,
    tables,
    positions,
    sinks,
    work,  # [items, 3]: a sequence, the first of its rows here, how many there are
    out,
    q_stride,
    table_stride,
    block_stride,
    cell_stride,
    block_size,
    scale,
    softcap,
    window,
    dim,
    per_kv: tl.constexpr,
    num_rows: tl.constexpr,  # of an item, at most
    num_queries: tl.constexpr,  # the power of two at or above num_rows · per_kv
    chunk_size: tl.constexpr,
    num_keys: tl.constexpr,
    block_dim: tl.constexpr,
    exact: tl.constexpr,
    is_short: tl.constexpr,
    has_sinks: tl.constexpr,
):
    """Write the attention of some rows of one sequence, for the queries of one KV head."""
    item, kv_head = tl.program_id(0), tl.program_id(1)
    sequence = tl.load(work + item * 3).to(tl.int64)
    first_row = tl.load(work + item * 3 + 1)
    count = tl.load(work + item * 3 + 2)
    r = tl.arange(0, num_queries)
    row, head = (first_row + r // per_kv).to(tl.int64), kv_head * per_kv + r % per_kv
    is_query = r // per_kv < count
    at = tl.load(positions + row, mask=is_query, other=-1)
    d = tl.arange(0, block_dim)
    is_number = is_query[:, None] & (d[None, :] < dim)
    asked = tl.load(
        q + row[:, None] * q_stride + head[:, None] * dim + d, mask=is_number, other=0.0
    )
    begin = tl.load(positions + first_row)
    last = begin + count - 1
    first = tl.where(window == 0, 0, tl.maximum(begin - window + 1, 0))
    m, weights, sums = _begun(sinks, head, is_query, block_dim, has_sinks)
    for chunk in range(first // chunk_size, last // chunk_size + 1):
        part_m, part_weights, part_sums = _chunk(
            asked, at, last, first, chunk,
            keys + kv_head * dim, values + kv_head * dim, key_exponents + kv_head,
            value_exponents + kv_head, tables + sequence * table_stride,
            block_stride, cell_stride, block_size, scale, softcap, window, dim,
            chunk_size, num_keys, block_dim, exact, is_short,
        )  # fmt: skip
        m, weights, sums = _merged(m, weights, sums, part_m, part_weights, part_sums)
    found = sums / tl.where(is_query, weights, 1.0)[:, None]
    place = out + (row[:, None] * tl.num_programs(1) * per_kv + head[:, None]) * dim + d
    tl.store(place, found.to(out.dtype.element_ty), mask=is_number)


@triton.jit(do_not_specialize=["table_stride"])  # a step's longest table decides
def attend_chunks(
    q,
    keys,
    values,
    key_exponents,
    value_exponents,
    tables,
    positions,
    work,  # [1 + chunks, 3]: how many there are; of each its sequence, its row and its number
    part_m,
    part_weights,
    part_sums,
    q_stride,
    table_stride,
    block_stride,
    cell_stride,
    block_size,
    scale,
    softcap,
    window,
    dim,
    per_kv: tl.constexpr,
    num_queries: tl.constexpr,
    chunk_size: tl.constexpr,
    num_keys: tl.constexpr,
    block_dim: tl.constexpr,
    exact: tl.constexpr,
    is_short: tl.constexpr,
):
    """Write chunks of the attention of rows that are alone in their sequences' step.

    A program computes one chunk after the other, so that one number of programs, which is fixed in
    a graph, is right for any number of chunks.
    """
    kv_head, kv_heads = tl.program_id(1), tl.num_programs(1)
    r = tl.arange(0, num_queries)
    is_query = r < per_kv
    head = kv_head * per_kv + r
    d = tl.arange(0, block_dim)
    is_number = is_query[:, None] & (d[None, :] < dim)
    count = tl.load(work)
    for item in range(tl.program_id(0), count, tl.num_programs(0)):
        sequence = tl.load(work + 3 + item * 3).to(tl.int64)
        row = tl.load(work + 4 + item * 3).to(tl.int64)
        chunk = tl.load(work + 5 + item * 3)
        last = tl.load(positions + row)
        at = tl.where(is_query, last, -1)
        asked = tl.load(q + row * q_stride + head[:, None] * dim + d, mask=is_number, other=0.0)
        first = tl.where(window == 0, 0, tl.maximum(last - window + 1, 0))
        m, weights, sums = _chunk(
            asked, at, last, first, chunk,
            keys + kv_head * dim, values + kv_head * dim, key_exponents + kv_head,
            value_exponents + kv_head, tables + sequence * table_stride,
            block_stride, cell_stride, block_size, scale, softcap, window, dim,
            chunk_size, num_keys, block_dim, exact, is_short,
        )  # fmt: skip
        place = (tl.cast(item, tl.int64) * kv_heads + kv_head) * per_kv + r
        tl.store(part_m + place, m, mask=is_query)
        tl.store(part_weights + place, weights, mask=is_query)
        tl.store(part_sums + place[:, None] * dim + d, sums, mask=is_number)


@triton.jit
def merge_chunks(
    part_m,
    part_weights,
    part_sums,
    sinks,
    items,  # [rows, 3]: a row, its first chunk in the parts, how many there are; 0: it is none
    out,
    codes,  # of whole rows alone
    scales,
    dim,
    scale,
    inverse,
    per_kv: tl.constexpr,
    num_queries: tl.constexpr,
    block_dim: tl.constexpr,
    has_sinks: tl.constexpr,
    form: tl.constexpr,
    is_given: tl.constexpr,
):
    """Write the attention of one row, for the queries of one KV head.

    Whole rows are those of one KV head that has all queries, whose parts lie in the same order.
    """
    item, kv_head, kv_heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    row = tl.load(items + item * 3).to(tl.int64)
    begin, count = tl.load(items + item * 3 + 1).to(tl.int64), tl.load(items + item * 3 + 2)
    r = tl.arange(0, num_queries)
    is_query = r < per_kv
    head = kv_head * per_kv + r
    d = tl.arange(0, block_dim)
    is_number = is_query[:, None] & (d[None, :] < dim)
    m, weights, sums = _begun(sinks, head, is_query, block_dim, has_sinks)
    for chunk in range(count):
        place = ((begin + chunk) * kv_heads + kv_head) * per_kv + r
        chunk_m = tl.load(part_m + place, mask=is_query, other=float("-inf"))
        chunk_weights = tl.load(part_weights + place, mask=is_query, other=0.0)
        chunk_sums = tl.load(part_sums + place[:, None] * dim + d, mask=is_number, other=0.0)
        m, weights, sums = _merged(m, weights, sums, chunk_m, chunk_weights, chunk_sums)
    found = sums / tl.where(is_query & (count > 0), weights, 1.0)[:, None]
    found = tl.where(is_number, found, 0.0).to(out.dtype.element_ty)
    write_results(
        *(found, out, codes, scales, row, kv_heads * per_kv * dim),
        *(head[:, None] * dim + d, is_number, scale, inverse, form, is_given),
    )
