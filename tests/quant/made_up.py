"""Checkpoints of quantised matrices, written and dequantised by the formats' descriptions alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from octavo.loader import resolve
from octavo.models.config_reader import Config
from octavo.models.load import OpenedModel, open_model
from octavo.models.registry import family_of
from octavo.quant.methods.bitsandbytes import TABLES
from tests.loader.make_files import write_safetensors
from tests.models.made_up import SIZES, MadeUpWeights
from tests.quant import made_compressed, made_torchao

Array = NDArray[Any]
Floats = NDArray[np.float32]
# From the shape of a matrix and a generator: tensors by the ends of their names, and the values.
Quantise = Callable[[tuple[int, int], np.random.Generator], tuple[dict[str, Array], Floats]]


@dataclass(frozen=True)
class MadeFormat:
    """A way to store matrices, and the quantization_config that names it."""

    settings: dict[str, Any]
    quantise: Quantise
    # Those of modules that have a part of a name, if they are stored in another way.
    others: Mapping[str, Quantise] = field(default_factory=dict)
    describe: Callable[[tuple[int, int]], str] | None = None  # the file's metadata of a weight

    def metadata(self, shapes: Mapping[str, tuple[int, int]]) -> dict[str, str]:
        """Return the metadata of a file with weights of these names and shapes."""
        describe = self.describe
        return {} if describe is None else {name: describe(shapes[name]) for name in shapes}

    def quantise_of(self, module: str) -> Quantise:
        """Return what stores a module."""
        return next((q for part, q in self.others.items() if part in module), self.quantise)


def words(codes: Array, bits: int) -> Array:
    """Join the bits of unsigned codes along the first axis into words of 32, the first lowest."""
    single = codes[:, None, :].astype(np.uint32) >> np.arange(bits, dtype=np.uint32)[:, None] & 1
    single = single.reshape(-1, codes.shape[1])
    padded = np.pad(single, ((0, -len(single) % 32), (0, 0))).reshape(-1, 32, codes.shape[1])
    joined = (padded << np.arange(32, dtype=np.uint32)[:, None]).sum(axis=1, dtype=np.uint32)
    return joined.view(np.int32)


def gptq(
    bits: int,
    group: int,
    *,
    act_order: bool = False,
    sym: bool = False,
    version: int = 1,
    stated: int | None = None,
    has_index: bool = True,
) -> MadeFormat:
    """Make GPTQ's format; `stated` is the version that the configuration claims, if another."""

    def quantise(
        shape: tuple[int, int], generator: np.random.Generator
    ) -> tuple[dict[str, Array], Floats]:
        outputs, inputs = shape
        size = inputs if group == -1 else group
        groups = -(-inputs // size)
        owners = np.arange(inputs) // size
        if act_order:
            owners = generator.permutation(owners)
        top = 1 << bits
        codes = generator.integers(0, top, (inputs, outputs))
        zeros = generator.integers(1, top, (groups, outputs))
        if sym:
            zeros[:] = top // 2
        scales = generator.uniform(0.5, 1.5, (groups, outputs)) / (top * inputs**0.5)
        scales = scales.astype(np.float16)
        stored_zeros = zeros - 1 if version == 1 else zeros
        tensors = {
            "qweight": words(codes, bits),
            "qzeros": np.ascontiguousarray(words(stored_zeros.T, bits).T),
            "scales": scales,
        }
        if has_index:
            tensors["g_idx"] = owners.astype(np.int32)
        values = (codes - zeros[owners]).astype(np.float32) * scales[owners].astype(np.float32)
        return tensors, values.T

    names = {1: "gptq", 2: "gptq_v2"}
    settings = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group,
        "desc_act": act_order,
        "sym": sym,
        "checkpoint_format": names[stated or version],
    }
    return MadeFormat(settings, quantise)


AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def awq(
    group: int, *, layout: str = "gemm", zero_point: bool = True, is_old: bool = False
) -> MadeFormat:
    """Make AWQ's format; old files call their settings otherwise."""

    def in_order(codes: Array) -> Array:
        """Put codes of neighbouring columns in the order of the layout gemm."""
        return codes.reshape(-1, codes.shape[1] // 8, 8)[..., AWQ_ORDER].reshape(codes.shape)

    def joined(codes: Array) -> Array:
        return np.ascontiguousarray(words(codes.T, 4).T)

    def quantise(
        shape: tuple[int, int], generator: np.random.Generator
    ) -> tuple[dict[str, Array], Floats]:
        outputs, inputs = shape
        size = inputs if group == -1 else group
        owners = np.arange(inputs) // size
        codes = generator.integers(0, 16, (inputs, outputs))
        zeros = generator.integers(0, 16, (-(-inputs // size), outputs))
        if not zero_point:
            zeros[:] = 8
        scales = generator.uniform(0.5, 1.5, zeros.shape) / (16 * inputs**0.5)
        scales = scales.astype(np.float16)
        values = (codes - zeros[owners]).astype(np.float32) * scales[owners].astype(np.float32)
        if layout == "gemv":
            eights = {32: 4, 64: 2}.get(size, 1) * 8
            missing = ((0, 0), (0, -len(zeros) % eights))
            tensors = {
                "qweight": joined(codes.T),
                "qzeros": joined(np.pad(zeros.T, missing)),
                "scales": np.pad(scales.T, missing),
            }
        else:
            tensors = {
                "qweight": joined(in_order(codes)),
                "qzeros": joined(in_order(zeros)),
                "scales": scales,
            }
        return tensors, values.T

    bits, size = ("w_bit", "q_group_size") if is_old else ("bits", "group_size")
    settings = {"quant_method": "awq", bits: 4, size: group, "zero_point": zero_point}
    return MadeFormat({**settings, "version": layout.upper()}, quantise)


def auto_round(made: MadeFormat, packing: str) -> MadeFormat:
    """Make AutoRound's spelling of GPTQ's or AWQ's format."""
    settings = made.settings
    return MadeFormat(
        {
            "quant_method": "auto-round",
            "packing_format": packing,
            "bits": settings["bits"],
            "group_size": settings["group_size"],
            "sym": settings.get("sym", not settings.get("zero_point", True)),
            "block_name_to_quantize": "model.layers",
        },
        made.quantise,
    )


def fp8(settings: dict[str, Any], scale: Callable[[int, int], tuple[int, ...]]) -> MadeFormat:
    """Make a format of eight-bit floats; `scale` is the shape of a matrix's scales."""
    size: list[int] | None = settings.get("weight_block_size")
    ending = "weight_scale_inv" if size else "weight_scale"

    def quantise(
        shape: tuple[int, int], generator: np.random.Generator
    ) -> tuple[dict[str, Array], Floats]:
        codes = generator.standard_normal(shape, np.float32).astype(ml_dtypes.float8_e4m3fn)
        scales = generator.uniform(0.5, 1.5, scale(*shape)).astype(np.float32) * shape[1] ** -0.5
        scales = scales.astype(np.float32)
        if size:  # a scale for each block
            tall = np.repeat(scales, size[0], axis=0)[: shape[0]]
            whole = np.repeat(tall, size[1], axis=1)[:, : shape[1]]
        else:
            whole = scales.reshape(-1, 1)  # for each row, or one for all
        return {"weight": codes, ending: scales}, codes.astype(np.float32) * whole

    return MadeFormat(settings, quantise)


def fp8_blocks(outputs: int, inputs: int) -> MadeFormat:
    """Make the format of DeepSeek and Qwen, with blocks of a size."""
    return fp8(
        {"quant_method": "fp8", "weight_block_size": [outputs, inputs]},
        lambda rows, columns: (-(-rows // outputs), -(-columns // inputs)),
    )


def bitsandbytes(
    kind: str = "nf4",
    *,
    block: int = 64,
    nested: int | None = None,
    storage: str = "uint8",
    table: Floats | None = None,
) -> MadeFormat:
    """Make codes of four bits; `nested` is how many scales share one, if they are codes too.

    The values of the codes are random ones without a table.
    """

    def quantise(
        shape: tuple[int, int], generator: np.random.Generator
    ) -> tuple[dict[str, Array], Floats]:
        count = shape[0] * shape[1]
        codes = generator.integers(0, 16, count, np.uint8)
        random = generator.uniform(-1, 1, 16).astype(np.float32)
        values_of = random if table is None else table
        blocks = -(-count // block)
        state: dict[str, Any] = {"quant_type": kind, "blocksize": block, "dtype": "bfloat16"}
        state["shape"] = shape
        tensors: dict[str, Array] = {"quant_map": values_of}
        if nested is None:
            scales = generator.uniform(0.5, 1.5, blocks).astype(np.float32)
            scales *= np.float32(shape[1] ** -0.5)
            tensors["absmax"] = scales
        else:
            outer = generator.uniform(0.5, 1.5, -(-blocks // nested)).astype(np.float32)
            values = generator.uniform(0, shape[1] ** -0.5, 256).astype(np.float32)
            of_scales = generator.integers(0, 256, blocks, np.uint8)
            tensors |= {"absmax": of_scales, "nested_absmax": outer, "nested_quant_map": values}
            state |= {"nested_blocksize": nested, "nested_dtype": "float32", "nested_offset": 0.02}
            scales = values[of_scales] * outer[np.arange(blocks) // nested] + np.float32(0.02)
        text = json.dumps(state).encode()
        tensors[f"quant_state.bitsandbytes__{kind}"] = np.frombuffer(text, np.uint8)
        pairs = (codes[0::2] << 4 | codes[1::2]).view(storage)
        named = {f"weight.{ending}": tensor for ending, tensor in tensors.items()}
        values = (values_of[codes] * scales[np.arange(count) // block]).reshape(shape)
        return {"weight": pairs[:, None], **named}, values

    settings = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": kind}
    return MadeFormat(settings, quantise)


def bitsandbytes_int8(*, order: int | None = 0) -> MadeFormat:
    """Make signed bytes with a scale for each row; `order` is the one that the file states."""

    def quantise(
        shape: tuple[int, int], generator: np.random.Generator
    ) -> tuple[dict[str, Array], Floats]:
        codes = generator.integers(-127, 128, shape, np.int8)
        largest = generator.uniform(0.5, 1.5, shape[0]).astype(np.float32)
        largest *= np.float32(2 * shape[1] ** -0.5)
        tensors: dict[str, Array] = {"weight": codes, "SCB": largest}
        if order is not None:
            tensors["weight_format"] = np.array(order, np.uint8)
        return tensors, codes * (largest / np.float32(127))[:, None]

    return MadeFormat({"quant_method": "bitsandbytes", "load_in_8bit": True}, quantise)


def hqq(bits: int, group: int | None, *, axis: int = 1, storage: str | None = None) -> MadeFormat:
    """Make codes with zero points in floats; `storage` is a type of floats for their bytes."""
    per_word = {8: 1, 4: 2, 3: 10, 2: 4, 1: 8}[bits]
    word = np.uint32 if bits == 3 else np.uint8

    def quantise(
        shape: tuple[int, int], generator: np.random.Generator
    ) -> tuple[dict[str, Array], Floats]:
        size = group or shape[1]
        groups = shape[0] * shape[1] // size
        codes = generator.integers(0, 1 << bits, (groups, size), np.uint8)
        zeros = generator.uniform(0, 1 << bits, (groups, 1)).astype(np.float16)
        scales = generator.uniform(0.5, 1.5, (groups, 1)) / ((1 << bits) * shape[1] ** 0.5)
        scales = scales.astype(np.float16)
        step = -(-groups // per_word)
        padded = np.pad(codes, ((0, step * per_word - groups), (0, 0))).astype(word)
        joined = np.zeros((step, size), word)
        for part in padded.reshape(per_word, step, size):
            joined = np.bitwise_or(joined << bits, part)
        stored = joined.view(np.int32) if bits == 3 else joined.view(storage or np.uint8)
        tensors = {
            "W_q": stored,
            "scale": scales,
            "zero": zeros,
            "shape": np.array(shape, np.int64),
            "nbits": np.array([bits], np.int32),
            "axis": np.array([axis], np.int32),
            "packing": np.frombuffer(b"4bit_u8", np.uint8),
            "view_as_float": np.array([storage is not None], np.uint8),
        }
        if group is not None:
            tensors["group_size"] = np.array([group], np.int32)
        values = (codes - zeros.astype(np.float32)) * scales.astype(np.float32)
        return tensors, values.reshape(shape)

    params = {"nbits": bits, "group_size": group, "axis": axis}
    quant_config = {"weight_quant_params": params, "scale_quant_params": None}
    return MadeFormat({"quant_method": "hqq", "quant_config": quant_config}, quantise)


def torchao(
    group: int | None = None, *, zeros: type | None = None, is_float: bool = False, tall: int = 1
) -> MadeFormat:
    """Make signed bytes or floats; scales are for `tall` rows (0: all) of a group (None: all)."""

    def quantise(
        shape: tuple[int, int], generator: np.random.Generator
    ) -> tuple[dict[str, Array], Floats]:
        block = (tall or shape[0], group or shape[1])
        blocks = (shape[0] // block[0], shape[1] // block[1])
        scales = generator.uniform(0.5, 1.5, blocks).astype(np.float32)
        scales *= np.float32(shape[1] ** -0.5 / (1 if is_float else 100))
        codes: Array = generator.integers(-128, 128, shape, np.int8)
        if is_float:
            codes = generator.standard_normal(shape, np.float32).astype(ml_dtypes.float8_e4m3fn)
        tensors: dict[str, Array] = {"_weight_qdata": codes, "_weight_scale": scales}
        offsets = np.zeros(blocks, np.int8)
        if zeros is not None:
            offsets = generator.integers(-128, 128, blocks, np.int8)
            tensors["_weight_zero_point"] = offsets.astype(zeros)
        values = codes.astype(np.float32) - np.kron(offsets, np.ones(block, np.float32))
        return tensors, values * np.kron(scales, np.ones(block, np.float32))

    return MadeFormat({"quant_method": "torchao", "quant_type": {"default": {}}}, quantise)


def torchao_int4(group: int, *, is_tiled: bool = False) -> MadeFormat:
    """Make codes of four bits, plain or in tiles."""
    name = "Int4TilePackedTo4dTensor" if is_tiled else "Int4Tensor"
    return replace(
        torchao(),
        quantise=made_torchao.int4(group, is_tiled=is_tiled),
        describe=made_torchao.description(name, group),
    )


def squeezellm(bits: int, *, outliers: int = 0, full: int = 0) -> MadeFormat:
    """Make codes into a table for each row; of a row, some values more, and of all, some rows."""

    def quantise(
        shape: tuple[int, int], generator: np.random.Generator
    ) -> tuple[dict[str, Array], Floats]:
        outputs, inputs = shape
        codes = generator.integers(0, 1 << bits, (inputs, outputs))
        tables = generator.standard_normal((outputs, 1 << bits), np.float32)
        tables *= np.float32(inputs**-0.5)
        values = tables[np.arange(outputs)[:, None], codes.T]
        tensors: dict[str, Array] = {"qweight": words(codes, bits), "lookup_table": tables}
        if outliers:
            columns = [generator.permutation(inputs)[: row % outliers] for row in range(outputs)]
            ends = np.cumsum([0, *map(len, columns)])
            vals = generator.standard_normal(ends[-1], np.float32)
            for row, chosen in enumerate(columns):
                values[row, chosen] += vals[ends[row] : ends[row + 1]]
            tensors |= {"rows": ends.astype(np.int32), "vals": vals}
            tensors["cols"] = np.concatenate(columns).astype(np.int32)
        if full:
            owners = generator.permutation(outputs)[:full].astype(np.int32)
            whole = generator.standard_normal((inputs, full), np.float32)
            values[owners] += whole.T
            tensors |= {"full_rows": whole, "full_row_indices": owners}
        return tensors, values

    return MadeFormat({"quant_method": "squeezellm", "wbits": bits}, quantise)


def compressed(strategy: str) -> dict[str, Any]:
    """Return the settings of compressed-tensors' eight-bit floats."""
    return made_compressed.float_settings(8, strategy, "float-quantized")


# Those of the tests that run whole models; their groups fit matrices of 64 inputs and more.
FORMATS: dict[str, MadeFormat] = {
    "GPTQ, 4 bits": gptq(4, 32),
    "GPTQ, 8 bits, version 2": gptq(8, 64, version=2),
    "GPTQ, 3 bits, act-order": gptq(3, 32, act_order=True),
    "GPTQ, act-order": gptq(4, 32, act_order=True),
    "GPTQ, symmetric": gptq(4, 64, sym=True),
    "GPTQ, 8 bits, symmetric": gptq(8, 64, sym=True),
    "GPTQ, a scale for a row": gptq(4, -1, sym=True, has_index=False),
    "AWQ": awq(64),
    "AWQ, gemv": awq(32, layout="gemv"),
    "AutoRound, AWQ, symmetric": auto_round(awq(32, zero_point=False), "auto_round:auto_awq"),
    "FP8 blocks": fp8_blocks(32, 32),
    "FP8, a scale for a matrix": fp8({"quant_method": "fp8"}, lambda rows, columns: ()),
    "FP8, a scale for a row": fp8(compressed("channel"), lambda rows, columns: (rows, 1)),
    "bitsandbytes, NF4": bitsandbytes("nf4", nested=256, table=TABLES["nf4"]),
    "bitsandbytes, FP4": bitsandbytes("fp4", block=128, table=TABLES["fp4"]),
    "bitsandbytes, values of its own": bitsandbytes("nf4"),
    "bitsandbytes, 8 bits": bitsandbytes_int8(),
    "HQQ, 4 bits": hqq(4, 64),
    "torchao, integers": torchao(32, zeros=np.int8),
    "torchao, 4 bits": torchao_int4(64),
    "torchao, 4 bits in tiles": torchao_int4(64, is_tiled=True),
    "SqueezeLLM": squeezellm(4, outliers=5, full=2),
    "FP8, fbgemm": fp8({"quant_method": "fbgemm_fp8"}, lambda rows, columns: (rows, 1)),
    **{name: MadeFormat(*made) for name, made in made_compressed.WHOLE.items()},
}


@dataclass(frozen=True)
class Pair:
    """A model twice: stored in a format, and with the same values in float32."""

    stored: OpenedModel
    plain: OpenedModel


def write_pair(
    directory: Path, made: MadeFormat, architecture: str = "LlamaForCausalLM", **sizes: Any
) -> Pair:
    """Write a made-up model, the projections of its blocks in a format, and open both forms."""
    config = {**SIZES, **sizes, "architectures": [architecture]}
    family = family_of(architecture)
    model = family(family.read(Config(config)))
    plain: dict[str, Array] = dict(MadeUpWeights(model).tensors)
    stored = dict(plain)
    generator = np.random.default_rng(2)
    shapes: dict[str, tuple[int, int]] = {}
    for name, array in plain.items():
        module = name.removesuffix(".weight")
        if module == name or "_proj" not in name:
            continue
        shapes[name] = array.shape
        tensors, plain[name] = made.quantise_of(module)(array.shape, generator)
        del stored[name]
        stored |= {f"{module}.{ending}": tensor for ending, tensor in tensors.items()}
    forms = {}
    for form, tensors, settings in (("stored", stored, made.settings), ("plain", plain, None)):
        (directory / form).mkdir()
        arrays = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
        metadata = made.metadata(shapes) if settings else None
        write_safetensors(directory / form / "model.safetensors", arrays, metadata)
        values = config if settings is None else {**config, "quantization_config": settings}
        (directory / form / "config.json").write_text(json.dumps(values))
        forms[form] = open_model(resolve(str(directory / form)))
    return Pair(**forms)
