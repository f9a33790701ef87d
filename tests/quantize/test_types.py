"""Each type is written as its format describes it, and with scales of the least error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from octavo.loader.safetensors import open_safetensors
from octavo.quantize.floats import nearest_e2m1, nearest_e4m3
from octavo.quantize.packer import Floats
from octavo.quantize.types import TARGETS
from tests.quant.made_compressed import E2M1
from tests.quantize.made import BF16, TYPES, made_of, values_in, write_model

Array = NDArray[Any]
# The most that the values of a matrix may differ, as a part of their root mean square.
MOST = {"w4a16": 0.1, "w8a16": 0.01, "w8a8": 0.01, "fp8": 0.03, "nvfp4": 0.1, "mxfp4": 0.12}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float model of two blocks in BF16."""
    return write_model(tmp_path_factory.mktemp("float") / "model")


def test_every_type_is_tested() -> None:
    assert TYPES.keys() == TARGETS.keys() == MOST.keys()


def stored_in(directory: Path) -> dict[str, Array]:
    checkpoint = open_safetensors(directory / "model.safetensors")
    return {name: checkpoint.read(name) for name in checkpoint.tensors}


def by_description(to: str, tensors: dict[str, Array]) -> Array:
    """Compute a matrix's values from its tensors, by the description of its format."""
    scale = tensors["weight_scale"].astype(np.float32)
    if to in ("w8a8", "fp8"):
        return tensors["weight"].astype(np.float32) * scale
    packed = np.ascontiguousarray(tensors["weight_packed"]).view(np.uint8)
    if to in ("w4a16", "w8a16"):
        bits = 4 if to == "w4a16" else 8
        single = np.unpackbits(packed, axis=1, bitorder="little")
        single = single.reshape(len(packed), -1, bits).astype(np.int32)
        codes = (single << np.arange(bits)).sum(-1) - (1 << (bits - 1))
        assert tensors["weight_shape"].tolist() == list(codes.shape)
        return codes * np.repeat(scale, codes.shape[1] // scale.shape[1], axis=1)
    codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(len(packed), -1)
    is_nv = to == "nvfp4"
    factors: Array = scale / tensors["weight_global_scale"] if is_nv else np.exp2(scale - 127)
    size = codes.shape[1] // factors.shape[1]
    return np.array(E2M1, np.float32)[codes] * np.repeat(factors, size, axis=1)


@pytest.mark.parametrize("to", TYPES)
def test_values_are_those_of_the_description_and_near_the_float_ones(
    to: str, model: Path, tmp_path: Path
) -> None:
    plan = made_of(model, to, tmp_path / "made")
    read, own = values_in(tmp_path / "made"), values_in(model)
    assert read.keys() == own.keys()
    stored = stored_in(tmp_path / "made")
    quantised = {matrix.name for matrix in plan.matrices}
    assert len(quantised) == 2 * 7
    for name, values in own.items():
        if name not in quantised:
            np.testing.assert_array_equal(read[name], values)
            continue
        module = name.removesuffix("weight")
        parts = {each.removeprefix(module): part for each, part in stored.items() if module in each}
        np.testing.assert_array_equal(read[name], by_description(to, parts))
        error = np.sqrt(np.mean((read[name] - values) ** 2) / np.mean(values**2))
        assert 0 < error < MOST[to]


@pytest.mark.parametrize("to", TYPES)
def test_the_scales_are_at_least_as_good_as_those_of_the_peak(
    to: str, model: Path, tmp_path: Path
) -> None:
    """A scale that brings a group's peak to the largest code is what others take."""
    plan = made_of(model, to, tmp_path / "made")
    read, own = values_in(tmp_path / "made"), values_in(model)
    mine = others = 0.0
    for matrix in plan.matrices:
        values = own[matrix.name]
        groups = values.reshape(-1, plan.packer.settings().get("group_size") or values.shape[1])
        mine += float(np.square(read[matrix.name] - values).sum())
        others += float(np.square(by_peak(to, groups) - groups).sum())
    assert mine < others * (0.95 if to in ("w4a16", "nvfp4") else 1.001)


def by_peak(to: str, groups: Floats) -> Floats:
    peaks = np.abs(groups).max(-1, keepdims=True)
    if to in ("w4a16", "w8a16", "w8a8"):
        half = 8 if to == "w4a16" else 128
        scale = (peaks / (half - 0.5)).astype(BF16).astype(np.float32)
        return np.clip(np.rint(groups / scale), -half, half - 1) * scale
    if to == "fp8":
        scale = (peaks / 448).astype(BF16).astype(np.float32)
        return (groups / scale).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * scale
    if to == "nvfp4":
        divisor = 448 * 6 / peaks.max()
        scale = (peaks / 6 * divisor).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) / divisor
    else:
        scale = np.exp2(np.floor(np.log2(peaks)) - 2)
    return nearest_e2m1(groups / scale) * scale


@pytest.mark.parametrize("to", TYPES)
@pytest.mark.parametrize("kind", [np.float32, np.float16, np.float64])
def test_other_types_of_floats(to: str, kind: type, tmp_path: Path) -> None:
    """Scales have the type of the values; what is not quantised keeps it."""
    model = write_model(tmp_path / "model", kind=kind)
    made_of(model, to, tmp_path / "made")
    stored = stored_in(tmp_path / "made")
    assert stored["model.norm.weight"].dtype == kind
    if to in ("w4a16", "w8a16", "w8a8", "fp8"):
        scale = stored["model.layers.0.mlp.up_proj.weight_scale"]
        assert scale.dtype == (np.float32 if kind is np.float64 else kind)
    read, own = values_in(tmp_path / "made"), values_in(model)
    for name, values in own.items():
        assert np.sqrt(np.mean((read[name] - values) ** 2)) < 0.15 * np.sqrt(np.mean(values**2))


@pytest.mark.parametrize("to", TYPES)
def test_zeros_and_outliers(to: str, tmp_path: Path) -> None:
    """Rows of zeros stay zeros, tiny and huge rows are as near as others, one outlier is kept."""
    generator = np.random.default_rng(3)
    values = generator.standard_normal((96, 64), np.float32).astype(BF16).astype(np.float32)
    values[0] = 0
    values[1, 5:] = 0
    values[2] *= 2.0**-10
    values[3] *= 2.0**10
    name = "model.layers.1.mlp.up_proj.weight"
    model = write_model(tmp_path / "model", change={name: values.astype(BF16)})
    made_of(model, to, tmp_path / "made")
    read = values_in(tmp_path / "made")[name]
    assert not read[0].any()
    np.testing.assert_allclose(read[1], values[1], rtol=0.1, atol=0.1)
    assert np.isfinite(read).all()
    # One number for the whole matrix leaves NVFP4 too little room for rows that are so far apart.
    far = (3,) if to == "nvfp4" else (2, 3)
    for row in far:
        error = np.sqrt(np.mean((read[row] - values[row]) ** 2) / np.mean(values[row] ** 2))
        assert error < 0.15


def test_matrices_of_one_parent_share_the_number_that_divides_scales(
    model: Path, tmp_path: Path
) -> None:
    """Others compute q, k and v as one matrix, which has room for one such number."""
    made_of(model, "nvfp4", tmp_path / "made")
    stored, own = stored_in(tmp_path / "made"), values_in(model)
    for parent, names in (("self_attn", "qkvo"), ("mlp", ("gate", "up", "down"))):
        modules = [f"model.layers.1.{parent}.{name}_proj.weight" for name in names]
        divisors = {float(stored[f"{module}_global_scale"][0]) for module in modules}
        peak = max(np.abs(own[module]).max() for module in modules)
        assert divisors == {float(np.float32(448 * 6 / peak))}


def test_rounding_is_that_of_the_types() -> None:
    """Halves go to the even neighbour, as in every other implementation."""
    generator = np.random.default_rng(0)
    values = np.concatenate(
        [
            generator.standard_normal(4000, np.float32) * np.float32(scale)
            for scale in (1e-3, 0.02, 1, 3, 100)
        ]
    )
    grid = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    grid = np.unique(grid[np.isfinite(grid)])
    values = np.concatenate([values, grid, (grid[1:] + grid[:-1]) / 2])
    inside = values[np.abs(values) <= 448]
    expected = inside.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    np.testing.assert_array_equal(nearest_e4m3(inside), expected)
    small = values[np.abs(values) <= 6]
    expected = small.astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
    np.testing.assert_array_equal(nearest_e2m1(small), expected)
    np.testing.assert_array_equal(
        nearest_e2m1(np.array([7, -100], np.float32)), np.array([6, -6], np.float32)
    )


@pytest.mark.parametrize("to", TYPES)
def test_values_are_those_of_the_package(to: str, model: Path, tmp_path: Path) -> None:
    """The package reads a matrix as we do, with the settings that config.json has."""
    package = pytest.importorskip("compressed_tensors.quantization")
    compressors = pytest.importorskip("compressed_tensors.compressors")
    import torch

    plan = made_of(model, to, tmp_path / "made")
    settings = json.loads((tmp_path / "made" / "config.json").read_text())["quantization_config"]
    read = package.QuantizationConfig.model_validate(settings)
    scheme = read.config_groups["group_0"]
    compressor = compressors.BaseCompressor.get_value_from_registry(settings["format"])
    stored, own = stored_in(tmp_path / "made"), values_in(tmp_path / "made")
    for matrix in plan.matrices:
        state = {}
        for name, array in stored.items():
            if not name.startswith(f"{matrix.module}."):
                continue
            ending = name.rpartition(".")[2]
            if array.dtype.kind == "V" or array.dtype.name.startswith(("bf", "float8")):
                kinds = {"bfloat16": torch.bfloat16, "float8_e4m3fn": torch.float8_e4m3fn}
                raw = torch.from_numpy(array.view(f"u{array.itemsize}").copy())
                state[ending] = raw.view(kinds[array.dtype.name])
            else:
                state[ending] = torch.from_numpy(array.copy())
        values = compressor.decompress(state, scheme)["weight"].float().numpy()
        tolerance = 2**-8 if to in ("w4a16", "w8a16", "w8a8", "fp8") else 2**-7
        np.testing.assert_allclose(values, own[matrix.name], rtol=tolerance, atol=1e-6)
