"""The table of weight formats names every format, and its errors are those of the products."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.native import weight_formats
from benchmarks.native.weight_formats import GGUF, LOAD, PAGE, SAFETENSORS, error_of, of_safetensors
from octavo.backends.native import _native


def test_the_page_has_a_line_for_every_format() -> None:
    lines = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    names = {line.split(" | ")[0].removeprefix("| ") for line in lines}
    expected = {*SAFETENSORS, *(f"GGUF, {name}" for name in GGUF)}
    expected |= {f"bf16 (`--cpu-weights {weights}`)" for weights in LOAD}
    assert expected <= names


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("compressed-tensors, W4A16 by 128", 0.004, 0.008),
        ("compressed-tensors, W8A8", 0.005, 0.01),
        ("NVFP4, ModelOpt", 0.001, 0.003),
    ],
)
def test_an_error_is_that_of_the_activations_alone(
    name: str, least: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_formats, "OUTPUTS", 64)
    stored = of_safetensors(name, SAFETENSORS[name], np.random.default_rng(0))
    assert least < error_of(_native.tiers()[-1], stored) < most
