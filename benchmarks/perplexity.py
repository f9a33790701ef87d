"""The cost of each format of weights and KV in perplexity, on a fixed text, against fp32.

    python benchmarks/perplexity.py                                 formats made at load, and KV
    python benchmarks/perplexity.py --llama build/peers/llama.cpp   GGUF types too (llama-quantize)
    python benchmarks/perplexity.py --quantized DIR …               what `octavo quantize` has made

Each format is compared with fp32 twice: with the original weights (the cost of the format), and
with the format's own weights, decoded (the cost of int8 or bf16 products). The text is
benchmarks/prose.txt, in independent windows. `±` is one standard error of the mean over the text's
tokens, paired by token. docs/performance.md contains a run.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # so that the script can be run by its path

from benchmarks.peers import models  # noqa: E402
from octavo.api.text_model import load_tokenizer  # noqa: E402
from octavo.backends.native import _native  # noqa: E402
from octavo.backends.native.backend import NativeBackend, NativeOptions  # noqa: E402
from octavo.backends.native.kv_formats import KV_FORMATS  # noqa: E402
from octavo.backends.native.packing import (  # noqa: E402
    Packer,
)
from octavo.backends.step import HostBatch  # noqa: E402
from octavo.backends.stored_rows import StoredRows  # noqa: E402
from octavo.layers import Embedding, Linear, Module  # noqa: E402
from octavo.loader import resolve  # noqa: E402
from octavo.models.build import bind  # noqa: E402
from octavo.models.kv_layout import place_layers  # noqa: E402
from octavo.models.load import open_model  # noqa: E402
from octavo.options.cpu_types import CpuActivations, CpuWeights  # noqa: E402
from octavo.program.operands import Matrix  # noqa: E402

Losses = NDArray[np.float64]  # minus the log-probability of each token but a window's first

MADE: tuple[CpuWeights, ...] = (
    "bf16", "int8", "int8-64", "int8-128", "int8-wide", "int4", "int4-64", "int4-128", "fp8", "nf4",
)  # fmt: skip
GGUF = ("F16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4")
ACTIVATIONS: tuple[CpuActivations, ...] = ("auto", "bf16")  # of quantised checkpoints
OWN = "the file itself"  # its weights count as the original ones
TEXT = Path(__file__).with_name("prose.txt")
BLOCK = 16
EXACT = NativeOptions(weights="float32", kv_dtype="float32")


@dataclass(frozen=True, slots=True)
class Cost:
    """The relative increase of a perplexity over another one, and its standard error."""

    part: float
    error: float

    @classmethod
    def of(cls, losses: Losses, base: Losses) -> Cost:
        differences = losses - base
        error = float(differences.std(ddof=1)) / math.sqrt(len(differences))
        part = math.expm1(float(differences.mean()))
        return cls(part, (1 + part) * error)

    def __str__(self) -> str:
        return f"{100 * self.part:+.2f} ± {100 * self.error:.2f} %"


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the table."""

    name: str
    holds: str
    bits_in_file: float | None
    bits_in_memory: float | None
    perplexity: float
    from_original: Cost
    from_kept: Cost | None


def main() -> None:
    """Measure every format and print the table."""
    options = arguments()
    quantize = options.llama / "llama-quantize" if options.llama else None
    options.models.mkdir(parents=True, exist_ok=True)
    plain = models.smollm2_bf16(options.models, quantize)
    windows = cut(read_text(options.text), options.window)
    measure = Measure(plain, quantize, windows)
    results = []
    print(f"{sum(map(len, windows))} tokens, fp32: {perplexity(measure.original):.3f}", flush=True)
    for result in measure.all(options.formats, options.quantized):
        results.append(result)
        print(line(result), flush=True)
    report = {
        "tokens": sum(map(len, windows)),
        "fp32": perplexity(measure.original),
        "formats": [asdict(result) for result in results],
    }
    options.out.write_text(json.dumps(report, indent=1) + "\n")


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--llama", type=Path, help="the directory of llama.cpp's programs")
    parser.add_argument("--models", type=Path, default=ROOT / "build" / "models")
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument("--window", type=int, default=512, help="tokens of a window")
    parser.add_argument("--quantized", nargs="*", type=Path, default=[], help="checkpoints")
    parser.add_argument("--formats", nargs="*", help="only these, by the table's first column")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "perplexity.json")
    return parser.parse_args()


def read_text(path: Path) -> list[int]:
    """Read a text and return its tokens."""
    return load_tokenizer(resolve("smollm2")).encode(path.read_text(), add_special_tokens=False)


def cut(tokens: Sequence[int], size: int) -> list[list[int]]:
    """Cut the tokens into windows of one size; an incomplete last window is dropped."""
    return [list(tokens[at : at + size]) for at in range(0, len(tokens) - size + 1, size)]


class Rounded(NativeBackend):
    """A backend that computes in fp32 with weights that were converted to a format and back."""

    def __init__(self, weights: CpuWeights) -> None:
        super().__init__(EXACT)
        self._through = Packer(_native.Team(1, False), weights)

    def matrix(self, parts: Sequence[StoredRows], module: Module) -> Matrix:
        rounded = [StoredRows.of(self._rounded(part, module)) for part in parts]
        return super().matrix(rounded, module)

    def _rounded(self, part: StoredRows, module: Module) -> NDArray[np.float32]:
        # Each row is rounded on its own, so rows can be packed separately.
        plain = module if isinstance(module, Embedding) else Linear(part.inputs, len(part))
        (piece,) = self._through.matrix([part], plain).pieces
        self._through.finish()
        return np.stack([piece.native.row(row) for row in range(len(part))])


class Measure:
    """A measurement of formats over the same windows."""

    def __init__(
        self, plain: models.Weights, quantize: Path | None, windows: list[list[int]]
    ) -> None:
        self._plain = plain
        self._quantize = quantize
        self._windows = windows
        self._directory = str(plain.directory)
        self.original = self._losses(self._directory, NativeBackend(EXACT))

    def all(self, wanted: Sequence[str] | None, quantized: Sequence[Path]) -> Iterator[Result]:
        """Yield the result of each wanted format, and of checkpoints."""
        for directory in quantized:
            yield from self._checkpoint(directory)
        if not wanted or OWN in wanted:
            path = str(models.smollm2().gguf)
            backend = NativeBackend(NativeOptions(kv_dtype="float32"))
            losses = self._losses(path, backend)
            kept = self._losses(path, NativeBackend(EXACT))
            yield self._result(OWN, path, backend, losses, kept, original=kept)
        for weights in MADE:
            if not wanted or weights in wanted:
                yield self._made(weights)
        for name in GGUF if self._quantize is not None else ():
            if not wanted or name in wanted:
                yield self._stored(name)
        for dtype in KV_FORMATS:
            if dtype == EXACT.kv_dtype:
                continue
            name = f"KV {dtype}"
            if not wanted or name in wanted:
                options = NativeOptions(weights="float32", kv_dtype=dtype)
                losses = self._losses(self._directory, NativeBackend(options))
                cost = Cost.of(losses, self.original)
                yield Result(name, "", None, None, perplexity(losses), cost, None)

    def _made(self, weights: CpuWeights) -> Result:
        backend = NativeBackend(NativeOptions(weights=weights, kv_dtype="float32"))
        losses = self._losses(self._directory, backend)
        kept = self._losses(self._directory, Rounded(weights))
        return self._result(weights, self._directory, backend, losses, kept)

    def _checkpoint(self, path: Path) -> Iterator[Result]:
        """Yield the result with each type of activations."""
        kept = self._losses(str(path), NativeBackend(EXACT))
        for activations in ACTIVATIONS:
            backend = NativeBackend(NativeOptions(kv_dtype="float32", activations=activations))
            losses = self._losses(str(path), backend)
            name = f"{path.name}, activations {activations}"
            yield self._result(name, str(path), backend, losses, kept)

    def _stored(self, name: str) -> Result:
        assert self._quantize is not None
        path = self._plain.gguf.with_name(f"smollm2-{name}.gguf")
        if not path.exists():
            make(self._quantize, self._plain.gguf, path, name)
        backend = NativeBackend(NativeOptions(kv_dtype="float32"))
        losses = self._losses(str(path), backend)
        kept = self._losses(str(path), NativeBackend(EXACT))
        return self._result(name, str(path), backend, losses, kept)

    def _result(
        self,
        name: str,
        model: str,
        backend: NativeBackend,
        losses: Losses,
        kept: Losses,
        *,
        original: Losses | None = None,
    ) -> Result:
        tensors = [each for each in resolve(model).open().tensors.values() if len(each.shape) > 1]
        counts: Counter[str] = Counter()
        for each in tensors:
            counts[each.type.name] += math.prod(each.shape)
        total = counts.total()
        shares = (f"{kind} {100 * count / total:.0f} %" for kind, count in counts.most_common())
        return Result(
            name,
            ", ".join(shares),
            8 * sum(each.num_bytes for each in tensors) / total,
            8 * backend.weight_bytes / total,
            perplexity(losses),
            Cost.of(losses, self.original if original is None else original),
            Cost.of(losses, kept),
        )

    def _losses(self, model: str, backend: NativeBackend) -> Losses:
        opened = open_model(resolve(model))
        layout = place_layers(opened.model)
        bind(opened.model, backend, opened.weights)
        blocks = -(-max(map(len, self._windows)) // BLOCK)
        backend.prepare(opened.model, layout, BLOCK)
        backend.make_cache(1 + blocks)
        table = np.arange(1, 1 + blocks, dtype=np.int32)[None]
        return np.concatenate([losses_of(backend, table, window) for window in self._windows])


def losses_of(backend: NativeBackend, table: NDArray[np.int32], tokens: list[int]) -> Losses:
    """Compute the losses of one window."""
    rows = np.arange(len(tokens), dtype=np.int32)
    ends = np.array([0, len(tokens)], np.int32)
    batch = HostBatch(np.array(tokens, np.int32), rows, ends, (table,), rows)
    scores = backend.forward(batch).logits[:-1]
    most = scores.max(-1, keepdims=True)
    totals = np.log(np.exp(scores - most).sum(-1, dtype=np.float64)) + most[:, 0]
    return totals - scores[np.arange(len(tokens) - 1), tokens[1:]]


def make(quantize: Path, source: Path, path: Path, name: str) -> None:
    """Make a GGUF file of one type, as far as the shapes of its tensors allow."""
    command = [str(quantize), "--pure"]
    if name == "MXFP4":  # by default the tool uses it for experts only
        command += ["--tensor-type", ".*=mxfp4", "--token-embedding-type", "mxfp4"]
    base = "Q4_0" if name == "MXFP4" else name
    subprocess.run([*command, str(source), str(path), base], check=True, capture_output=True)


def perplexity(losses: Losses) -> float:
    """Return e to the mean of the losses."""
    return math.exp(float(losses.mean()))


def line(result: Result) -> str:
    """Format a row of the table."""

    def bits(value: float | None) -> str:
        return "" if value is None else f"{value:.2f}"

    cells: Iterable[object] = (
        result.name,
        result.holds,
        bits(result.bits_in_file),
        bits(result.bits_in_memory),
        f"{result.perplexity:.2f}",
        result.from_original,
        result.from_kept or "",
    )
    return "| " + " | ".join(map(str, cells)) + " |"


if __name__ == "__main__":
    main()
