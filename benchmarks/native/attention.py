"""Measures native attention: decoding against a plain read of memory, and prompts by the clock.

    python -m benchmarks.native.attention [--tier NAME] [--format NAME] [--threads N]

Heads are SmolLM2-135M's by default: 9 query heads, 3 KV heads of 64. Times are the best of many.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from octavo.backends.native import _native
from tests.backends.native import _native_test

BYTES = {"f32": 4, "bf16": 2, "int8": 1, "e4m3": 1, "e5m2": 1, "int4": 0.5}
BLOCK_SIZE = 16


def read_speed(num_bytes: int) -> float:
    """Return the GB/s of one thread that sums so many bytes, for comparison."""
    data = np.ones(num_bytes // 8, np.int64)
    best = min(_timed(lambda: data.max()) for _ in range(8))
    return num_bytes / best / 1e9


def _timed(function: Callable[[], object]) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def measure(arguments: argparse.Namespace, lengths: list[int], rows: int) -> float:
    """Return the seconds of one layer's attention for the last `rows` rows of such sequences."""
    heads, kv_heads, size = arguments.heads, arguments.kv_heads, arguments.head_dim
    blocks = [-(-length // BLOCK_SIZE) for length in lengths]
    cache = _native_test.TestCache(
        arguments.tier, arguments.format, sum(blocks), BLOCK_SIZE, kv_heads, size
    )
    generator = np.random.default_rng(0)
    order = generator.permutation(sum(blocks)).astype(np.int32)
    tables = np.split(order, np.cumsum(blocks)[:-1])
    for length, table in zip(lengths, tables, strict=True):
        kv = generator.standard_normal((length, kv_heads * size), np.float32)
        cache.write(kv, kv, 0, length, 0, table.copy())
    q = generator.standard_normal((rows * len(lengths), heads * size), np.float32)
    out = np.zeros_like(q)
    starts = [rows * i for i in range(len(lengths))]
    firsts = [length - rows for length in lengths]
    tables = [table.copy() for table in tables]

    def run(repeats: int) -> float:
        return _timed(
            lambda: _native_test.attend(
                cache, q, out, heads, size**-0.5, 0.0, 0, None, starts, [rows] * len(lengths),
                firsts, tables, arguments.threads, arguments.threads, repeats,
            )
        )  # fmt: skip

    once = run(3) / 3
    repeats = max(1, int(0.004 / once))  # short, so that some are not disturbed
    base = min(run(1) for _ in range(20)) if arguments.threads > 1 else 0.0  # the threads' start
    extra = 1 if arguments.threads > 1 else 0
    return min((run(repeats + extra) - base) / repeats for _ in range(30))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tier", default=_native.tiers()[-1])
    parser.add_argument("--format", default="bf16", choices=BYTES)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--heads", type=int, default=9)
    parser.add_argument("--kv-heads", type=int, default=3)
    parser.add_argument("--head-dim", type=int, default=64)
    arguments = parser.parse_args()
    width = 2 * arguments.kv_heads * arguments.head_dim * BYTES[arguments.format]
    print(f"{arguments.tier}, {arguments.format}, {arguments.threads} thread(s)")
    for megabytes in (1, 16, 128):
        print(f"numpy reads {megabytes:4} MB at {read_speed(megabytes << 20):6.1f} GB/s")
    for count in (1, 8, 32, 128):
        for length in (1024, 8192):
            seconds = measure(arguments, [length] * count, 1)
            speed = count * length * width / seconds / 1e9
            print(f"decode {count:4} × {length:5}: {seconds * 1e3:8.4f} ms {speed:6.1f} GB/s")
    for length in (512, 2048, 8192):
        seconds = measure(arguments, [length], length)
        flops = 2.0 * length * (length + 1) * arguments.heads * arguments.head_dim
        print(f"prefill {length:5}: {seconds * 1e3:8.3f} ms {flops / seconds / 1e9:7.1f} GFLOP/s")


if __name__ == "__main__":
    main()
