"""Matrices of compressed-tensors have the values of the description, and of the package's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from octavo.backends.stored_rows import StoredRows
from octavo.loader.errors import CheckpointError, CorruptFileError, TensorMismatchError
from octavo.loader.safetensors import open_safetensors
from octavo.models.checkpoint_weights import CheckpointWeights
from octavo.models.values import Values
from octavo.quant.methods.compressed_tensors import CompressedTensors, read_compressed_tensors
from octavo.quant.registry import formats_for
from tests.loader.make_files import write_safetensors
from tests.quant.made_compressed import (
    Array,
    Made,
    float_settings,
    fp8,
    integers,
    mxfp4,
    nvfp4,
    settings_of,
)

BF16 = ml_dtypes.bfloat16
# How matrices are made, and the type of their rows.
CASES: dict[str, tuple[Made, str]] = {
    **{
        f"{bits} bits, packed": (
            integers(bits, "group", 32, symmetric=False),
            f"I{bits if bits <= 4 else 8}ZeroBy32",
        )
        for bits in range(2, 9)
    },
    **{
        f"{bits} bits, bytes": (integers(bits, "channel", is_packed=False), kind)
        for bits, kind in ((2, "I2ZeroBy32"), (5, "I8ZeroBy32"))
    },
    "4 bits, symmetric": (integers(4, "group", 128), "I4By128"),
    "4 bits, scales in BF16": (integers(4, "group", 128, scale_type=BF16), "I4By128"),
    "4 bits, groups of 16": (integers(4, "group", 16), "INT4"),
    "4 bits, a scale for a row": (integers(4, "channel", symmetric=False), "I4ZeroBy32"),
    "4 bits, a scale for a matrix": (integers(4, "tensor", symmetric=False), "I4ZeroBy32"),
    "4 bits, act-order": (integers(4, "group", 32, act_order=True), "I4By32"),
    "4 bits, zero points as bytes": (
        integers(4, "group", 32, symmetric=False, packs_zeros=False),
        "I4ZeroBy32",
    ),
    "4 bits, a last group that is shorter": (
        integers(4, "group", 96, symmetric=False),
        "I4ZeroBy32",
    ),
    "8 bits, symmetric": (integers(8, "group", 64), "I8By64"),
    "8 bits, act-order": (integers(8, "group", 64, act_order=True), "I8By64"),
    "W8A8, dynamic": (integers(8, "channel", is_packed=False), "I8Wide"),
    "W8A8, static": (
        integers(8, "channel", is_packed=False, scale_type=BF16, has_static_inputs=True),
        "I8Wide",
    ),
    "W8A8, a scale for a matrix": (
        integers(8, "tensor", is_packed=False, symmetric=False, scale_type=np.float32),
        "I8ZeroBy32",
    ),
    "bytes in groups, act-order": (
        integers(4, "group", 32, is_packed=False, act_order=True),
        "I4By32",
    ),
    "FP8, a scale for a row": (fp8("channel"), "F8By32"),
    "FP8, a scale for a matrix": (fp8("tensor"), "F8By32"),
    "FP8, blocks": (fp8("block", (16, 64)), "F8By32"),
    "NVFP4": (nvfp4(), "NVFP4DividedBy16"),
    "MXFP4": (mxfp4(), "MXFP4"),
}
# Those that may have inputs that fill no word or group.
RAGGED = [name for name, (made, _) in CASES.items() if made[0]["format"][:2] not in ("nv", "mx")]


def write(
    directory: Path, made: Made, shape: tuple[int, int], change: Mapping[str, Array | None]
) -> tuple[CompressedTensors, dict[str, Array], Array]:
    """Write one module with changed tensors; return the format, its tensors and values."""
    settings, quantise, _ = made
    tensors, values = quantise(shape, np.random.default_rng(0))
    arrays = {
        f"m.{name}": array for name, array in {**tensors, **change}.items() if array is not None
    }
    write_safetensors(directory / "model.safetensors", arrays)
    return read_compressed_tensors(Values(settings)), arrays, values


def rows_of(directory: Path, found: CompressedTensors) -> StoredRows:
    """Check the shapes of the only matrix, and read it."""
    weights = CheckpointWeights(open_safetensors(directory / "model.safetensors"), [found])
    weights.check(weights.shapes(), ())
    return weights.rows("m.weight")


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_the_description(name: str, tmp_path: Path) -> None:
    made, kind = CASES[name]
    for shape in ((40, 256), (7, 250)) if name in RAGGED else ((40, 256),):
        found, arrays, values = write(tmp_path, made, shape, {})
        checkpoint = open_safetensors(tmp_path / "model.safetensors")
        (matrix,) = found.find(checkpoint)
        unused = set(found.unused(checkpoint, ()))
        assert unused == {each for each in arrays if "input" in each}
        assert set(matrix.tensors) == set(arrays) - unused
        assert (matrix.name, matrix.shape) == ("m.weight", shape)
        stored = {each: array.shape for each, array in arrays.items() if each not in unused}
        assert matrix.stored_shapes(shape) == stored
        rows = matrix.rows()
        assert rows.type == matrix.type
        if shape[1] == 256:
            assert rows.type == kind
        np.testing.assert_array_equal(rows.floats(), values)
        np.testing.assert_array_equal(rows.cut(2, 5).floats(), values[2:5])


ZEROS = integers(4, "group", 32, symmetric=False)
ORDERED = integers(4, "group", 32, act_order=True)
BYTES = integers(4, "channel", is_packed=False)


@pytest.mark.parametrize(
    ("order", "has_index"),
    [
        (None, False),
        ("static", False),
        ("weight", False),
        ("group", True),
        ("dynamic", True),
        (True, True),
    ],
)
@pytest.mark.parametrize("bits", [3, 4, 8])
def test_orders_of_inputs_are_read_by_every_name(
    order: object, has_index: bool, bits: int, tmp_path: Path
) -> None:
    """A static order served in quantising alone: the groups are stored one after the other."""
    made = integers(bits, "group", 32, act_order=has_index)
    made[0]["config_groups"]["group_0"]["weights"]["actorder"] = order
    found, _, values = write(tmp_path, made, (40, 256), {})
    rows = rows_of(tmp_path, found)
    assert (rows.columns is not None) == has_index
    np.testing.assert_array_equal(rows.floats(), values)


def test_words_tell_the_shape_if_none_is_stored(tmp_path: Path) -> None:
    found, _, values = write(tmp_path, ZEROS, (40, 256), {"weight_shape": None})
    np.testing.assert_array_equal(rows_of(tmp_path, found).floats(), values)
    found = write(tmp_path, integers(3, "group", 32), (40, 256), {"weight_shape": None})[0]
    with pytest.raises(TensorMismatchError, match="weight_shape"):
        rows_of(tmp_path, found)


@pytest.mark.parametrize("made", [ZEROS, ORDERED, BYTES, fp8("channel"), nvfp4(), mxfp4()])
def test_every_missing_tensor_is_one_error(made: Made, tmp_path: Path) -> None:
    tensors, _ = made[1]((40, 256), np.random.default_rng(0))
    for name in sorted(tensors.keys() - {"weight", "weight_packed", "weight_shape"}):
        found = write(tmp_path, made, (40, 256), {name: None})[0]
        with pytest.raises(TensorMismatchError, match=rf"m\.{name}"):
            rows_of(tmp_path, found)


@pytest.mark.parametrize("made", [ZEROS, ORDERED, BYTES, fp8("channel"), nvfp4(), mxfp4()])
def test_every_tensor_of_another_shape_is_one_error(made: Made, tmp_path: Path) -> None:
    tensors, _ = made[1]((40, 256), np.random.default_rng(0))
    for name in sorted(tensors.keys() - {"weight"}):
        change = {name: np.concatenate([tensors[name], tensors[name]])}
        found = write(tmp_path, made, (40, 256), change)[0]
        with pytest.raises(TensorMismatchError, match=r"weight"):
            rows_of(tmp_path, found)


@pytest.mark.parametrize(
    "sizes", [[40, 255 * 2], [40, -256], [41, 256], [0, 0], [1 << 62, 1 << 62]]
)
def test_a_shape_that_does_not_fit_the_words_is_refused(sizes: list[int], tmp_path: Path) -> None:
    found = write(tmp_path, ZEROS, (40, 256), {"weight_shape": np.array(sizes)})[0]
    with pytest.raises(TensorMismatchError, match=r"weight_shape.*does not fit weight_packed"):
        rows_of(tmp_path, found)


def test_a_shape_other_than_the_model_s_is_refused(tmp_path: Path) -> None:
    """The words of 250 and of 256 inputs are as many, in groups of 32 their scales too."""
    found = write(tmp_path, ZEROS, (40, 256), {"weight_shape": np.array([40, 250])})[0]
    weights = CheckpointWeights(open_safetensors(tmp_path / "model.safetensors"), [found])
    with pytest.raises(TensorMismatchError, match=r"\[40, 250\], but the model needs \[40, 256\]"):
        weights.check({"m.weight": (40, 256)}, ())


@pytest.mark.parametrize(
    ("made", "name", "change", "message"),
    [
        (BYTES, "weight", lambda codes: codes * 2, "4 bits cannot hold"),
        (
            integers(4, "group", 32, symmetric=False, packs_zeros=False),
            "weight_zero_point",
            lambda zeros: zeros * 0 + 8,
            "4 bits cannot hold",
        ),
        (ORDERED, "weight_g_idx", lambda owners: owners * 0, "does not put 32 inputs into each"),
    ],
)
def test_numbers_that_cannot_be_are_refused(
    made: Made, name: str, change: Any, message: str, tmp_path: Path
) -> None:
    tensors, _ = made[1]((40, 256), np.random.default_rng(0))
    found = write(tmp_path, made, (40, 256), {name: change(tensors[name])})[0]
    with pytest.raises(CorruptFileError, match=message):
        rows_of(tmp_path, found)


def test_symmetric_weights_may_have_zero_points_of_zero_alone(tmp_path: Path) -> None:
    made = integers(8, "channel", is_packed=False)
    zeros = np.zeros((40, 1), np.int8)
    found, _, values = write(tmp_path, made, (40, 256), {"weight_zero_point": zeros})
    np.testing.assert_array_equal(rows_of(tmp_path, found).floats(), values)
    zeros[3] = 1
    found = write(tmp_path, made, (40, 256), {"weight_zero_point": zeros})[0]
    with pytest.raises(CorruptFileError, match=r"weight_zero_point.*symmetric is true"):
        rows_of(tmp_path, found)


def test_an_index_that_was_never_filled_is_no_order(tmp_path: Path) -> None:
    made = integers(4, "group", 32, symmetric=False)
    index = np.full(256, -1, np.int32)
    found, _, values = write(tmp_path, made, (40, 256), {"weight_g_idx": index})
    np.testing.assert_array_equal(rows_of(tmp_path, found).floats(), values)


def group(targets: list[str], bits: int) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": "int", "strategy": "channel"}
    return {"targets": targets, "weights": weights}


def test_a_module_has_the_settings_of_the_most_exact_target() -> None:
    settings = {
        "quant_method": "compressed-tensors",
        "config_groups": {
            "activations": {"targets": ["LlamaAttention"], "weights": None},
            "classes": group(["Linear"], 4),
            "tokens": group(["Embedding"], 8),
            "regex": group(["re:model[.]layers[.][0-3][.]"], 5),
            "names": group(["model.layers.2.mlp.up_proj"], 6),
            "whole": {"targets": ["re:.*vision"], "format": "dense", "weights": {"num_bits": 4}},
        },
        "ignore": ["lm_head", "re:.*router$"],
    }
    found = read_compressed_tensors(Values(settings))
    bits = {
        "model.layers.7.mlp.up_proj": 4,
        "model.embed_tokens": 8,
        "model.layers.1.mlp.up_proj": 5,
        "model.layers.2.mlp.up_proj": 6,
        "model.layers.2.mlp.down_proj": 5,
        "model.layers.2.router": None,
        "lm_head": None,
        "model.vision.0.up": None,
    }
    kinds: dict[str, Any] = {name: found.kind_of(name) for name in bits}
    assert bits == {name: kind and kind.settings.bits for name, kind in kinds.items()}


INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
WEIGHTS = r"config_groups\.group_0\.weights"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (settings_of({**INT4, "num_bits": 16}, "pack-quantized"), rf"{WEIGHTS}\.num_bits = '16'"),
        (settings_of({**INT4, "num_bits": "4"}, "pack-quantized"), rf"{WEIGHTS}\.num_bits"),
        (settings_of({**INT4, "type": "complex"}, "pack-quantized"), rf"{WEIGHTS}\.type = 'c"),
        (settings_of({**INT4, "strategy": "block"}, "pack-quantized"), rf"{WEIGHTS}\.strategy"),
        (settings_of({**INT4, "group_size": None}, "pack-quantized"), r"group_size = null"),
        (settings_of({**INT4, "group_size": 33}, "pack-quantized"), r"group_size = '33'"),
        (settings_of({**INT4, "strategy": None, "group_size": [1]}, "pack-quantized"), "group_si"),
        (settings_of({**INT4, "symmetric": "no"}, "pack-quantized"), rf"{WEIGHTS}\.symmetric"),
        (settings_of({**INT4, "actorder": "best"}, "pack-quantized"), "actorder = 'best'"),
        (settings_of(INT4, "marlin-24"), r"group_0\.format = 'marlin-24'"),
        (settings_of(INT4, "mxfp8-quantized"), r"group_0\.format = 'mxfp8-quantized'"),
        (settings_of(INT4, "float-quantized"), r"format = 'float-quantized'.*int, 4 bits"),
        (float_settings(8, "group", "float-quantized"), rf"{WEIGHTS}\.strategy = 'group'"),
        (float_settings(8, "block", "float-quantized"), "block_structure = null"),
        (
            float_settings(8, "block", "float-quantized", block_structure="0x128"),
            r"block_structure must be two sizes from 1 to 4,096, is '\[0, 128\]'",
        ),
        (float_settings(6, "group", "mixed-precision"), rf"{WEIGHTS}\.num_bits = '6'"),
        (float_settings(4, "channel", "mixed-precision"), rf"{WEIGHTS}\.strategy = 'channel'"),
        (
            float_settings(4, "group", "mxfp4-pack-quantized", group_size=16),
            r"group_size = '16'.*32 with the strategy group",
        ),
        (float_settings(8, "tensor", "float-quantized", symmetric=False), "symmetric = 'False'"),
        (settings_of(INT4, "pack-quantized", config_groups={}), "config_groups = '{}'"),
        (settings_of(INT4, "pack-quantized", config_groups={"W4A16": ["Linear"]}), "groups.W4A16"),
        (
            settings_of(INT4, "x", config_groups={"a": {"targets": ["Conv2d"], "weights": INT4}}),
            "a.targets = 'Conv2d'",
        ),
        (settings_of(INT4, "x", config_groups={"a": {"targets": "Linear"}}), "a.targets must be"),
        (
            settings_of(
                INT4,
                "pack-quantized",
                sparsity_config={"format": "sparse-24-bitmask", "sparsity_structure": "2:4"},
            ),
            "sparsity_config.*'sparse-24-bitmask'.*'2:4'.*use a model without sparsity",
        ),
        (
            settings_of(INT4, "pack-quantized", transform_config={"config_groups": {"u": {}}}),
            "transform_config",
        ),
    ],
)
def test_settings_that_are_not_supported_are_refused(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        formats_for(Values(settings))


PACKAGE = {
    **{
        f"{bits} bits": settings_of(
            {**INT4, "num_bits": bits, "symmetric": False}, "pack-quantized"
        )
        for bits in range(2, 9)
    },
    "symmetric": settings_of(INT4, "pack-quantized"),
    "channel": settings_of({"num_bits": 4, "strategy": "channel"}, "pack-quantized"),
    "W8A8": settings_of({"num_bits": 8, "strategy": "channel"}, "int-quantized"),
    "W8A8, asymmetric": settings_of(
        {"num_bits": 8, "strategy": "tensor", "symmetric": False}, "int-quantized"
    ),
    "FP8": float_settings(8, "channel", "float-quantized"),
    "FP8, blocks": float_settings(8, "block", "naive-quantized", block_structure=[16, 64]),
    "NVFP4": float_settings(4, "tensor_group", "nvfp4-pack-quantized", group_size=16),
    "MXFP4": float_settings(4, "group", "mxfp4-pack-quantized", group_size=32),
}


@pytest.mark.parametrize("name", PACKAGE)
def test_values_are_those_of_the_package(name: str, tmp_path: Path) -> None:
    """The package writes a matrix, and reads it as we do."""
    package = pytest.importorskip("compressed_tensors.quantization")
    compressors = pytest.importorskip("compressed_tensors.compressors")
    import torch

    settings = PACKAGE[name]
    stated = settings["config_groups"]["group_0"]["weights"]
    scheme = package.QuantizationScheme(
        targets=["Linear"], weights=package.QuantizationArgs(**stated)
    )
    shape, generator = (40, 256), torch.Generator().manual_seed(0)
    size, strategy = stated.get("group_size"), stated["strategy"]
    sizes = {"tensor": (1,), "channel": (40, 1), "block": (3, 4)}
    scales = sizes.get(strategy, (40, shape[1] // (size or 1)))
    scale = torch.rand(scales, generator=generator) * 0.01 + 0.01
    state = {"weight": torch.randn(shape, generator=generator)}
    if strategy == "tensor_group":
        scale = (scale * 8192).to(torch.float8_e4m3fn).float()
        state["weight_global_scale"] = torch.tensor([8192.0])
    elif name == "MXFP4":
        scale = torch.exp2(torch.round(torch.log2(scale)))
    if not stated.get("symmetric", True):
        half = 1 << (stated.get("num_bits", 8) - 1)
        state["weight_zero_point"] = torch.randint(
            -half, half, scales, dtype=torch.int8, generator=generator
        )
    compressor = compressors.BaseCompressor.get_value_from_registry(settings["format"])
    stored = compressor.compress({**state, "weight_scale": scale}, scheme)
    expected = compressor.decompress(dict(stored), scheme)["weight"]
    arrays = {
        f"m.{each}": tensor.view(torch.uint8).numpy().view(ml_dtypes.float8_e4m3fn)
        if tensor.dtype == torch.float8_e4m3fn
        else tensor.numpy()
        for each, tensor in stored.items()
    }
    write_safetensors(tmp_path / "model.safetensors", arrays)
    rows = rows_of(tmp_path, read_compressed_tensors(Values(settings)))
    np.testing.assert_array_equal(rows.floats(), expected.float().numpy())
