"""Kernels with a bug planted into their source, to show that each leg catches its own."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import NamedTuple
from unittest import mock

from octavo.backends.cuda.kernels import (
    adapter_slots,
    adapters,
    attention,
    copies,
    draw,
    edges,
    eight_bits,
    experts,
    gate,
    norm,
    paged,
    place,
    rounding,
)

_numbers = itertools.count()
# The modules that have imported functions of others by their names.
_KERNELS = (attention, paged, place, rounding, draw, norm, gate, adapters, experts)


class Bug(NamedTuple):
    """A change of one place of a module's source."""

    name: str
    module: ModuleType
    before: str
    after: str
    shows_in: str = ""  # a part of a case's name, if few cases of the module show it


# What the comparison with the meaning finds.
WRONG = [
    Bug("later positions are seen", attention, "[None, :] <= at[:, None])", "[None, :] <= last)"),
    Bug(
        "a window is one too wide",
        attention,
        "at[:, None] - window)",
        "at[:, None] - window - 1)",
        shows_in="windowed",
    ),
    Bug("a sink is a key twice", attention, "weights += 1.0", "weights += 2.0", shows_in="sinks"),
    Bug(
        "the cap is left out", attention, "if softcap > 0:", "if softcap > 100:", shows_in="capped"
    ),
    Bug(
        "chunks are added without their factor", attention, "chunk_weights * taken", "chunk_weights"
    ),
    Bug(
        "a block's number is taken for the next",
        attention,
        "// block_size, mask=is_seen, other=0).to(tl.int64)\n        cells",
        "// block_size + 1, mask=is_seen, other=0).to(tl.int64)\n        cells",
    ),
    Bug(
        "unseen values reach the sums",
        attention,
        "v = tl.load(values + offsets, mask=loaded, other=0.0)",
        "v = tl.load(values + offsets)",
    ),
    Bug(
        "a rotation turns the other way",
        place,
        "-others, others",
        "others, -others",
        shows_in="rotations",
    ),
    Bug(
        "a key is written to its neighbour",
        place,
        "tl.store(keys + cell + kv_head",
        "tl.store(keys + cell + (kv_head ^ 1)",
    ),
    Bug("a norm forgets its eps", norm, "/ width + eps)", "/ width + 1.0)"),
    Bug(
        "a norm rounds after the product",
        norm,
        "values.to(rounded).to(tl.float32) * factors",
        "values * factors * 1.01",
    ),
    Bug("an addend is taken away", norm, "values += tl.load(y", "values -= tl.load(y"),
    Bug(
        "a sum is the first row alone",
        norm,
        "tl.store(total + row * width + at, summed",
        "tl.store(total + row * width + at, tl.load(x + row * x_stride + at, mask=inside)",
    ),
    Bug(
        "a copy leaves out its end",
        copies,
        "tl.program_id(0) + 2) * words",
        "tl.program_id(0) + 2) * words - 1",
    ),
    Bug("an activation has no gate", gate, "tl.float32) * up", "tl.float32)"),
    Bug(
        "a draw has another position's noise",
        draw,
        "at.to(tl.uint64) *",
        "(at + 1).to(tl.uint64) *",
    ),
    Bug(
        "a mask is read from its other end",
        edges,
        ">> (at % 32)",
        ">> (31 - at % 32)",
        shows_in="masked",
    ),
    Bug("an edge is not kept", edges, "(order > edge), weight", "(order >= edge), weight"),
    Bug("zeros have a sign", edges, "tl.where(values == 0, 0.0, values).to", "values.to"),
    Bug("negative numbers are in reverse", edges, "(bits >> 31) & 0x7FFFFFFF", "0 * bits"),
    Bug("top-k keeps one less", edges, "*(count.to(tl.float64)", "*(count.to(tl.float64) - 1"),
    Bug("top-p is half of it", edges, "share * tl.sum(sums", "share * 0.5 * tl.sum(sums"),
    Bug(
        "what top-k leaves out counts",
        edges,
        "(score >= least) & (order >= bound)",
        "(score >= least)",
    ),
    Bug("all ties are kept", edges, "if lacking < tl.sum(ties", "if 1e9 < tl.sum(ties"),
    Bug("min-p is of the sum", edges, "least = best + floor", "least = best + 2 * floor"),
    Bug(
        "a filter is left out of draws",
        draw,
        "(at <= last)))",
        "(at <= last)) | inside)",
        shows_in="filtered",
    ),
    Bug("a penalty raises", edges, "value -= tl.load(numbers + 2", "value += tl.load(numbers + 2"),
    Bug(
        "a penalty divides all",
        edges,
        "tl.where(value > 0, tl.div_rn(value, factor), value * factor)",
        "tl.div_rn(value, factor)",
    ),
    Bug(
        "ties are rounded up",
        eight_bits,
        "size + 0x7FFFF + ((size >> 20) & 1)",
        "size + 0x80000",
    ),
    Bug("small numbers are cut", eight_bits, "* 512.0 + 8388608.0", "* 512.0 + 8388607.5"),
    Bug("codes lose their sign", eight_bits, "((bits >> 24) & 0x80)", "0"),
    Bug("a scale is half as large", eight_bits, ">> 23) - 8, 1)", ">> 23) - 9, 1)"),
    Bug("a NaN has a scale", eight_bits, "largest >= 0x7F800000, 255", "largest < 0, 255"),
    Bug(
        "values have the scales of keys",
        attention,
        "return keys, tl.load(of_values",
        "return keys, tl.load(of_keys",
        shows_in="eight bits",
    ),
    Bug(
        "the next keys have the scales of these",
        attention,
        "_exponents(start + num_keys, first",
        "_exponents(start, first",
        shows_in="eight bits",
    ),
    Bug(
        "a value's scale is written for its neighbour",
        place,
        "value_exponents + exponents + own",
        "value_exponents + exponents + (own ^ 1)",
        shows_in="eight bits",
    ),
    Bug(
        "codes are made of numbers before they are rounded",
        norm,
        "(values.to(kind), out, codes, scales, row, width",
        "(values, out, codes, scales, row, width",
    ),
    Bug(
        "merged heads change places",
        attention,
        "*(head[:, None] * dim + d, is_number, scale",
        "*((head[:, None] ^ 1) * dim + d, is_number, scale",
        shows_in="to codes",
    ),
    Bug(
        "an adapter has no factor",
        adapters,
        "values.to(kind).to(tl.float32) * factor",
        "values.to(kind).to(tl.float32)",
    ),
    Bug("the first inputs alone have an adapter", adapters, "range(cuts)", "range(1)"),
    Bug(
        "ranks that an adapter lacks count",
        adapters,
        "mask=(r < rank)[:, None] & inside",
        "mask=(r >= 0)[:, None] & inside",
    ),
    Bug(
        "all parts have the first one's matrix",
        adapters,
        "tl.load(addresses + place * 2 + 1), 8)",
        "tl.load(addresses + (place - part) * 2 + 1), 8)",
    ),
    Bug("an adapter has 64 ranks", adapters, "range(0, filled, block_rank)", "range(0, 1)"),
    Bug(
        "an expert begins in the middle of the one before",
        experts,
        "expert * 2 * outputs * inputs",
        "expert * outputs * inputs",
    ),
    Bug(
        "ups of experts are their gates",
        experts,
        "weights + outputs * inputs, mask",
        "weights, mask",
    ),
    Bug("an expert's bias is taken away", experts, "ups += tl.load(at", "ups -= tl.load(at"),
    Bug("pairs have one weight", experts, "(sums * weight[:, None])", "(sums * 0.5)"),
    Bug(
        "weights are in the order of experts",
        experts,
        "tl.load(weights + pair, mask",
        "tl.load(weights + first + t, mask",
    ),
    Bug("a pair is taken for a row", experts, "other=0) // top_k).to", "other=0) // 3).to"),
    Bug(
        "experts are added in the order of their choice",
        experts,
        "tl.min(tl.where(own > last, own, 0x7FFFFFFF), 0)",
        "tl.load(places + row * top_k + _)",
    ),
    Bug("an expert is left out", experts, "for _ in range(top_k)", "for _ in range(top_k - 1)"),
    Bug("rows that are none have experts", experts, "other=-1) >= 0)", "other=-1) >= -1)"),
    Bug("a given scale is left out", rounding, "codes_of(values * inverse)", "codes_of(values)"),
    Bug("a NaN is taken for a number", draw, "tl.where(is_finite == 0, -1, token)", "token"),
]

# The same, where programs have several chunks.
ALONE = Bug(
    "a program computes one chunk alone",
    attention,
    "range(tl.program_id(0), count, tl.num_programs(0))",
    "range(tl.program_id(0), tl.minimum(count, tl.program_id(0) + 1), tl.num_programs(0))",
)

# What the execution of compiled code finds.
OTHER_ORDER = Bug(
    "a thread has more numbers to write their codes at once",
    rounding,
    "128 // values.dtype.primitive_bitwidth",
    "16",
)

# What the watch over accesses finds.
RACES = [
    Bug(
        "cuts of the inputs share a place",
        adapters,
        "target = low + ((number * rows",
        "target = low + ((0 * rows",
    ),
    Bug("items share rows", adapter_slots, "(slot, first + start, min", "(slot, first, min"),
    Bug("parts share outputs", adapters, "* stride + of_part + n", "* stride + n"),
    Bug(
        "rows have one scale",
        rounding,
        "write_codes(values, place, scales + row",
        "write_codes(values, place, scales",
    ),
    Bug(
        "a norm writes the next row too",
        rounding,
        "tl.store(out + row * width + at, values, mask=inside)",
        "tl.store(out + row * width + at, values)",
    ),
    Bug(
        "rows that are made share a scale",
        rounding,
        "values.to(tl.float32), place, scales + row",
        "values.to(tl.float32), place, scales",
    ),
    Bug(
        "codes reach into the next row",
        rounding,
        "tl.store(codes, found, mask=inside)",
        "tl.store(codes, found)",
    ),
    Bug("parts of a row have scales", gate, "block = triton.next_power_of_2(width)", "block = 128"),
    Bug(
        "KV heads have scales",
        paged,
        "per_kv = layer.heads if is_whole else self.per_kv",
        "per_kv = self.per_kv",
        shows_in="to codes",
    ),
    Bug(
        "a copy writes past its block",
        copies,
        "destination + at, copied, mask=inside)",
        "destination + at, copied)",
    ),
    Bug(
        "copies that need each other share a launch",
        copies,
        "if any(_depend",
        "if False and any(_depend",
    ),
    Bug(
        "rounded rows share a row",
        rounding,
        "place = codes + row * width + at\n    write",
        "place = codes + at\n    write",
    ),
    Bug(
        "all heads have one scale",
        place,
        "key_exponents + exponents + kv_head",
        "key_exponents + exponents",
        shows_in="eight bits",
    ),
    Bug("sums share a row", norm, "total + row * width + at", "total + row * 0 + at"),
    Bug(
        "chunks share a place",
        attention,
        "place = (tl.cast(item, tl.int64) * kv_heads + kv_head) * per_kv + r",
        "place = (tl.cast(item, tl.int64) * 0 + kv_head) * per_kv + r",
    ),
    Bug("experts share a tile", experts, "begin // tile + expert, (", "begin // tile, ("),
    Bug("experts share places", experts, "place = begin + tl.cumsum", "place = tl.cumsum"),
    Bug("rows share a sum", experts, "tl.store(out + row * width + at", "tl.store(out + at"),
    Bug("rows share an edge", edges, "tl.store(edges + row, edge)", "tl.store(edges, edge)"),
    Bug(
        "changes go past their end",
        edges,
        "tl.store(logits + place, value, mask=inside)",
        "tl.store(logits + place, value)",
    ),
    Bug("rows share a part", draw, "place = row * tl.num_programs(1) + part", "place = row + part"),
]
BOUNDS = [
    Bug(
        "an adapter reads past the inputs",
        adapters,
        "mask=is_row[:, None] & inside, other=0.0",
        "mask=is_row[:, None], other=0.0",
    ),
    Bug("a tile begins one pair late", experts, "+ 1, begin + done)", "+ 1, begin + done + 1)"),
    Bug(
        "experts read past their inputs",
        experts,
        "stride + k[None, :], mask=is_row[:, None] & inside",
        "stride + k[None, :], mask=is_row[:, None]",
    ),
    Bug(
        "an expert writes past its pairs",
        experts,
        "gated(gates, ups, activation, kind), mask=is_row[:, None] & is_output",
        "gated(gates, ups, activation, kind), mask=is_output[None, :]",
    ),
    Bug(
        "a copy reads past the pool",
        copies,
        "tl.load(pool + source + at, mask=inside, other=0)",
        "tl.load(pool + source + at)",
    ),
    Bug(
        "a gate reads past the end",
        gate,
        "+ at, mask=inside, other=0.0).to(tl.float32)\n    up",
        "+ at).to(tl.float32)\n    up",
    ),
    Bug(
        "rounding reads past the end",
        rounding,
        "row * stride + at, mask=inside, other=0.0)",
        "row * stride + at)",
    ),
    Bug(
        "changes are read past their end",
        edges,
        "tl.load(places + at, mask=inside, other=0)",
        "tl.load(places + at)",
    ),
    Bug(
        "a draw reads past the vocabulary",
        draw,
        "row * size + at, mask=inside, other=0.0)",
        "row * size + at)",
    ),
]

# What the claims about compiled code find.
SLOW = [
    Bug(
        "matrices of adapters lie anywhere",
        adapters,
        "tl.multiple_of(tl.load(addresses + place * 2), 8)",
        "tl.load(addresses + place * 2)",
    ),
    Bug(
        "a condition stands around the loads",
        attention,
        "        k = tl.load(keys + offsets, mask=loaded, other=0.0)\n",
        "        k = tl.zeros((num_keys, block_dim), keys.dtype.element_ty)\n"
        "        if start <= last - 1:\n"
        "            k = tl.load(keys + offsets, mask=loaded, other=0.0)\n",
    ),
    Bug(
        "weights of experts are loaded one by one",
        experts,
        "weights = own + n[:, None] * inputs + k[None, :]",
        "weights = own + n[:, None] * inputs + (k * 3 % inputs)[None, :]",
    ),
    Bug(
        "a sum loads single numbers",
        norm,
        "to(tl.int64)\n    at = tl.arange(0, block)",
        "to(tl.int64)\n    at = tl.arange(0, block) * 3 % block",
    ),
    Bug("a tile is too wide for its warps", paged, "_MOST_QUERIES = 32", "_MOST_QUERIES = 128"),
    Bug(
        "a norm loads single numbers",
        norm,
        "tl.program_id(1)\n    at = tl.arange(0, block)",
        "tl.program_id(1)\n    at = tl.arange(0, block) * 3 % block",
    ),
]


@contextmanager
def planted(bug: Bug, directory: Path) -> Iterator[None]:
    """Let a module's kernels be those of its source with the bug, until the block ends."""
    assert bug.module.__file__ is not None
    source = Path(bug.module.__file__).read_text()
    assert source.count(bug.before) == 1, bug.name
    path = directory / f"planted_{next(_numbers)}.py"
    path.write_text(source.replace(bug.before, bug.after))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, {path.stem: made}):  # dataclasses look for it there
        spec.loader.exec_module(made)
    mine = vars(bug.module)
    changed = {
        name: value
        for name, value in vars(made).items()
        if not name.startswith("__") and name in mine and mine[name] is not value
    }
    before = {name: mine[name] for name in changed}
    with ExitStack() as stack:
        stack.enter_context(mock.patch.multiple(bug.module, **changed))
        # Others have imported functions of the module by their names.
        for other in _KERNELS:
            used = {
                name: value
                for name, value in changed.items()
                if other is not bug.module and getattr(other, name, None) is before[name]
            }
            if used:
                stack.enter_context(mock.patch.multiple(other, **used))
        # The compiler keeps by what a kernel consists of whether it has compiled it.
        for kernel in (each for other in _KERNELS for each in vars(other).values()):
            if getattr(kernel, "hash", None) is not None:
                stack.enter_context(mock.patch.object(kernel, "hash", None))
        yield
