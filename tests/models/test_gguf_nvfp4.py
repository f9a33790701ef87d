"""GGUF's NVFP4: the scale of a whole matrix is a tensor of its own, one for each expert of a stack.

Each file is compared with one that has the same values in float32.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from octavo.loader.dequantize import dequantize
from octavo.loader.errors import TensorMismatchError
from octavo.loader.gguf.reader import open_gguf
from octavo.loader.gguf.types import NVFP4
from octavo.models.gguf.gguf_weights import GgufWeights
from tests.loader.make_files import STRING, GGUFTensor, f32_tensor, write_gguf

CODE = 40
CONFIG = {"num_attention_heads": 4, "num_key_value_heads": 2}
Array = np.ndarray
CASES = {
    # Rows of queries are in another order than the model's, those of experts are cut out of the
    # stack, and gpt-oss needs values that are computed.
    "llama": ("blk.0.attn_q", (64, 128), "model.layers.0.self_attn.q_proj.weight"),
    "qwen3moe": ("blk.0.ffn_up_exps", (3, 32, 128), "model.layers.0.mlp.experts.1.up_proj.weight"),
    "gpt-oss": ("blk.0.ffn_down_exps", (3, 32, 128), "model.layers.0.mlp.experts.down_proj"),
}


def blocks(shape: tuple[int, ...]) -> Array:
    """Return random blocks, whose scales include zeros and numbers below the normal ones."""
    bytes_of = (*shape[:-1], shape[-1] // NVFP4.block_elements * NVFP4.block_bytes)
    return np.random.default_rng(0).integers(0, 256, bytes_of, np.uint8)


def opened(
    path: Path,
    architecture: str,
    matrix: tuple[str, Array],
    shape: tuple[int, ...],
    others: dict[str, Array],
) -> GgufWeights:
    """Write and open a file with one matrix, of blocks or of float32, and other tensors."""
    name, values = matrix
    stored = f32_tensor(name, values)
    if values.dtype == np.uint8:
        stored = GGUFTensor(name, shape[::-1], CODE, values.tobytes())
    tensors = [stored, *(f32_tensor(*other) for other in others.items())]
    write_gguf(path, [("general.architecture", STRING, architecture)], tensors)
    return GgufWeights(open_gguf(path), CONFIG)


@pytest.mark.parametrize("architecture", CASES)
@pytest.mark.parametrize("each_expert", [False, True])
def test_values_are_multiplied_by_the_scale(
    architecture: str, each_expert: bool, tmp_path: Path
) -> None:
    stem, shape, name = CASES[architecture]
    count = shape[0] if each_expert and len(shape) == 3 else 1
    scale = np.linspace(0.37, 0.011, count).astype(np.float32)
    stored = blocks(shape)
    factors = scale.reshape(-1, *[1] * (len(shape) - 1))
    values = dequantize(stored, NVFP4)
    others = {f"{stem}.scale": scale, f"{stem}.input_scale": np.ones(1, np.float32)}
    weights = opened(tmp_path / "a.gguf", architecture, (f"{stem}.weight", stored), shape, others)
    plain = opened(
        tmp_path / "b.gguf", architecture, (f"{stem}.weight", values * factors), shape, {}
    )
    weights.check(plain.shapes(), ())
    assert weights.shapes() == plain.shapes()
    rows = weights.rows(name)
    assert weights.row_type(name) == rows.type == ("F32" if architecture == "gpt-oss" else "NVFP4")
    expected = plain.rows(name).floats()
    np.testing.assert_array_equal(rows.floats(), expected)
    is_file = architecture != "gpt-oss"
    assert rows.is_file == is_file
    # Equal blocks with other factors have other packed copies: the factor is part of the layout.
    assert rows.layout.factor == (scale[1 % count] if is_file else None)
    assert np.count_nonzero(expected) > expected.size // 2


def test_a_matrix_without_a_scale_stays_in_the_file(tmp_path: Path) -> None:
    stem, shape, name = CASES["llama"]
    stored = blocks(shape)
    weights = opened(tmp_path / "a.gguf", "llama", (f"{stem}.weight", stored), shape, {})
    rows = weights.rows(name)
    assert (rows.type, rows.is_file) == ("NVFP4", True)
    values = dequantize(stored, NVFP4)
    plain = opened(tmp_path / "b.gguf", "llama", (f"{stem}.weight", values), shape, {})
    np.testing.assert_array_equal(rows.floats(), plain.rows(name).floats())


def test_a_wrong_number_of_scales_is_refused(tmp_path: Path) -> None:
    stem, shape, name = CASES["qwen3moe"]
    others = {f"{stem}.scale": np.ones(2, np.float32)}
    weights = opened(
        tmp_path / "a.gguf", "qwen3moe", (f"{stem}.weight", blocks(shape)), shape, others
    )
    with pytest.raises(TensorMismatchError) as raised:
        weights.rows(name)
    assert raised.value.tensor == f"{stem}.scale"


def test_a_scale_of_another_type_is_an_unknown_tensor(tmp_path: Path) -> None:
    stem, shape, _ = CASES["llama"]
    values = np.ones(shape, np.float32)
    others = {f"{stem}.scale": np.ones(1, np.float32)}
    weights = opened(tmp_path / "a.gguf", "llama", (f"{stem}.weight", values), shape, others)
    with pytest.raises(TensorMismatchError, match=r"attn_q\.scale"):
        weights.check(weights.shapes(), ())
