"""Quantised models: the logits of their values, on one rank and on several that keep the format."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.backends.native.backend import NativeBackend, NativeOptions
from octavo.backends.native.footprint import NativeFootprint
from octavo.backends.stored_rows import RowLayout, StoredRows
from octavo.backends.torch.footprint import TorchFootprint
from octavo.layers import MatrixStack, Model
from octavo.loader.errors import TensorMismatchError
from octavo.loader.gguf import types
from octavo.loader.tensor_type import BF16
from octavo.models.assemble import stored_matrices
from octavo.models.build import bind
from octavo.models.config_reader import Config
from octavo.models.footprint import stored, tensor_sizes
from octavo.models.load import OpenedModel
from octavo.models.needs import find_needs
from octavo.models.registry import family_of
from octavo.options.cpu_types import CpuActivations
from octavo.quant.integers import integer_layout, kind_of
from octavo.quant.methods.fp8 import fp8_layout
from octavo.quant.plain import layout_of
from octavo.quant.shard import ShardError
from tests.models.made_up import EXPERTS, SIZES, MadeUpWeights
from tests.models.ranks import run_ranks
from tests.quant.made_up import FORMATS, MadeFormat, fp8_blocks, gptq, write_pair

# Four ranks have 64 inputs of every matrix each.
WIDE: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}
# Four ranks have whole blocks of 256 inputs.
WIDEST: dict[str, Any] = {**WIDE, "hidden_size": 1024, "intermediate_size": 1024}
LAYOUTS: dict[str, tuple[RowLayout, dict[str, Any]]] = {
    "BF16": (layout_of(BF16), WIDE),
    "Q8_0": (layout_of(types.Q8_0), WIDE),
    "Q4_0": (layout_of(types.Q4_0), WIDE),
    "MXFP4": (layout_of(types.MXFP4), WIDE),
    "Q4_K": (layout_of(types.Q4_K), WIDEST),
    "Q6_K": (layout_of(types.Q6_K), WIDEST),
    "I8ZeroBy64": (integer_layout(kind_of(8, 256, 64, is_symmetric=False)), WIDE),
    "I4By64": (integer_layout(kind_of(4, 256, 64, is_symmetric=True)), WIDE),
    "I4ZeroBy32": (integer_layout(kind_of(4, 256, 32, is_symmetric=False)), WIDE),
    "FP8": (fp8_layout(64, "FP8"), WIDE),
    "F8By32": (fp8_layout(32, "F8By32"), WIDE),
}


def redeclared(opened: OpenedModel) -> Model:
    """Declare the model of an opened checkpoint once more, for another rank."""
    return family_of(opened.architecture)(opened.spec)


class StoredWeights(MadeUpWeights):
    """Made-up weights whose matrices are random bytes of a format."""

    def __init__(self, model: Model, layout: RowLayout) -> None:
        super().__init__(model)
        self._layout = layout
        self._rows = {
            name: self._stored(values) for name, values in self.tensors.items() if values.ndim > 1
        }

    def _stored(self, values: np.ndarray) -> StoredRows:
        generator = np.random.default_rng(values.shape)
        groups = values.shape[-1] // self._layout.group
        # Such bytes are no infinity or NaN at any place of a number.
        rows = generator.integers(
            0, 56, (values.size // values.shape[-1], groups * self._layout.group_bytes), np.uint8
        )
        return StoredRows(self._layout, values.shape[-1], rows)

    def rows(self, name: str) -> StoredRows:
        return self._rows.get(name) or super().rows(name)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "MixtralForCausalLM"])
def test_ranks_keep_the_rows_of_every_format(name: str, architecture: str) -> None:
    """Each rank has a part of the bytes, and all ranks together have those of one rank."""
    layout, sizes = LAYOUTS[name]
    config = Config({**SIZES, **EXPERTS, **sizes, "architectures": [architecture]})
    family = family_of(architecture)
    spec = family.read(config)
    declare = partial(family, spec)
    weights = StoredWeights(declare(), layout)
    (whole,) = run_ranks(declare, weights, 1)
    assert np.isfinite(whole.logits).all()
    assert whole.stored.keys() == {name}
    # A router is needed whole by every rank.
    routers = [len(rows) for path, rows in weights._rows.items() if path.endswith(".gate.weight")]
    replicated = sum(routers) * (whole.stored[name] and _row_bytes(layout, spec.hidden))
    for ranks in (2, 4):
        outcomes = run_ranks(declare, weights, ranks)
        assert all(each.stored.keys() == {name} for each in outcomes)
        total = sum(each.stored[name] for each in outcomes)
        assert total == whole.stored[name] + (ranks - 1) * replicated
        _assert_near(outcomes[-1].logits, whole.logits)


def _row_bytes(layout: RowLayout, inputs: int) -> int:
    return inputs // layout.group * layout.group_bytes


def _assert_near(logits: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(logits, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("name", FORMATS)
def test_a_quantised_checkpoint_has_the_logits_of_its_values(name: str, tmp_path: Path) -> None:
    """Equal to the bit on one rank, and near on two and four, which keep the format."""
    pair = write_pair(tmp_path, FORMATS[name], **WIDE)
    (plain,) = run_ranks(partial(redeclared, pair.plain), pair.plain.weights, 1)
    declare = partial(redeclared, pair.stored)
    (whole,) = run_ranks(declare, pair.stored.weights, 1)
    np.testing.assert_array_equal(whole.logits, plain.logits)
    for ranks in (2, 4):
        outcomes = run_ranks(declare, pair.stored.weights, ranks)
        for kind, num_bytes in whole.stored.items():
            assert sum(each.stored[kind] for each in outcomes) == num_bytes
        _assert_near(outcomes[0].logits, whole.logits)


@pytest.mark.parametrize(
    "name",
    [
        "GPTQ, act-order",
        "GPTQ, symmetric",
        "AWQ",
        "AWQ, gemv",
        "FP8 blocks",
        "FP8, a scale for a row",
        "packed, 4 bits, symmetric",
        "packed, 3 bits, act-order",
        "NVFP4",
        "NVFP4 of ModelOpt",
        "MXFP4, packed",
        "bitsandbytes, NF4",
        "bitsandbytes, 8 bits",
        "HQQ, 4 bits",
        "torchao, 4 bits",
    ],
)
def test_quantised_experts_have_the_logits_of_their_values(name: str, tmp_path: Path) -> None:
    """Each expert is a module; stacks of them are in test_stacked_experts.py."""
    sizes = {**WIDE, **EXPERTS, "moe_intermediate_size": 64, "head_dim": 64}
    pair = write_pair(tmp_path, FORMATS[name], "Qwen3MoeForCausalLM", **sizes)
    logits, expected = (
        run_ranks(partial(redeclared, opened), opened.weights, 1)[0].logits
        for opened in (pair.stored, pair.plain)
    )
    np.testing.assert_array_equal(logits, expected)


def test_the_memory_bill_counts_matrices_by_their_values(tmp_path: Path) -> None:
    """Files are listed by format, and the reference holds every matrix dequantised."""
    for name, made in {
        "I4ZeroBy32": gptq(4, 32, act_order=True),
        "F8By32": fp8_blocks(32, 32),
    }.items():
        (tmp_path / name).mkdir()
        pair = write_pair(tmp_path / name, made, **WIDE)
        by_type = {each.type: each.num_bytes for each in stored(pair.stored)}
        assert set(by_type) == {name, "F32"}
        assert sum(by_type.values()) == pair.stored.checkpoint.num_bytes
        sizes = [list(tensor_sizes(opened)) for opened in (pair.stored, pair.plain)]
        assert {size.type for size in sizes[0] if size.is_matrix} == {name, "F32"}
        bills = [
            sum(TorchFootprint("float32").weight_bytes(size) for size in each) for each in sizes
        ]
        assert bills[0] == bills[1]


# The format in which the native engine keeps each, and the largest error of a value, relative to
# the largest value.
KEPT = {
    "GPTQ, 4 bits": ("U4Zero", 0.0),
    "GPTQ, 8 bits, version 2": ("U8ZeroBy64", 0.0),
    "GPTQ, act-order": ("U4Zero", 0.0),
    "GPTQ, symmetric": ("U4By64", 0.0),
    "GPTQ, 8 bits, symmetric": ("U8By64", 0.0),
    "AWQ": ("U4ZeroBy64", 0.0),
    "AutoRound, AWQ, symmetric": ("U4", 0.0),
    "bitsandbytes, NF4": ("NF4By64", 0.00066),
    "bitsandbytes, FP4": ("FP4By64", 1e-6),
    "bitsandbytes, values of its own": ("U8", 1 / 250),
    "bitsandbytes, 8 bits": ("U8", 1 / 250),
    "HQQ, 4 bits": ("U4ZeroBy64", 0.0),
    "torchao, 4 bits": ("U4MidBy64", 1e-6),
    "SqueezeLLM": ("U8", 1 / 250),
    "FP8 blocks": ("U8", 1 / 250),
    "FP8, fbgemm": ("U8", 1 / 250),
    "packed, 4 bits, symmetric": ("U4By64", 0.0),
    "packed, 8 bits, a scale for a row": ("U8", 0.0),
    "NVFP4": ("NVFP4By16", 1e-6),
    "NVFP4 of ModelOpt": ("NVFP4By16", 0.0),
    "MXFP4, packed": ("Mx4", 0.0),
}


@pytest.mark.parametrize("name", KEPT)
def test_the_native_engine_keeps_the_nearest_of_its_formats(name: str, tmp_path: Path) -> None:
    """GPTQ of 4 bits and symmetric GPTQ keep their numbers; the memory bill is then right."""
    check_kept(name, *KEPT[name], "auto", tmp_path)


# With bf16 activations, numbers that are codes for floats are kept, and integers become bf16.
WITH_BF16 = {
    "FP8 blocks": ("F8By32", 0.0),
    "FP8, fbgemm": ("F8By32", 0.0),
    "bitsandbytes, NF4": KEPT["bitsandbytes, NF4"],
    "NVFP4": KEPT["NVFP4"],
    "GPTQ, symmetric": ("BF16", 1 / 250),
    "GPTQ, act-order": ("BF16", 1 / 250),
    "packed, 8 bits, a scale for a row": ("BF16", 1 / 250),
    "HQQ, 4 bits": ("BF16", 1 / 250),
}


@pytest.mark.parametrize("name", WITH_BF16)
def test_bf16_activations_are_multiplied_with_the_numbers_of_the_file(
    name: str, tmp_path: Path
) -> None:
    check_kept(name, *WITH_BF16[name], "bf16", tmp_path)


@pytest.mark.parametrize("name", ["bitsandbytes, NF4", "NVFP4", "FP8 blocks"])
def test_int8_activations_are_multiplied_with_integers(name: str, tmp_path: Path) -> None:
    check_kept(name, "U8", 1 / 250, "int8", tmp_path)


def check_kept(
    name: str, format_: str, error: float, activations: CpuActivations, tmp_path: Path
) -> None:
    """Check the format and the numbers of a model's matrices, and the bill of its memory."""
    opened = write_pair(tmp_path, FORMATS[name], **WIDE).stored
    backend = NativeBackend(NativeOptions(activations=activations, num_threads=1))
    expected = {
        f"{path}.weight": np.concatenate([rows.floats() for rows in matrix])
        for need in find_needs(opened.model, opened.weights.shapes())
        for path, module in opened.model.walk()
        if need.module is module and path.endswith((".attn.out", ".mlp.down", ".attn.qkv"))
        for matrix in stored_matrices(need, opened.weights)
    }
    assert len(expected) == 6
    bind(opened.model, backend, opened.weights)
    backend.settle()
    modules = dict(opened.model.walk())
    for path, values in expected.items():
        matrix: Any = modules[path.removesuffix(".weight")]
        assert matrix.weight.formats == format_
        room = error * np.abs(values).max()
        assert sum(piece.native.outputs for piece in matrix.weight.pieces) == len(values)
        for piece in matrix.weight.pieces:  # several if the inputs of parts have other orders
            got = np.stack([piece.native.row(row) for row in range(piece.native.outputs)])
            own = values[piece.first : piece.first + len(got)]
            if piece.order is not None:
                own = own[:, piece.order.inputs]
            np.testing.assert_allclose(got, own, rtol=0, atol=room)
    footprint = NativeFootprint("auto", "bfloat16", activations)
    bill = sum(map(footprint.weight_bytes, tensor_sizes(opened)))
    assert bill == pytest.approx(backend.weight_bytes, rel=0.01)  # arenas round up


def in_plain_order() -> MadeFormat:
    """Return a format that may have an order of inputs, and has none."""
    made = gptq(4, 32)
    made.settings["desc_act"] = True
    return made


@pytest.mark.parametrize(
    ("made", "format_"),
    [
        (gptq(4, 32, act_order=True), "U8"),
        (gptq(8, 32, act_order=True, sym=True), "U8"),
        (in_plain_order(), "U4Zero"),
        (FORMATS["packed, 3 bits, act-order"], "U8"),
    ],
)
def test_the_memory_bill_counts_what_experts_in_act_order_become(
    made: MadeFormat, format_: str, tmp_path: Path
) -> None:
    sizes = {**WIDE, **EXPERTS, "moe_intermediate_size": 64, "head_dim": 64}
    opened = write_pair(tmp_path, made, "Qwen3MoeForCausalLM", **sizes).stored
    bill = sum(map(NativeFootprint("auto", "bfloat16").weight_bytes, tensor_sizes(opened)))
    backend = NativeBackend(NativeOptions(num_threads=1))
    bind(opened.model, backend, opened.weights)
    backend.settle()
    found = (module for _, module in opened.model.walk() if isinstance(module, MatrixStack))
    experts = [getattr(stack, name) for stack in found for name in stack.tensors()]
    assert {each.formats for stack in experts for each in stack.matrices} == {format_}
    assert bill == pytest.approx(backend.weight_bytes, rel=0.01)


def test_a_group_that_ranks_would_cut_is_refused_with_its_numbers(tmp_path: Path) -> None:
    pair = write_pair(tmp_path, gptq(4, 128), **WIDE)
    declare = partial(redeclared, pair.stored)
    message = (
        r"o_proj.weight: a rank's inputs 0\.\.64 of 256 cut a group of 128 \(I4ZeroBy128\); use"
    )
    with pytest.raises(ShardError, match=message):
        run_ranks(declare, pair.stored.weights, 4)


def test_experts_in_act_order_are_not_split(tmp_path: Path) -> None:
    made = FORMATS["GPTQ, act-order"]
    sizes = {**WIDE, **EXPERTS, "moe_intermediate_size": 64, "head_dim": 64}
    pair = write_pair(tmp_path, made, "Qwen3MoeForCausalLM", **sizes)
    with pytest.raises(ShardError, match="3 matrices keep their inputs in orders of their own"):
        run_ranks(partial(redeclared, pair.stored), pair.stored.weights, 2)


def test_a_quantised_tensor_of_another_shape_is_refused(tmp_path: Path) -> None:
    """The configuration states another size of groups than the file has."""
    made = gptq(4, 32)
    made.settings["group_size"] = 64
    with pytest.raises(TensorMismatchError, match=r"qzeros.*\[8, 32\].*\[4, 32\]"):
        write_pair(tmp_path, made, **WIDE)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_biases_of_zeros_are_no_extra_tensors(value: float, tmp_path: Path) -> None:
    """Some tools write them for modules without biases; any other bias is refused."""
    made = gptq(4, 32)

    def quantise(shape: Any, generator: Any) -> Any:
        tensors, values = made.quantise(shape, generator)
        return {**tensors, "bias": np.full(shape[0], value, np.float16)}, values

    with_biases = type(made)(made.settings, quantise)
    if value:
        with pytest.raises(TensorMismatchError, match="does not use"):
            write_pair(tmp_path, with_biases, **WIDE)
    else:
        assert write_pair(tmp_path, with_biases, **WIDE).stored.spec.hidden
