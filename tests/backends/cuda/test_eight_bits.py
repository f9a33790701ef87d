"""FP8 weights, keys and values on the fake device have the reference's bits, or are near them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from octavo import LLM, SamplingParams
from octavo.backends.cuda import products
from octavo.backends.cuda.backend import CudaBackend
from octavo.backends.cuda.fake.accelerator import FakeAccelerator
from octavo.backends.cuda.footprint import CudaFootprint
from octavo.backends.cuda.products import ScaledMatrix
from octavo.backends.cuda.providers import Facts, select_product
from octavo.backends.torch import eight_bits
from octavo.backends.torch.backend import TorchBackend
from octavo.backends.torch.weights import TorchMatrix
from octavo.layers import Linear
from octavo.models.build import bind
from octavo.models.footprint import tensor_sizes
from octavo.models.kv_layout import place_layers
from octavo.models.load import OpenedModel
from octavo.models.registry import family_of
from tests.api.tiny import make_model
from tests.loader.make_files import write_safetensors
from tests.models.made_up import EXPERTS
from tests.models.ranks import two_sequences
from tests.quant.made_up import MadeFormat, compressed, fp8, fp8_blocks, write_pair

FORMATS: dict[str, MadeFormat] = {
    "rows": fp8(compressed("channel"), lambda rows, columns: (rows, 1)),
    "matrix": fp8({"quant_method": "fp8"}, lambda rows, columns: ()),
    "block": fp8_blocks(32, 32),
}
SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96}


def logits_of(opened: OpenedModel, backend: TorchBackend) -> np.ndarray:
    """Compute two sequences in one step, with the logits of every row."""
    model = family_of(opened.architecture)(opened.spec)
    layout = place_layers(model)
    bind(model, backend, opened.weights)
    backend.prepare(model, layout, 4)
    backend.make_cache(64)
    result = backend.forward(two_sequences(model, layout)).logits.copy()
    backend.bound = model  # type: ignore[attr-defined]
    return result


def matrices_of(backend: TorchBackend) -> list[TorchMatrix]:
    model = backend.bound  # type: ignore[attr-defined]
    return [layer.weight for _, layer in model.walk() if isinstance(layer, Linear)]


@pytest.mark.parametrize(
    ("dtype", "name", "activations"),
    [
        ("float32", "rows", "dynamic"),
        ("float32", "matrix", "dtype"),
        ("bfloat16", "matrix", "dynamic"),
        ("bfloat16", "block", "dynamic"),
        ("float32", "a part of a block", "dtype"),
    ],
)
def test_the_plain_form_has_the_references_bits(
    dtype: str, name: str, activations: str, tmp_path: Path
) -> None:
    made, sizes = FORMATS[name.removeprefix("a part of a ")], dict(SIZES)
    if name.startswith("a part"):
        sizes["intermediate_size"] = 80  # two blocks and a half
    opened = write_pair(tmp_path, made, **sizes).stored
    expected = logits_of(opened, TorchBackend(dtype, activations=activations))
    home = FakeAccelerator(multiplies_eight_bits=False)
    backend = CudaBackend(home, dtype, activations=activations)
    np.testing.assert_array_equal(logits_of(opened, backend), expected)
    kept = [each for each in matrices_of(backend) if each.scales is not None]
    assert len(kept) == 2 * 4
    assert {each.values.dtype for each in kept} == {torch.float8_e4m3fn}
    assert not any(isinstance(each, ScaledMatrix) for each in kept)
    rounded = activations == "dynamic" and name != "block"
    assert {each.kind for each in kept} == {"fp8" if rounded else "float"}


@pytest.mark.parametrize("name", ["rows", "matrix"])
def test_the_cards_products_are_near_the_reference(name: str, tmp_path: Path) -> None:
    opened = write_pair(tmp_path, FORMATS[name], **SIZES).stored
    exact = logits_of(opened, TorchBackend("float32", activations="dynamic"))
    usual = logits_of(opened, TorchBackend("bfloat16", activations="dynamic"))
    backend = CudaBackend(FakeAccelerator(), "bfloat16", activations="dynamic")
    found = logits_of(opened, backend)
    assert sum(isinstance(each, ScaledMatrix) for each in matrices_of(backend)) == 2 * 4
    assert np.abs(found - exact).max() <= 2 * np.abs(usual - exact).max()


def test_a_static_scale_of_the_file_is_followed_if_it_is_asked_for(tmp_path: Path) -> None:
    def quantise(shape: tuple[int, int], generator: np.random.Generator) -> Any:
        tensors, values = FORMATS["matrix"].quantise(shape, generator)
        return {**tensors, "input_scale": np.array(0.01, np.float32)}, values

    opened = write_pair(tmp_path, MadeFormat({"quant_method": "fp8"}, quantise), **SIZES).stored
    expected = [
        logits_of(opened, TorchBackend("float32", activations=each))
        for each in ("static", "dynamic", "dtype")
    ]
    assert not np.array_equal(expected[0], expected[1])
    assert not np.array_equal(expected[0], expected[2])
    plain = CudaBackend(
        FakeAccelerator(multiplies_eight_bits=False), "float32", activations="static"
    )
    np.testing.assert_array_equal(logits_of(opened, plain), expected[0])
    backend = CudaBackend(FakeAccelerator(), "bfloat16", activations="static")
    found = logits_of(opened, backend)
    scaled = [each for each in matrices_of(backend) if isinstance(each, ScaledMatrix)]
    # The parts of stacked projections have scales of their own.
    assert {each.whole_scale is None for each in scaled} == {True, False}
    usual = logits_of(opened, TorchBackend("bfloat16", activations="static"))
    assert np.abs(found - expected[0]).max() <= 2 * np.abs(usual - expected[0]).max()


@pytest.mark.parametrize("name", FORMATS)
def test_experts_stay_in_eight_bits(name: str, tmp_path: Path) -> None:
    sizes = {**SIZES, **EXPERTS, "moe_intermediate_size": 64, "head_dim": 64}
    opened = write_pair(tmp_path, FORMATS[name], "Qwen3MoeForCausalLM", **sizes).stored
    expected = logits_of(opened, TorchBackend("float32", activations="dynamic"))
    home = FakeAccelerator(multiplies_eight_bits=False)
    backend = CudaBackend(home, "float32", activations="dynamic")
    np.testing.assert_array_equal(logits_of(opened, backend), expected)
    near = CudaBackend(FakeAccelerator(), "bfloat16", activations="dynamic")
    usual = logits_of(opened, TorchBackend("bfloat16", activations="dynamic"))
    error = np.abs(logits_of(opened, near) - expected).max()
    assert error <= 3 * np.abs(usual - expected).max()


def test_weights_never_pass_through_floats_on_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither those that stay in eight bits, nor those of parts of different forms."""
    opened = write_pair(tmp_path, FORMATS["block"], **SIZES).stored
    expected = logits_of(opened, TorchBackend("float32"))
    from octavo.backends import stored_rows

    decoded: list[str] = []
    floats = stored_rows.StoredRows.floats

    def noted(rows: stored_rows.StoredRows) -> Any:
        decoded.append(rows.type)
        return floats(rows)

    monkeypatch.setattr(stored_rows.StoredRows, "floats", noted)
    from octavo.backends.cuda import backend as module

    backend = CudaBackend(FakeAccelerator(), "float32")
    np.testing.assert_array_equal(logits_of(opened, backend), expected)
    monkeypatch.setattr(module, "scale_group", lambda parts: 0)
    backend = CudaBackend(FakeAccelerator(), "float32")
    np.testing.assert_array_equal(logits_of(opened, backend), expected)
    assert not any(each.scales is not None for each in matrices_of(backend))
    assert set(decoded) <= {"F32"}  # norms


@pytest.mark.parametrize("name", FORMATS)
def test_the_bill_counts_eight_bits(name: str, tmp_path: Path) -> None:
    opened = write_pair(tmp_path, FORMATS[name], **SIZES).stored
    backend = CudaBackend(FakeAccelerator(), "bfloat16", activations="dynamic")
    logits_of(opened, backend)
    billed = sum(map(CudaFootprint("bfloat16").weight_bytes, tensor_sizes(opened)))
    assert backend.weight_bytes <= billed <= 1.13 * backend.weight_bytes


@pytest.mark.parametrize(
    ("fault", "says"),
    [("raises", "refuses"), ("place", "place in a tile"), ("values", "other values")],
)
def test_products_that_a_card_computes_wrongly_are_not_used(
    fault: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = torch._scaled_mm

    def wrong(*arguments: Any, out: torch.Tensor, **named: Any) -> torch.Tensor:
        if fault == "raises":
            raise RuntimeError("no such product")
        right(*arguments, out=out, **named)
        if fault == "place":
            out[3] *= 1.01
        else:
            out *= 1.05
        return out

    monkeypatch.setattr(torch, "_scaled_mm", wrong)
    home = FakeAccelerator()
    with home.working():
        assert says in products.trial_fault(48, 64, home, is_static=True)


def test_what_keeps_a_card_from_products_of_eight_bits_is_named() -> None:
    home, older = FakeAccelerator(), FakeAccelerator(multiplies_eight_bits=False)
    with home.working():
        assert products.trial_fault(48, 64, home, is_static=True) == ""
    found = {
        name: select_product(outputs, 64, Facts.of(each, dtype, asks_for_kernels=False))
        for name, outputs, each, dtype in (
            ("the card multiplies", 48, home, "bfloat16"),
            ("sm_89", 48, older, "bfloat16"),
            ("bfloat16", 48, home, "float16"),
            ("multiples of 16", 40, home, "bfloat16"),
        )
    }
    assert all(name in choice.reason for name, choice in found.items())
    assert [each.provider for each in found.values()] == ["scaled_mm", "torch", "torch", "torch"]


def test_products_are_captured_and_replayed_with_what_their_rows_then_are() -> None:
    home = FakeAccelerator()
    generator = torch.Generator().manual_seed(4)
    with home.working():
        codes = torch.randn(32, 48, generator=generator).to(home.device).to(eight_bits.CODES)
        scales = torch.rand(32, 1, generator=generator).to(home.device)
        matrix = ScaledMatrix(codes, kind="fp8", scales=scales, group=48)
        x = torch.zeros(5, 48, dtype=torch.bfloat16, device=home.device)
        graph, found = home.capture(lambda: matrix.product(x, None))
        x.copy_(torch.randn(5, 48, generator=generator).to(home.device))
        graph.replay()
        expected = matrix.product(x, None)
        assert bool((expected == found).all())
        assert bool((expected != 0).any())


def make_eight_bit_model(directory: Path) -> str:
    """Write the tiny model with projections of FP8, by a scale for each row."""
    make_model(directory)
    path = directory / "model.safetensors"
    arrays: dict[str, Any] = {}
    generator = np.random.default_rng(3)
    for name, values in load_file(path).items():
        if "_proj" not in name:
            arrays[name] = values
            continue
        module = name.removesuffix(".weight")
        tensors, made = FORMATS["rows"].quantise(values.shape, generator)
        arrays |= {f"{module}.{ending}": each for ending, each in tensors.items()}
        assert np.abs(made).max() > 0
    write_safetensors(path, arrays)
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = FORMATS["rows"].settings
    (directory / "config.json").write_text(json.dumps(config))
    return str(directory)


@pytest.mark.slow
@pytest.mark.parametrize("kv_cache_dtype", ["auto", "fp8"])
def test_an_engine_has_the_references_tokens(kv_cache_dtype: str, tmp_path: Path) -> None:
    """Prompts in chunks, with cached prefixes, in a cache too small for all of them."""
    model = make_eight_bit_model(tmp_path)
    prompts = [[3, 4, 5, 6], list(range(10, 60)), [*range(10, 50), 7], [7, 8, 9] * 9]
    sampling = [
        SamplingParams(max_tokens=9, seed=1, ignore_eos=True, temperature=warmth, logprobs=told)
        for warmth, told in ((0.0, None), (0.9, None), (1.1, None), (0.0, 1))
    ]
    sizes: dict[str, Any] = {"max_num_batched_tokens": 32, "num_gpu_blocks_override": 8}
    run = partial(LLM, model, dtype="float32", kv_cache_dtype=kv_cache_dtype, **sizes)
    texts = []
    for arguments in (
        {"backend": "torch", "fp8_activations": "dynamic"},
        {"device": "fake"},
        {"backend": "torch"},
        {"device": "fake", "fp8_activations": "dtype"},
    ):
        with run(**arguments) as llm:
            outputs = [llm.generate(prompts, sampling) for _ in range(2)][-1]
            texts.append(
                [(each.outputs[0].token_ids, each.outputs[0].logprobs) for each in outputs]
            )
    assert texts[0] == texts[1]
    assert texts[2] == texts[3]
    assert texts[0] != texts[2]  # in the log-probabilities at least
