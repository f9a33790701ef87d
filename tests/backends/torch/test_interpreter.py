"""A listing computes the same before and after every pass, in all families and to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from octavo.backends.step import HostBatch
from octavo.backends.torch import interpreter
from octavo.backends.torch.attention import TorchBatch, make_buffers
from octavo.backends.torch.backend import TorchBackend
from octavo.backends.torch.interpreter import MEANINGS, Interpreter, Outputs
from octavo.backends.torch.run import Run
from octavo.backends.torch.weights import TorchMatrix
from octavo.models.build import bind
from octavo.models.kv_layout import place_layers
from octavo.program.listing import Listing, Op
from octavo.program.passes.attention import take_into_attention
from octavo.program.passes.experts import add_experts_apart
from octavo.program.passes.fusion import FUSION, Pass, rewrite
from octavo.program.passes.norms import norm_while_adding
from octavo.program.passes.prepare import (
    norm_while_preparing,
    prepare_products,
    prepare_while_making,
)
from octavo.program.recorder import record
from tests.models.made_up import (
    CONFIGS,
    DECODERS,
    EXPERTS,
    SIZES,
    MadeUpWeights,
    make_model,
)

MORE: dict[str, Any] = {
    **EXPERTS,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 8,
    "attn_logit_softcapping": 5.0,
    "final_logit_softcapping": 3.0,
    "sliding_window": 5,
    "logit_scale": 0.5,
    "use_qk_norm": True,
    "embedding_multiplier": 2.0,
    "residual_multiplier": 0.5,
    "logits_scaling": 2.0,
    "attention_multiplier": 0.3,
}
PASSES: tuple[Pass, ...] = (*FUSION, prepare_products, norm_while_preparing)
# Those of a card whose products all read rows of eight bits.
OF_CARDS = (take_into_attention, norm_while_adding, prepare_products, prepare_while_making)
LENGTHS, SPLIT = (13, 7), 5  # two sequences, each computed in two steps


class Model:
    """A bound model, from which listings are recorded and interpreted."""

    def __init__(self, architecture: str, dtype: str = "float32") -> None:
        more: dict[str, Any] = {} if architecture in CONFIGS else dict(MORE)
        if architecture == "Gemma3ForConditionalGeneration":
            more = {"text_config": {**SIZES, **MORE}}
        self.model = make_model(architecture, **more)
        self.layout = place_layers(self.model)
        self.backend = TorchBackend(dtype)
        bind(self.model, self.backend, MadeUpWeights(self.model))

    def record(self, *passes: Pass) -> Listing:
        listing = record(self.model)
        rewrite(listing, passes)
        return listing

    def interpret(self, listing: Listing) -> list[Outputs]:
        """Run both sequences in two steps; only some rows' logits and hidden states are wanted."""
        buffers = make_buffers(self.layout, 64, 4, self.backend.dtype)
        run = Interpreter(listing).run
        starts = ((0, 0), (SPLIT, SPLIT))
        stops = ((SPLIT, SPLIT), LENGTHS)
        with torch.inference_mode():
            return [
                run(TorchBatch.of(self.batch(start, stop), buffers))
                for start, stop in zip(starts, stops, strict=True)
            ]

    def batch(self, starts: tuple[int, ...], stops: tuple[int, ...]) -> HostBatch:
        counts = [stop - start for start, stop in zip(starts, stops, strict=True)]
        rows = sum(counts)
        tables = np.arange(1, 13, dtype=np.int32).reshape(2, 6)
        positions = [np.arange(*span, dtype=np.int32) for span in zip(starts, stops, strict=True)]
        return HostBatch(
            np.random.default_rng(rows).integers(0, 96, rows).astype(np.int32),
            np.concatenate(positions),
            np.cumsum([0, *counts], dtype=np.int32),
            tuple(tables + 12 * group for group in range(len(self.layout.windows))),
            np.array([rows - 1, counts[0] - 1, 1], np.int32),
            np.array([0, counts[0] - 1], np.int32),
        )


def assert_equal(found: list[Outputs], expected: list[Outputs], what: str) -> None:
    for mine, other in zip(found, expected, strict=True):
        for name in ("logits", "hidden"):
            assert torch.equal(getattr(mine, name), getattr(other, name)), f"{what} changes {name}"


@pytest.mark.parametrize("architecture", DECODERS)
def test_no_pass_changes_a_bit_of_any_family(architecture: str) -> None:
    """The listing is interpreted as recorded, and again after each further pass."""
    model = Model(architecture)
    expected = model.interpret(model.record())
    assert all(torch.isfinite(step.logits).all() for step in expected)
    for count, last in enumerate(PASSES, 1):
        found = model.interpret(model.record(*PASSES[:count]))
        assert_equal(found, expected, last.__name__)
        found = model.interpret(model.record(last)) if last is not norm_while_preparing else found
        assert_equal(found, expected, f"{last.__name__} alone")
    listing = model.record(*OF_CARDS)
    made = {i.op for i in listing if i.prepared is not None} - {"Prepare", "Gemm"}
    assert made & {"Norm", "AddNorm", "Gate", "Attention"}
    assert_equal(model.interpret(listing), expected, "what is left in the form of products")


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen2MoeForCausalLM"])
def test_no_pass_changes_a_bit_in_bf16(architecture: str) -> None:
    """Every value is rounded as often after fusion as before."""
    model = Model(architecture, "bfloat16")
    expected = model.interpret(model.record())
    assert_equal(model.interpret(model.record(*PASSES)), expected, "fusion")


@pytest.mark.parametrize("architecture", ["Qwen2MoeForCausalLM", "GptOssForCausalLM"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_products_of_experts_that_are_added_up_apart_have_the_same_bits(
    architecture: str, dtype: str
) -> None:
    def add_apart(listing: Listing) -> None:
        add_experts_apart(listing, lambda experts: True)
        assert any(i.op == "AddExperts" for i in listing)

    model = Model(architecture, dtype)
    expected = model.interpret(model.record(*PASSES))
    assert_equal(model.interpret(model.record(*PASSES, add_apart)), expected, "apart")


def test_the_comparison_detects_a_pass_that_changes_something() -> None:
    """Each of these wrong passes shows in the outputs."""

    def forget_a_residual(listing: Listing) -> None:
        gemm = next(i for i in listing if i.op == "Gemm" and i.y is not None)
        listing.change(gemm, y=None)

    def forget_a_norm(listing: Listing) -> None:
        next(i for i in listing if i.op == "Prepare" and i.norm is not None).norm = None

    def swap_experts(listing: Listing) -> None:
        sort = next(i for i in listing if i.op == "SortPairs")
        listing.change(sort, x=sort.chosen)

    model = Model("Qwen2MoeForCausalLM")
    expected = model.interpret(model.record())
    for wrong in (forget_a_residual, forget_a_norm, swap_experts):
        with pytest.raises(AssertionError, match="changes"):
            assert_equal(model.interpret(model.record(*PASSES, wrong)), expected, wrong.__name__)


def test_values_are_freed_behind_their_last_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """The outputs alone are left at the end of a step."""
    runs: list[Run] = []

    def kept(*fields: Any) -> Run:
        runs.append(Run(*fields))
        return runs[-1]

    monkeypatch.setattr(interpreter, "Run", kept)
    model = Model("LlamaForCausalLM")
    for passes in ((), PASSES):
        model.interpret(model.record(*passes))
    assert [len(run.contents) for run in runs] == [2, 2, 2, 2]


def test_inputs_in_codes_are_close_to_inputs_in_floats() -> None:
    """Matrices that read int8 rows get them from the pass; 255 steps for each 32 numbers."""
    model = Model("LlamaForCausalLM")
    expected = model.interpret(model.record())
    listing = model.record()
    for instruction in listing:
        if instruction.op == "Gemm":
            assert isinstance(instruction.matrix, TorchMatrix)
            instruction.matrix = TorchMatrix(
                instruction.matrix.values, instruction.matrix.gated, kind="int8"
            )
    rewrite(listing, PASSES)
    found = model.interpret(listing)
    for mine, other in zip(found, expected, strict=True):
        difference = (mine.logits - other.logits).abs().max() / other.logits.abs().max()
        assert 1e-4 < difference < 3e-2


def test_every_operation_has_a_meaning() -> None:
    """A relay gets back what another process computes."""
    assert MEANINGS.keys() == set(Op.__args__) - {"Relay"}  # type: ignore[attr-defined]
