"""Compares the native engine's products with the peak rates of the processor.

`python -m benchmarks.native.kernels` measures, for each tier, format and shape of matrix: gigabytes
of weights a second at one row, compared with a plain loop that reads the same memory; and billions
of operations a second at more rows, compared with a loop that stays in registers. All figures come
from one run, and each is the best of many, since other programs can only make them worse.
"""

import argparse
import ctypes
import subprocess
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from octavo.backends.native import _native
from tests.backends.native import _native_test

STORED_F32 = 0
NAMES = {  # (outputs, inputs) of the matrices that a step reads
    "smollm2": {"qkv": (960, 576), "o": (576, 576), "up": (3072, 576), "down": (576, 1536),
                "head": (49152, 576)},
    "llama1b": {"qkv": (3072, 2048), "o": (2048, 2048), "up": (16384, 2048),
                "down": (2048, 8192), "head": (128256, 2048)},
}  # fmt: skip
# The register loop that bounds a tier's format, and operations in one round of it.
ROUND = {"peak_fma_256": 12 * 8 * 2, "peak_fma_512": 24 * 16 * 2, "peak_bf16_512": 24 * 32 * 2,
         "peak_int8_512": 24 * 64 * 2}  # fmt: skip
FLOATS = ("F32", "F16", "BF16")
# A stored type that each format packs without rounding: GGUF's number, inputs, bytes of a block.
BLOCKS = {"U8": (8, 32, 34), "U4": (2, 32, 18), "U4Min": (3, 32, 20), "U4K": (12, 256, 144),
          "U5": (6, 32, 22), "U5Min": (7, 32, 24), "U5K": (13, 256, 176), "U6": (14, 256, 210),
          "Table4": (20, 32, 18), "Mx4": (39, 32, 17)}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A matrix, and the tier and threads that multiply with it."""

    tier: str
    format: str
    name: str
    outputs: int
    inputs: int
    threads: int


def peak_library() -> ctypes.CDLL:
    """Return the loops of peak.c, compiled by the compiler that Python was built with."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    target = Path(tempfile.mkdtemp()) / "peak.so"
    source = Path(__file__).with_name("peak.c")
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", source, "-o", target], check=True)
    library = ctypes.CDLL(str(target))
    for name in ("read_all_256", "read_all_512"):
        getattr(library, name).argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    for name in ROUND:
        getattr(library, name).argtypes = [ctypes.c_int64]
    return library


def best_seconds(work: Sequence[Callable[[], object]], budget: float = 0.4) -> float:
    """Return the shortest time in which all of `work` was done, each in its own thread.

    Processor time, so that what other programs take is not counted.
    """
    best = float("inf")
    barrier = threading.Barrier(len(work))
    stop = time.perf_counter() + budget
    times: list[list[float]] = [[] for _ in work]
    going = [True]

    def turn(index: int) -> None:
        while True:
            barrier.wait()
            if not going[0]:
                return
            start = time.thread_time()
            work[index]()
            times[index].append(time.thread_time() - start)
            barrier.wait()
            if index == 0:
                going[0] = time.perf_counter() < stop or len(times[0]) < 5

    others = [threading.Thread(target=turn, args=(i,)) for i in range(1, len(work))]
    for thread in others:
        thread.start()
    turn(0)
    for thread in others:
        thread.join()
    for one in zip(*times, strict=True):
        best = min(best, max(one))
    return best


def peak_name(tier: str, format_name: str) -> str | None:
    """Return the register loop that bounds the kernels of this tier and format."""
    if tier == "scalar":
        return None
    if format_name not in FLOATS:
        return "peak_int8_512" if tier != "avx2" else None
    if format_name == "BF16" and tier == "avx512bf16":
        return "peak_bf16_512"
    return "peak_fma_256" if tier == "avx2" else "peak_fma_512"


def operations_per_second(library: ctypes.CDLL, name: str, threads: int) -> float:
    loops = 200_000
    call = getattr(library, name)
    return threads * loops * ROUND[name] / best_seconds([lambda: call(loops)] * threads)


def read_rate(library: ctypes.CDLL, tier: str, data: npt.NDArray[np.uint8], threads: int) -> float:
    """Return the bytes a second of a plain loop over `data`, divided among the threads."""
    call = library.read_all_256 if tier in ("avx2", "scalar") else library.read_all_512
    share = data.size // threads // 256 * 256
    start = data.ctypes.data
    work = [lambda i=i: call(start + i * share, share) for i in range(threads)]
    return threads * share / best_seconds(work)


def make_matrix(case: Case) -> _native_test.PackedMatrix:
    """Make weights of this shape; a few rows repeat, since values do not matter here."""
    if case.format in FLOATS:
        stored_type = STORED_F32
        numbers = np.random.default_rng(0).standard_normal((64, case.inputs))
        stored = list(numbers.astype(np.float32).view(np.uint8))
    else:
        stored_type, block_inputs, block_bytes = BLOCKS[case.format]
        # One byte everywhere: a scale of 0.0006, or 2^-111, and codes 1, or 17.
        stored = [np.full(case.inputs // block_inputs * block_bytes, 17, np.uint8)]
    rows = [stored[i % len(stored)] for i in range(case.outputs)]
    return _native_test.pack(case.format, stored_type, rows, case.inputs)


def product_seconds(case: Case, matrix: _native_test.PackedMatrix, rows: int) -> float:
    x = np.random.default_rng(1).standard_normal((rows, case.inputs)).astype(np.float32)
    prepared = _native_test.prepare(case.tier, case.format, x)
    out = np.zeros((rows, case.outputs), np.float32)
    cuts = [matrix.panels * i // case.threads for i in range(case.threads + 1)]
    work = [
        lambda i=i: _native_test.gemm(
            case.tier, matrix, prepared, out, first_panel=cuts[i], end_panel=cuts[i + 1]
        )
        for i in range(case.threads)
    ]
    return best_seconds(work)


def measure(library: ctypes.CDLL, case: Case, row_counts: Sequence[int]) -> str:
    matrix = make_matrix(case)
    huge = np.zeros(matrix.num_bytes + (4 << 20), np.uint8)  # numpy asks for huge pages itself
    huge[::4096] = 1
    read = read_rate(library, case.tier, huge[: matrix.num_bytes], case.threads)
    peak = peak_name(case.tier, case.format)
    limit = operations_per_second(library, peak, case.threads) if peak else None
    parts = [f"{case.tier:10} {case.format:6} {case.name:13} {matrix.num_bytes / 2**20:6.1f} MiB"]
    for rows in row_counts:
        seconds = product_seconds(case, matrix, rows)
        operations = 2 * rows * case.outputs * case.inputs / seconds
        if rows == 1:
            rate = matrix.num_bytes / seconds
            parts.append(f"{rows}: {rate / 1e9:.1f} GB/s ({rate / read:.0%})")
        else:
            share = f" ({operations / limit:.0%})" if limit else ""
            parts.append(f"{rows}: {operations / 1e9:.0f}{share}")
    return "  ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tiers", default=",".join(_native.tiers()[1:]))
    parser.add_argument("--formats", default="BF16")
    parser.add_argument("--model", default="smollm2", choices=sorted(NAMES))
    parser.add_argument("--matrices", default="")
    parser.add_argument("--rows", default="1,2,4,8,16,64,512")
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    library = peak_library()
    row_counts = [int(rows) for rows in chosen.rows.split(",")]
    print("rows: GB/s of weights (share of a plain read), then GFLOP/s (share of peak)")
    for format_name in chosen.formats.split(","):
        for name, (outputs, inputs) in NAMES[chosen.model].items():
            if chosen.matrices and name not in chosen.matrices.split(","):
                continue
            for tier in chosen.tiers.split(","):
                label = f"{chosen.model}.{name}"
                case = Case(tier, format_name, label, outputs, inputs, chosen.threads)
                print(measure(library, case, row_counts), flush=True)


if __name__ == "__main__":
    main()
