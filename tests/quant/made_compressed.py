"""Matrices as compressed-tensors and ModelOpt store them, by the formats' descriptions alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = NDArray[Any]
Quantise = Callable[
    [tuple[int, int], np.random.Generator], tuple[dict[str, Array], NDArray[np.float32]]
]
Settings = dict[str, Any]
# Settings, how matrices are stored, and how those of modules with a part of a name are.
Made = tuple[Settings, Quantise, Mapping[str, Quantise]]
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]


def settings_of(
    weights: Settings, form: str, activations: Settings | None = None, **more: Any
) -> Settings:
    """Return a quantization_config with one group."""
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        **more,
    }


def float_settings(bits: int, strategy: str, form: str, **more: Any) -> Settings:
    """Return the settings of floats."""
    weights = {"num_bits": bits, "type": "float", "strategy": strategy, "symmetric": True, **more}
    return settings_of(weights, form)


def packed_words(codes: Array, bits: int) -> Array:
    """Join the bits of unsigned codes along each row into words of 32, the first lowest."""
    single = codes[..., None] >> np.arange(bits) & 1
    single = single.reshape(len(codes), -1).astype(np.uint8)
    missing = -single.shape[1] % 32
    joined = np.packbits(np.pad(single, ((0, 0), (0, missing))), axis=1, bitorder="little")
    return joined.view(np.int32)


def integers(
    bits: int,
    strategy: str,
    group: int | None = None,
    *,
    is_packed: bool = True,
    symmetric: bool = True,
    act_order: bool = False,
    scale_type: DTypeLike = np.float16,
    packs_zeros: bool = True,
    has_static_inputs: bool = False,
) -> Made:
    """Make a format of integers, packed or as bytes."""
    half = 1 << (bits - 1)

    def quantise(
        shape: tuple[int, int], generator: np.random.Generator
    ) -> tuple[dict[str, Array], NDArray[np.float32]]:
        outputs, inputs = shape
        size = group or inputs
        groups = -(-inputs // size)
        owners = np.arange(inputs) // size
        if act_order:
            owners = generator.permutation(owners)
        is_single = strategy == "tensor"
        rows = 1 if is_single else outputs
        codes = generator.integers(-half, half, shape)
        zeros = generator.integers(-half, half, (rows, groups))
        if symmetric:
            zeros[:] = 0
        scales = generator.uniform(0.5, 1.5, (rows, groups)) / (2 * half * inputs**0.5)
        scales = scales.astype(scale_type)
        tensors: dict[str, Array] = {"weight_scale": scales[0] if is_single else scales}
        if is_packed:
            tensors["weight_packed"] = packed_words(codes + half, bits)
            tensors["weight_shape"] = np.array(shape)
        else:
            tensors["weight"] = codes.astype(np.int8)
        if not symmetric and is_packed and packs_zeros and not is_single:
            along_outputs = packed_words((zeros + half).T, bits)
            tensors["weight_zero_point"] = np.ascontiguousarray(along_outputs.T)
        elif not symmetric:
            stored = zeros.astype(np.int8)
            tensors["weight_zero_point"] = stored[0] if is_single else stored
        if act_order:
            tensors["weight_g_idx"] = owners.astype(np.int32)
        if has_static_inputs:
            tensors["input_scale"] = np.ones(1, np.float32)
            tensors["input_zero_point"] = np.zeros(1, np.int8)
        values = (codes - zeros[:, owners]).astype(np.float32)
        return tensors, values * scales[:, owners].astype(np.float32)

    weights = {
        "num_bits": bits,
        "type": "int",
        "strategy": strategy,
        "group_size": group,
        "symmetric": symmetric,
        "actorder": "group" if act_order else None,
    }
    inputs = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}
    if has_static_inputs:
        inputs |= {"strategy": "tensor", "dynamic": False}
    if is_packed:
        return settings_of(weights, "pack-quantized"), quantise, {}
    return settings_of(weights, "int-quantized", inputs), quantise, {}


def _pairs(codes: Array) -> Array:
    """Join codes of four bits in bytes, the first in the low half."""
    joined: Array = (codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8)
    return joined


def nvfp4(*, is_modelopt: bool = False, settings: Settings | None = None) -> Made:
    """Make NVFP4 under the names of compressed-tensors, or those of ModelOpt."""

    def quantise(
        shape: tuple[int, int], generator: np.random.Generator
    ) -> tuple[dict[str, Array], NDArray[np.float32]]:
        outputs, inputs = shape
        codes = generator.integers(0, 16, shape)
        owners = np.arange(inputs) // 16
        scales = generator.uniform(16, 448, (outputs, owners[-1] + 1))
        scales = scales.astype(ml_dtypes.float8_e4m3fn)
        whole = np.float32(1 / (1000 * inputs**0.5))
        if is_modelopt:
            tensors = {"weight": _pairs(codes), "weight_scale_2": np.array(whole)}
            product = scales.astype(np.float32) * whole
        else:
            divisor = np.array([1 / whole], np.float32)
            tensors = {"weight_packed": _pairs(codes), "weight_global_scale": divisor}
            product = scales.astype(np.float32) / divisor
        tensors["weight_scale"] = scales
        return tensors, np.array(E2M1, np.float32)[codes] * product[:, owners]

    if settings is None:
        settings = {
            "quant_method": "modelopt",
            "quant_algo": "NVFP4",
            "exclude_modules": ["lm_head", "*router*"],
        }
        if not is_modelopt:
            settings = float_settings(4, "tensor_group", "nvfp4-pack-quantized", group_size=16)
    return settings, quantise, {}


def mxfp4() -> Made:
    """Make MXFP4 under the names of compressed-tensors."""

    def quantise(
        shape: tuple[int, int], generator: np.random.Generator
    ) -> tuple[dict[str, Array], NDArray[np.float32]]:
        codes = generator.integers(0, 16, shape)
        owners = np.arange(shape[1]) // 32
        exponents = generator.integers(118, 124, (shape[0], owners[-1] + 1)).astype(np.uint8)
        scales = np.exp2(exponents.astype(np.float32) - 127)
        values = np.array(E2M1, np.float32)[codes] * scales[:, owners]
        return {"weight_packed": _pairs(codes), "weight_scale": exponents}, values

    return float_settings(4, "group", "mxfp4-pack-quantized", group_size=32), quantise, {}


def fp8(strategy: str, block: tuple[int, int] | None = None) -> Made:
    """Make eight-bit floats; the size of blocks is a text in the settings."""

    def quantise(
        shape: tuple[int, int], generator: np.random.Generator
    ) -> tuple[dict[str, Array], NDArray[np.float32]]:
        tall, wide = block or ((1 if strategy == "channel" else shape[0]), shape[1])
        codes = generator.standard_normal(shape, np.float32).astype(ml_dtypes.float8_e4m3fn)
        sizes = -(-shape[0] // tall), -(-shape[1] // wide)
        scales = (generator.uniform(0.5, 1.5, sizes) / shape[1] ** 0.5).astype(np.float32)
        whole = np.repeat(np.repeat(scales, tall, 0)[: shape[0]], wide, 1)[:, : shape[1]]
        return {"weight": codes, "weight_scale": scales}, codes.astype(np.float32) * whole

    more = {"block_structure": f"{block[0]}x{block[1]}"} if block else {}
    return float_settings(8, strategy, "float-quantized", **more), quantise, {}


def mixed() -> Made:
    """Make groups for names, for a regex and for all others, in different formats."""
    by_name: dict[str, tuple[list[str], Made]] = {
        "v_proj": (["re:.*self_attn.v_proj$"], fp8("block", (32, 32))),
        "layers.0.self_attn.o_proj": (["model.layers.0.self_attn.o_proj"], nvfp4()),
        "down_proj": (["re:.*mlp[.]down_proj"], integers(8, "channel", is_packed=False)),
    }
    others = {part: made[1] for part, (_, made) in by_name.items()}
    settings, quantise, _ = integers(4, "group", 32)
    groups = settings["config_groups"]
    groups["group_0"]["format"] = settings["format"]
    for number, (targets, (own, _, _)) in enumerate(by_name.values(), 1):
        found = own["config_groups"]["group_0"]
        groups[f"group_{number}"] = {**found, "targets": targets, "format": own["format"]}

    def plain(
        shape: tuple[int, int], generator: np.random.Generator
    ) -> tuple[dict[str, Array], NDArray[np.float32]]:
        values = generator.standard_normal(shape, np.float32) * np.float32(shape[1] ** -0.5)
        return {"weight": values}, values

    others["layers.1.mlp.gate_proj"] = plain
    settings |= {"format": "mixed-precision", "ignore": ["re:.*layers[.]1[.]mlp[.]gate_proj$"]}
    return settings, quantise, others


# Those of the tests that run whole models.
WHOLE: dict[str, Made] = {
    "packed, 4 bits, zero points": integers(
        4, "group", 32, symmetric=False, scale_type=ml_dtypes.bfloat16
    ),
    "packed, 4 bits, symmetric": integers(4, "group", 64),
    "packed, 3 bits, act-order": integers(3, "group", 32, symmetric=False, act_order=True),
    "packed, 8 bits, a scale for a row": integers(8, "channel"),
    "bytes, W8A8": integers(
        8, "channel", is_packed=False, scale_type=ml_dtypes.bfloat16, has_static_inputs=True
    ),
    "bytes, 4 bits, a scale for a matrix": integers(
        4, "tensor", is_packed=False, symmetric=False, scale_type=np.float32
    ),
    "NVFP4": nvfp4(),
    "NVFP4 of ModelOpt": nvfp4(is_modelopt=True),
    "MXFP4, packed": mxfp4(),
    "mixed groups": mixed(),
}
