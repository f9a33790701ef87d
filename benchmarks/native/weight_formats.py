"""Makes the table of weight formats in docs/weights.md: what each becomes, how exact, how fast.

    python -m benchmarks.native.weight_formats            prints the table
    python -m benchmarks.native.weight_formats --write    writes it into docs/weights.md

For each format a matrix of random codes is written as its files are, read, and packed as a model's
would be. The error is that of a product: of random activations with the matrix, relative to the
same product in float64 with the values that the file means (root of the mean square). Speeds are
those of products with one row and with 512, relative to bf16's, which are measured beside each.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from benchmarks.native.kernels import best_seconds
from octavo.backends.native import _native
from octavo.backends.native.packing import choose_format
from octavo.backends.stored_rows import StoredRows
from octavo.loader.dequantize import dequantize
from octavo.loader.safetensors import open_safetensors
from octavo.models.checkpoint_weights import CheckpointWeights
from octavo.models.values import Values
from octavo.options.cpu_types import CpuActivations, CpuWeights
from octavo.quant.plain import layout_of
from octavo.quant.registry import formats_for
from tests.backends.native import _native_test
from tests.backends.native.kernels.test_gemm_quantized import activations, kind_of, random_blocks
from tests.loader.make_files import write_safetensors
from tests.quant.made_compressed import integers
from tests.quant.made_up import FORMATS, MadeFormat, awq, fp8_blocks, gptq, hqq

PAGE = Path(__file__).parents[2] / "docs" / "weights.md"
BEGIN, END = "<!-- table -->", "<!-- end of table -->"
INPUTS = 2048
OUTPUTS = 1024  # that differ
# So that no cache holds the matrix of one row, not even in four bits. Products with many rows do
# not wait for memory.
COUNTS = 64, 16
ERROR_ROWS, MANY_ROWS = 32, 512
ROUNDS = 3
GGUF = (
    "Q8_0", "Q6_K", "Q5_K", "Q5_1", "Q5_0", "Q4_K", "Q4_1", "Q4_0", "IQ4_NL", "IQ4_XS", "MXFP4",
    "Q3_K", "Q2_K", "IQ3_S", "IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S", "TQ2_0",
    "TQ1_0",
)  # fmt: skip
# Names of the table, and how such a file is made; those of `FORMATS` are made for tests.
SAFETENSORS: dict[str, MadeFormat] = {
    "GPTQ, 4 bits by 128, symmetric": gptq(4, 128, sym=True),
    "GPTQ, 4 bits by 128": gptq(4, 128),
    "GPTQ, 4 bits, act-order": gptq(4, 128, act_order=True),
    "GPTQ, 3 bits by 128": gptq(3, 128),
    "GPTQ, 2 bits by 64": gptq(2, 64),
    "GPTQ, 8 bits by 128, symmetric": gptq(8, 128, sym=True),
    "GPTQ, 8 bits by 128": gptq(8, 128),
    "AWQ, 4 bits by 128": awq(128),
    "compressed-tensors, W4A16 by 128": MadeFormat(*integers(4, "group", 128)),
    "compressed-tensors, W8A8": MadeFormat(
        *integers(8, "channel", is_packed=False, scale_type=ml_dtypes.bfloat16)
    ),
    "FP8, blocks of 128 × 128": fp8_blocks(128, 128),
    "FP8, a scale for a row": FORMATS["FP8, a scale for a row"],
    "NVFP4, compressed-tensors": FORMATS["NVFP4"],
    "NVFP4, ModelOpt": FORMATS["NVFP4 of ModelOpt"],
    "MXFP4": FORMATS["MXFP4, packed"],
    "bitsandbytes, NF4": FORMATS["bitsandbytes, NF4"],
    "bitsandbytes, FP4": FORMATS["bitsandbytes, FP4"],
    "bitsandbytes, 8 bits": FORMATS["bitsandbytes, 8 bits"],
    "HQQ, 8 bits by 128": hqq(8, 128),
    "HQQ, 4 bits by 64": hqq(4, 64),
    "HQQ, 3 bits by 64": hqq(3, 64),
    "HQQ, 2 bits by 64": hqq(2, 64),
    "torchao, 8 bits": FORMATS["torchao, integers"],
    "torchao, 4 bits": FORMATS["torchao, 4 bits"],
    "SqueezeLLM, 4 bits": FORMATS["SqueezeLLM"],
}
EXACT = " (`--cpu-activations bf16`)"
LOAD: tuple[CpuWeights, ...] = (
    *("int8", "int8-wide", "int8-128", "int4", "int4-128", "fp8", "nf4"),
)
# Formats that take other activations if these are asked for.
WITH_BF16 = ("FP8, ", "compressed-tensors, W4A16")

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Stored:
    """A matrix as a file has it."""

    name: str
    file_bits: float  # of a weight
    rows: StoredRows
    values: Floats
    weights: CpuWeights = "auto"
    activations: CpuActivations = "auto"


@dataclass(frozen=True)
class Line:
    """A line of the table."""

    stored: Stored
    format: str
    bits: float
    error: float
    speeds: tuple[float, float]  # of products with one row, and with many; bf16's are 1


def matrices() -> Iterator[Stored]:
    """Make a matrix in each format."""
    generator = np.random.default_rng(0)
    plain = generator.standard_normal((OUTPUTS, INPUTS)).astype(np.float32)
    plain *= np.float32(INPUTS**-0.5)
    halves = plain.astype(ml_dtypes.bfloat16)
    floats = halves.astype(np.float32)
    rows = StoredRows(layout_of(kind_of("BF16")), INPUTS, halves.view(np.uint8))
    yield Stored("bf16", 16.0, rows, floats)
    for weights in LOAD:
        yield Stored(f"bf16 (`--cpu-weights {weights}`)", 16.0, rows, floats, weights)
    for name, made in SAFETENSORS.items():
        found = of_safetensors(name, made, generator)
        yield found
        if name.startswith(WITH_BF16):
            yield replace(found, name=f"{name}{EXACT}", activations="bf16")
    for name in GGUF:
        blocks = random_blocks(name, OUTPUTS, INPUTS, 0.01)
        kind = kind_of(name)
        stored = StoredRows(layout_of(kind), INPUTS, blocks)
        bits = 8 * kind.block_bytes / kind.block_elements
        yield Stored(f"GGUF, {name}", bits, stored, dequantize(blocks, kind))


def of_safetensors(name: str, made: MadeFormat, generator: np.random.Generator) -> Stored:
    """Write a module, and read it as a model's loading does."""
    tensors, values = made.quantise((OUTPUTS, INPUTS), generator)
    arrays = {f"m.{part}": array for part, array in tensors.items()}
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "model.safetensors"
        write_safetensors(path, arrays, made.metadata({"m.weight": (OUTPUTS, INPUTS)}))
        weights = CheckpointWeights(open_safetensors(path), formats_for(Values(made.settings)))
        rows = weights.rows("m.weight").in_memory()
    bits = 8 * sum(array.nbytes for array in arrays.values()) / values.size
    return Stored(name, bits, rows, np.ascontiguousarray(values))


def packed(stored: Stored, repeats: int) -> _native_test.PackedMatrix:
    """Pack the rows so many times one after the other, in the format that the engine chooses."""
    rows = stored.rows
    format_ = choose_format(
        rows.type, rows.inputs, stored.weights, stored.activations, is_embedding=False
    )
    type_ = getattr(_native.Stored, rows.type, None)
    data = rows.array
    if type_ is None or not _native.can_pack(type_, format_):
        type_, data = _native.Stored.F32, np.ascontiguousarray(rows.floats()).view(np.uint8)
    return _native_test.pack(format_.name, type_.value, list(data) * repeats, rows.inputs)


def error_of(tier: str, stored: Stored) -> float:
    """Return the relative error of products."""
    x = activations(ERROR_ROWS, INPUTS)
    matrix = packed(stored, 1)
    out = np.zeros((ERROR_ROWS, OUTPUTS), np.float32)
    columns = stored.rows.columns
    read = x if columns is None else np.ascontiguousarray(x[:, columns])
    _native_test.gemm(tier, matrix, _native_test.prepare(tier, matrix.format, read), out)
    exact = x.astype(np.float64) @ stored.values.T.astype(np.float64)
    # Each row counts alike, however large its activations are.
    scale = np.sqrt(np.square(exact).mean(1, keepdims=True))
    return float(np.sqrt(np.square((out - exact) / scale).mean()))


def seconds_of(
    tier: str, matrix: _native_test.PackedMatrix, rows: int, threads: int, budget: float
) -> float:
    """Return the time of a product on so many threads."""
    x = activations(rows, INPUTS)
    prepared = _native_test.prepare(tier, matrix.format, x)
    out = np.zeros((rows, matrix.outputs), np.float32)
    cuts = [matrix.panels * i // threads for i in range(threads + 1)]
    work = [
        lambda i=i: _native_test.gemm(
            tier, matrix, prepared, out, first_panel=cuts[i], end_panel=cuts[i + 1]
        )
        for i in range(threads)
    ]
    return best_seconds(work, budget)


def measure(tier: str, threads: int, budget: float, only: str) -> list[Line]:
    """Measure formats in turns, each time right after bf16: a machine's rates change."""
    first, *others = matrices()
    made = [each for each in (first, *others) if only in each.name]
    plain = [packed(first, count) for count in COUNTS]
    speeds: list[list[tuple[float, float]]] = [[] for _ in made]
    for _ in range(ROUNDS):
        for stored, found in zip(made, speeds, strict=True):
            one, many = (
                seconds_of(tier, base, rows, threads, budget)
                / seconds_of(tier, packed(stored, count), rows, threads, budget)
                for base, rows, count in zip(plain, (1, MANY_ROWS), COUNTS, strict=True)
            )
            found.append((one, many))
    lines = []
    for stored, found in zip(made, speeds, strict=True):
        matrix = packed(stored, 1)
        ones, manies = zip(*found, strict=True)
        bits = 8 * matrix.num_bytes / stored.values.size
        speed = statistics.median(ones), statistics.median(manies)
        lines.append(Line(stored, matrix.format, bits, error_of(tier, stored), speed))
    return lines


def table(lines: list[Line]) -> str:
    """Return the table in Markdown."""
    head = "| a file with | bits a weight: file | kept as | memory | error | 1 row | 512 rows |"
    texts = [head, "| --- | --- | --- | --- | --- | --- | --- |"]
    for line in lines:
        one, many = line.speeds
        texts.append(
            f"| {line.stored.name} | {line.stored.file_bits:.2f} | {line.format} | "
            f"{line.bits:.2f} | {100 * line.error:.2f} % | {one:.2f} | {many:.2f} |"
        )
    return "\n".join(texts)


def processor() -> str:
    """Return the processor's name."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "a processor without a name"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tier", default=_native.tiers()[-1], help="the instruction set")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.15, help="for each measurement")
    parser.add_argument("--only", default="", help="measure formats with this in their names")
    parser.add_argument("--write", action="store_true", help="write the table into the page")
    chosen = parser.parse_args()
    if chosen.write and chosen.only:
        parser.error("--write is for the whole table; leave --only out")
    text = table(measure(chosen.tier, chosen.threads, chosen.seconds, chosen.only))
    where = f"Measured on {processor()}, {chosen.threads} threads, kernels `{chosen.tier}`."
    if not chosen.write:
        print(f"{where}\n\n{text}")
        return
    page = PAGE.read_text("utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{where}\n\n{text}\n{END}{after}", "utf-8")
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
