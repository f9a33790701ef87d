"""The errors of products by how activations are rounded: as static scales mean it, and as here.

    python -m benchmarks.native.activation_scales DIRECTORY

A float model in safetensors reads `benchmarks/prose.txt` in the reference backend (PyTorch). The
static scale of a matrix is that of its largest activation over the first half of the sample. The
errors are those over the other half, relative to the exact products (root of the mean square); of
each matrix every fourth output is computed. docs/weights.md contains a run.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from octavo.loader import resolve
from octavo.quant.plain import tensor_rows
from octavo.quantize.calibration import Calibration
from octavo.quantize.factors import as_int8
from octavo.quantize.plan import make_plan
from octavo.quantize.types import target_of

TEXT = Path(__file__).parents[1] / "prose.txt"
CHARACTERS = 4_600  # about a thousand tokens
GROUP = 32

Floats = NDArray[np.float32]
Form = Callable[[Floats, np.float32], Floats]  # from activations and a static peak


def static_int8(x: Floats, peak: np.float32) -> Floats:
    scale = peak / np.float32(127)
    made: Floats = np.clip(np.rint(x / scale), -128, 127) * scale
    return made


def static_e4m3(x: Floats, peak: np.float32) -> Floats:
    scale = peak / np.float32(448)
    codes = np.clip(x / scale, -448, 448).astype(ml_dtypes.float8_e4m3fn)
    made: Floats = codes.astype(np.float32) * scale
    return made


FORMS: dict[str, Form] = {
    "int8, static": static_int8,
    "E4M3, static": static_e4m3,
    "clamped to the static range": lambda x, peak: np.clip(x, -peak, peak),
    "int8 by token": lambda x, _: as_int8(x),
    "int8 by 32": lambda x, _: as_int8(x.reshape(-1, GROUP)).reshape(x.shape),
    "bf16": lambda x, _: x.astype(ml_dtypes.bfloat16).astype(np.float32),
}


def main() -> None:
    """Print the mean error of each form over all matrices, and the largest of a kind of matrix."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("directory", help="a float model in safetensors")
    source = resolve(parser.parse_args().directory)
    text = TEXT.read_text("utf-8")[:CHARACTERS]
    plan = make_plan(source, target_of("w8a8"), method="gptq", text=text)
    calibration = Calibration(plan, lambda *_: None)
    errors: dict[str, dict[str, list[float]]] = {form: defaultdict(list) for form in FORMS}
    for matrix in plan.matrices:
        seen, x = np.array_split(calibration.sample(matrix.name), 2)
        peak = np.abs(seen).max()
        weights = tensor_rows(plan.checkpoint, matrix.name).floats()[::4]
        exact = x @ weights.T
        kind = matrix.module.rpartition(".")[2]
        for name, form in FORMS.items():
            made = form(x, peak) @ weights.T
            error = np.sqrt(np.square(made - exact).mean() / np.square(exact).mean())
            errors[name][kind].append(float(error))
    for name, kinds in errors.items():
        mean = np.mean([error for found in kinds.values() for error in found])
        worst = max(kinds, key=lambda kind: float(np.mean(kinds[kind])))
        most = np.mean(kinds[worst])
        print(f"| {name} | {100 * mean:.2f} % | {worst} {100 * most:.2f} % |")


if __name__ == "__main__":
    main()
