"""Experts in one tensor for all of them: the parts of each format are stacked as weights are."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.loader import resolve
from octavo.loader.errors import CheckpointError, TensorMismatchError, UnsupportedFormatError
from octavo.models.config_reader import Config
from octavo.models.load import OpenedModel, open_model
from octavo.models.registry import family_of
from tests.loader.make_files import write_safetensors
from tests.models.made_up import EXPERTS, SIZES, MadeUpWeights
from tests.models.ranks import run_ranks
from tests.models.test_stored_formats import WIDE, redeclared
from tests.quant.made_up import FORMATS, Array, MadeFormat, fp8_blocks, torchao, torchao_int4

LAYERS, NUM_EXPERTS = SIZES["num_hidden_layers"], EXPERTS["num_experts"]
CONFIG: dict[str, Any] = {
    **SIZES,
    **WIDE,
    **EXPERTS,
    "head_dim": 64,
    "moe_intermediate_size": 64,
    "architectures": ["Qwen3MoeForCausalLM"],
}
Spell = Callable[[str, str], str]  # from a stack's name and a part's of a module to the file's name


def dotted(stack: str, part: str) -> str:
    return f"{stack}.{part}"


def joined(stack: str, part: str) -> str:
    """Return `X` for the weight and `X_scale` for the scale of a weight."""
    return stack + part.removeprefix("weight")


def named(stack: str, part: str) -> str:
    """Return `X` for the weight and `X_weight_scale` for its scale."""
    return stack if part == "weight" else f"{stack}_{part}"


def hidden(stack: str, part: str) -> str:
    """Return `…experts._gate_up_proj_scale` for `_weight_scale`."""
    experts, _, name = stack.rpartition(".")
    return f"{experts}.{part.replace('weight', name)}"


def without_shape(spell: Spell) -> Spell:
    """Leave the part with the shape out, as stacks are published."""
    return lambda stack, part: "" if part == "weight_shape" else spell(stack, part)


CASES: dict[str, tuple[MadeFormat, Spell]] = {
    "FP8 blocks": (fp8_blocks(32, 32), joined),
    "FP8, a scale for a row": (FORMATS["FP8, a scale for a row"], named),
    "FP8, a scale for a matrix": (FORMATS["FP8, a scale for a matrix"], joined),
    "packed, 4 bits, symmetric": (FORMATS["packed, 4 bits, symmetric"], without_shape(dotted)),
    "packed, 4 bits, zero points": (FORMATS["packed, 4 bits, zero points"], joined),
    "MXFP4, packed": (FORMATS["MXFP4, packed"], dotted),
    "NVFP4": (FORMATS["NVFP4"], dotted),
    "NVFP4 of ModelOpt": (FORMATS["NVFP4 of ModelOpt"], named),
    "GPTQ": (FORMATS["GPTQ, 4 bits"], dotted),
    "AWQ": (FORMATS["AWQ"], dotted),
    "torchao, integers": (torchao(32, zeros=np.int8), hidden),
    "torchao, floats": (torchao(is_float=True), hidden),
    "torchao, 4 bits": (torchao_int4(32), hidden),
}


def stacks(generator: np.random.Generator, made: MadeFormat, spell: Spell) -> tuple[Any, Any]:
    """Return the experts of all layers: as a format stores them, and their values."""
    hidden_size, ffn = CONFIG["hidden_size"], CONFIG["moe_intermediate_size"]
    stored: dict[str, Array] = {}
    plain: dict[str, Array] = {}
    for layer in range(LAYERS):
        for name, shape in (
            ("gate_up_proj", (2 * ffn, hidden_size)),
            ("down_proj", (hidden_size, ffn)),
        ):
            stack = f"model.layers.{layer}.mlp.experts.{name}"
            experts = [made.quantise(shape, generator) for _ in range(NUM_EXPERTS)]
            plain[stack] = np.stack([values for _, values in experts])
            for part in experts[0][0]:
                place = spell(stack, part)
                if place:
                    stored[place] = np.stack([tensors[part] for tensors, _ in experts])
    return stored, plain


def described(made: MadeFormat, plain: dict[str, Array]) -> dict[str, str]:
    """Return the metadata of a file with these stacks, as torchao states the sizes of each."""
    metadata = {}
    for name, values in plain.items() if made.describe else ():
        assert made.describe
        text = json.loads(made.describe(values.shape[1:]))
        sizes = text["_data"]
        text["_data"] = {
            "shape": list(values.shape),
            "block_size": [1, *sizes["block_size"]],
        }
        metadata[name] = json.dumps(text)
    return metadata


def write(
    directory: Path,
    settings: dict[str, Any] | None,
    experts: dict[str, Array],
    metadata: dict[str, str] | None = None,
) -> Path:
    """Write a model with these experts; its other matrices are plain."""
    family = family_of("Qwen3MoeForCausalLM")
    tensors = MadeUpWeights(family(family.read(Config(CONFIG)))).tensors
    arrays = {name: array for name, array in tensors.items() if ".experts." not in name}
    directory.mkdir()
    write_safetensors(directory / "model.safetensors", {**arrays, **experts}, metadata)
    config = CONFIG if settings is None else {**CONFIG, "quantization_config": settings}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def logits(opened: OpenedModel, ranks: int = 1) -> np.ndarray:
    return run_ranks(partial(redeclared, opened), opened.weights, ranks)[0].logits


@pytest.mark.parametrize("name", CASES)
def test_stacked_experts_have_the_logits_of_their_values(name: str, tmp_path: Path) -> None:
    made, spell = CASES[name]
    stored, plain = stacks(np.random.default_rng(0), made, spell)
    path = write(tmp_path / "stored", made.settings, stored, described(made, plain))
    opened = open_model(resolve(str(path)))
    expected = open_model(resolve(str(write(tmp_path / "plain", None, plain))))
    types = set(opened.weights.stored_types().values())
    assert types - {"F32", "BF16"}
    for stack, values in plain.items():
        rows = opened.weights.rows(stack)
        assert opened.weights.row_type(stack) == rows.type in types
        np.testing.assert_array_equal(rows.floats().reshape(values.shape), values)
    np.testing.assert_array_equal(logits(opened), logits(expected))


def opened_with(
    tmp_path: Path, name: str, change: Callable[[dict[str, Array]], dict[str, Array]]
) -> OpenedModel:
    """Open a model whose experts' tensors were changed."""
    made, spell = CASES[name]
    stored, _ = stacks(np.random.default_rng(0), made, spell)
    return open_model(resolve(str(write(tmp_path / "m", made.settings, change(stored)))))


@pytest.mark.parametrize(
    ("part", "damage", "error"),
    [
        ("gate_up_proj_scale_inv", lambda a: None, TensorMismatchError),
        ("gate_up_proj_scale_inv", lambda a: a[:2], TensorMismatchError),
        ("gate_up_proj_scale_inv", lambda a: a[:, :1], TensorMismatchError),
        ("gate_up_proj", lambda a: a[:2], TensorMismatchError),
        ("gate_up_proj", lambda a: a[:, :64], TensorMismatchError),
        ("gate_up_proj", lambda a: a[0], CheckpointError),
        ("gate_up_proj_more", lambda a: np.ones(3, np.float32), TensorMismatchError),
    ],
)
def test_a_damaged_stack_is_refused(
    part: str,
    damage: Callable[[Any], Array | None],
    error: type[CheckpointError],
    tmp_path: Path,
) -> None:
    name = f"model.layers.1.mlp.experts.{part}"

    def change(stored: dict[str, Array]) -> dict[str, Array]:
        damaged = damage(stored.get(name))
        kept = {key: array for key, array in stored.items() if key != name}
        return kept if damaged is None else {**kept, name: damaged}

    with pytest.raises(error):
        opened_with(tmp_path, "FP8 blocks", change)


def test_static_scales_of_activations_are_left_unread(tmp_path: Path) -> None:
    ones = np.ones(NUM_EXPERTS, np.float32)
    names = [
        f"model.layers.0.mlp.experts.{matrix}_{kind}"
        for matrix in ("gate_up_proj", "down_proj")
        for kind in ("input_scale", "activation_scale")
    ]
    opened = opened_with(tmp_path, "FP8 blocks", lambda stored: stored | dict.fromkeys(names, ones))
    assert opened.spec.experts


def test_act_order_in_a_stack_is_refused_by_name(tmp_path: Path) -> None:
    """One order of inputs belongs to all rows of a matrix, and each expert would have its own."""
    made = FORMATS["GPTQ, act-order"]
    stored, _ = stacks(np.random.default_rng(0), made, dotted)
    opened = open_model(resolve(str(write(tmp_path / "m", made.settings, stored))))
    with pytest.raises(UnsupportedFormatError, match="act-order") as raised:
        opened.weights.rows("model.layers.0.mlp.experts.down_proj")
    assert raised.value.tensor == "model.layers.0.mlp.experts.down_proj"
