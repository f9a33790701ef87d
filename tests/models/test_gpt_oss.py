"""gpt-oss against the reference implementation, with plain and four-bit weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GptOssConfig
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from octavo.backends.native.backend import NativeBackend, NativeOptions
from octavo.backends.native.footprint import NativeFootprint
from octavo.backends.native.packing import interleaved
from octavo.loader import resolve
from octavo.loader.errors import TensorMismatchError
from octavo.loader.gguf.types import MXFP4
from octavo.models.config_reader import Config, ConfigurationError
from octavo.models.footprint import tensor_sizes
from octavo.models.gpt_oss import GptOss
from octavo.models.load import open_model
from octavo.quant.methods.mxfp4 import gguf_rows
from octavo.quant.plain import layout_of
from tests.models.compare import compare, load

KINDS = ("blocks", "scales")
YARN = {
    "rope_type": "yarn",
    "rope_theta": 150000.0,
    "factor": 4.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 16,
}
SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 9,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "rope_parameters": YARN,
}
CASES: dict[str, GptOssConfig] = {
    "gpt-oss": GptOssConfig(**SMALL),
    "tied, three experts a token": GptOssConfig(
        **{**SMALL, "num_experts_per_tok": 3}, tie_word_embeddings=True
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_logits_and_text_match_the_reference(name: str, tmp_path: Path) -> None:
    """Logits agree within fp32 rounding, the text is equal, and chunks have the same bits."""
    compare(CASES[name], tmp_path)


def random_mxfp4(shape: tuple[int, ...], seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Make random blocks and scales of a [..., in] matrix."""
    generator = np.random.default_rng(seed)
    groups = (*shape[:-1], shape[-1] // 32)
    blocks = generator.integers(0, 256, (*groups, 16), np.uint8)
    scales = generator.integers(119, 124, groups, np.uint8)
    return torch.from_numpy(blocks), torch.from_numpy(scales)


def dequantize(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Return the values [..., in] of the rows that our format makes."""
    values = layout_of(MXFP4).decode(gguf_rows(blocks, scales))
    return values.reshape(*scales.shape[:-1], -1)


def test_four_bit_floats_have_the_values_of_the_reference() -> None:
    blocks, scales = random_mxfp4((2, 8, 64), seed=3)
    expected = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    ours = dequantize(blocks.numpy(), scales.numpy())
    assert np.array_equal(ours.swapaxes(-1, -2), expected.numpy())


def packed_checkpoint(directory: Path) -> tuple[Path, np.ndarray]:
    """Store a saved model's experts in four bits; return the logits of the same plain numbers."""
    compare(CASES["gpt-oss"], directory)
    path = directory / "model.safetensors"
    plain, packed = load_file(path), load_file(path)
    for seed, name in enumerate(sorted(plain)):
        if name.endswith("_proj") and "experts" in name:
            experts, inputs, outputs = plain[name].shape
            blocks, scales = random_mxfp4((experts, outputs, inputs), seed)
            plain[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
            plain[name] = plain[name].contiguous()
            del packed[name]
            packed |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    save_file(plain, path)
    expected = load(directory).logits([1, 2, 3])
    save_file(packed, path)
    return path, expected


def test_a_checkpoint_in_four_bits_has_the_same_logits(tmp_path: Path) -> None:
    _, expected = packed_checkpoint(tmp_path)
    assert np.array_equal(load(tmp_path).logits([1, 2, 3]), expected)


def test_four_bits_stay_four_bits_in_the_native_engine(tmp_path: Path) -> None:
    """Experts keep the numbers and the size of the file, and the memory bill agrees."""
    path, _ = packed_checkpoint(tmp_path)
    backend = NativeBackend(NativeOptions(num_threads=1))
    runner = load(tmp_path, backend=backend)
    assert np.isfinite(runner.logits([1, 2, 3])).all()
    text = backend.describe()
    assert "expertsin of 4 experts [64×64 Mx4]" in text
    assert "expertsout of 4 experts [64×32 Mx4]" in text
    mlp: Any = dict(runner.model.walk())["blocks.1.mlp.experts"]
    tensors = load_file(path)
    for packed, name, order in (
        (mlp.gate_up_weight, "gate_up_proj", [*range(0, 64, 2), *range(1, 64, 2)]),
        (mlp.down_weight, "down_proj", list(range(64))),
    ):
        stored = [tensors[f"model.layers.1.mlp.experts.{name}_{kind}"] for kind in KINDS]
        expected = dequantize(*(tensor.numpy() for tensor in stored))
        for matrix, values in zip(packed.matrices, expected, strict=True):
            native = matrix.pieces[0].native
            where = interleaved(32) if matrix.gated else range(64)
            got = np.stack([native.row(row) for row in range(64)])
            np.testing.assert_array_equal(got, values[order][where])
            if values.shape[1] % 64 == 0:
                assert native.num_bytes == 64 * values.shape[1] // 32 * 17
    opened = open_model(resolve(str(tmp_path)))
    footprint = NativeFootprint("auto", "bfloat16")
    kept = sum(map(footprint.weight_bytes, tensor_sizes(opened)))
    assert kept == pytest.approx(backend.weight_bytes, rel=0.05)  # biases are stored twice


def test_scales_of_another_shape_are_refused(tmp_path: Path) -> None:
    path, _ = packed_checkpoint(tmp_path)
    tensors = load_file(path)
    name = "model.layers.1.mlp.experts.down_proj_scales"
    tensors[name] = tensors[name][:, :-1].contiguous()
    save_file(tensors, path)
    with pytest.raises(TensorMismatchError, match=r"down_proj_scales.*\[4, 63, 1\].*\[4, 64, 1\]"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"swiglu_limit": 5.0}, "swiglu_limit must be 7"),
        (
            {"num_experts_per_tok": 5},
            "num_experts_per_tok must be at most 4, the number of experts, is 5",
        ),
        ({"layer_types": ["full_attention"]}, "1 layer_types for 3 layers"),
    ],
)
def test_unsupported_options_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        GptOss.read(Config({**CASES["gpt-oss"].to_dict(), **change}))
