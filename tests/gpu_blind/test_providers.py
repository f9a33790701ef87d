"""Who computes what on a card, by operation, type, width of heads and card, as the log has it."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from octavo.backends.cuda.backend import CudaBackend
from octavo.backends.cuda.fake.accelerator import FakeAccelerator
from octavo.backends.cuda.providers import (
    KERNELS,
    Choice,
    Facts,
    report,
    select,
    select_adapter,
    select_copies,
    select_product,
)
from octavo.backends.torch.adapters import TorchAdapter, TorchChange
from octavo.backends.torch.weights import TorchExperts
from octavo.program.listing import Attend, Instruction, Mixture, Op
from octavo.program.passes.attention import take_into_attention
from octavo.program.passes.fusion import rewrite
from octavo.program.recorder import record
from tests.gpu_blind.published import published
from tests.models.published_shapes import PUBLISHED

ASKED = Facts(True, True, True, "bfloat16")
OLD = ASKED._replace(compiles_kernels=False, multiplies_eight_bits=False)


def attention(**changes: Any) -> Instruction:
    fields = {"heads": 8, "kv_heads": 2, "head_dim": 128, "scale": 1.0, "softcap": 0.0, "window": 0}
    attend = Attend(**{**fields, "sinks": None, "place": (0, 0), "rope": None, **changes})
    return Instruction("Attention", attend=attend)


def experts(**changes: Any) -> Instruction:
    plain = TorchExperts(torch.empty(2, 16, 8))
    mixture = Mixture(plain, TorchExperts(torch.empty(2, 8, 8), **changes), None, None, "Silu")
    return Instruction("Experts", mixture=mixture)


@pytest.mark.parametrize("operation", KERNELS)
def test_kernels_compute_only_what_they_are_asked_for_and_the_card_runs(operation: str) -> None:
    assert select(operation, ASKED).provider == "triton"
    usual = select(operation, ASKED._replace(asks_for_kernels=False))
    assert (usual.provider, "not asked for" in usual.reason) == ("torch", True)
    old = select(operation, OLD)
    assert (old.provider, "sm_80" in old.reason) == ("torch", True)


@pytest.mark.parametrize("operation", ["Route", "HeadGemm", "Convolve", "Activate", "Embed"])
def test_torch_computes_all_else(operation: str) -> None:
    assert select(operation, ASKED).provider == "torch"


def test_products_are_those_of_libraries_and_kernels_add_what_adapters_make() -> None:
    product = Instruction("Gemm")
    assert select("Gemm", ASKED, product).provider == "torch"
    changed = Instruction("Gemm", low=published_value())
    assert select("Gemm", ASKED, changed).provider == "triton"


def published_value() -> Any:
    """Return some value of a listing."""
    return next(
        i.out for i in record(published("Qwen3-8B", torch.bfloat16)[0]) if i.out is not None
    )


@pytest.mark.parametrize(
    ("dtype", "head_dim", "provider"),
    [
        *(("bfloat16", 64, "triton"), ("bfloat16", 512, "triton"), ("bfloat16", 576, "torch")),
        *(("float16", 256, "triton"), ("float32", 256, "triton"), ("float32", 320, "torch")),
    ],
)
def test_heads_are_as_wide_as_a_card_holds_tiles_of_them(
    dtype: str, head_dim: int, provider: str
) -> None:
    found = select("Attention", ASKED._replace(dtype=dtype), attention(head_dim=head_dim))
    assert found.provider == provider


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"latent": 512}, "latent rows"),
        ({"both_ways": True}, "later positions"),
        ({"skipped": 3}, "skipped positions"),
        ({"distances": torch.zeros(1)}, "scores by distance"),
    ],
)
def test_attention_that_no_kernel_computes_has_its_reason(
    changes: dict[str, Any], reason: str
) -> None:
    assert select("Attention", ASKED, attention(**changes)) == Choice("Attention", "torch", reason)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"scales": torch.ones(2, 8, 1), "group": 8}, "weights of eight bits"),
        ({"kind": "int8"}, "rows that are rounded for products"),
    ],
)
def test_experts_of_floats_are_computed_by_kernels(
    changes: dict[str, Any], reason: str | None
) -> None:
    found = select("Experts", ASKED, experts(**changes))
    assert (found.provider == "triton") is (reason is None)
    assert reason is None or found.reason == reason


def test_adapters_that_only_add_are_computed_by_kernels() -> None:
    assert select_adapter(TorchAdapter((TorchChange(), TorchChange()))).provider == "triton"
    biased = TorchAdapter((TorchChange(), TorchChange(bias=torch.zeros(3))))
    assert select_adapter(biased).provider == "torch"


def test_blocks_of_whole_lines_are_copied_by_a_kernel() -> None:
    assert select_copies((4096, 64), ASKED).provider == "triton"
    assert select_copies((4096, 72), ASKED).provider == "torch"
    assert select_copies((4096,), OLD).provider == "torch"


@pytest.mark.parametrize(
    ("facts", "outputs", "provider"),
    [
        (ASKED, 4096, "scaled_mm"),
        (ASKED._replace(asks_for_kernels=False), 4096, "scaled_mm"),
        (ASKED, 4100, "torch"),
        (ASKED._replace(dtype="float16"), 4096, "torch"),
        (OLD, 4096, "torch"),
    ],
)
def test_products_of_eight_bits_are_the_cards_where_it_has_them(
    facts: Facts, outputs: int, provider: str
) -> None:
    assert select_product(outputs, 4096, facts).provider == provider


# What torch's operations compute of each published model in the place of kernels.
LEFT = {"DeepSeek-V2-Lite": {"attention: latent rows"}}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_model_is_computed_by_kernels(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Torch multiplies, and computes latent attention, which the log says."""
    listing = record(published(name, torch.bfloat16)[0])
    rewrite(listing, (take_into_attention,))
    has_experts = "Experts" in {i.op for i in listing}
    assert has_experts is (name in ("Qwen3-30B-A3B", "Mixtral-8x7B-v0.1", "DeepSeek-V2-Lite"))
    with caplog.at_level(logging.INFO):
        report(listing, ASKED)
    said = {each.replace("computed by torch's operations: ", "") for each in caplog.messages}
    assert said == LEFT.get(name, set())
    caplog.clear()
    with caplog.at_level(logging.INFO):
        report(listing, ASKED._replace(asks_for_kernels=False))
    assert not caplog.messages


def test_every_operation_of_kernels_has_one_and_no_other_is_chosen() -> None:
    pytest.importorskip("triton")
    from octavo.backends.cuda.kernels.meanings import KERNEL_MEANINGS

    apart = {"Prepare", "Draw", "Copy"}  # of a matrix's rows, of a sampler, of the cache
    assert set(KERNEL_MEANINGS) == set(KERNELS) - apart
    assert set(KERNELS) - apart - {"Draw", "Copy"} <= set(Op.__args__)  # type: ignore[attr-defined]


def test_a_card_that_triton_does_not_know_computes_by_torch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO):
        backend = CudaBackend(FakeAccelerator(compiles_kernels=False), has_kernels=True)
    assert not backend._facts.has_kernels
    assert "sm_80" in caplog.text
