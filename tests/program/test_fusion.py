"""Each peephole pass alone, and the index of readers and writers after all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from octavo.backends.base import Backend
from octavo.layers import PagedAttention, Rope
from octavo.models.build import bind
from octavo.models.kv_layout import place_layers
from octavo.program import fusion
from octavo.program.describe import describe
from octavo.program.listing import Listing, RecordingError, Value
from octavo.program.recorder import Ids, RecordedBatch, Recorder, WantedRows
from tests.models.made_up import MadeUpWeights, make_model
from tests.program.fakes import FakeBackend, FakeMatrix

WIDTH = 32


class Layers:
    """A recorder and weights for its operations."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        self.x = self.recorder.embed(Ids(by_position=False), self.matrix(50, WIDTH))

    def matrix(self, outputs: int, inputs: int = WIDTH, gated: bool = False) -> FakeMatrix:
        return FakeMatrix(outputs, inputs, gated)

    def norm(self, x: Value) -> Value:
        return self.recorder.rms_norm(x, object(), 1e-6, 0.0)

    def linear(self, x: Value, outputs: int = WIDTH, gated: bool = False) -> Value:
        return self.recorder.linear(x, self.matrix(outputs, x.width, gated), None)

    def fused(self, *passes: Callable[[Listing], None]) -> str:
        """Apply passes, and describe the instructions that remain."""
        listing = Listing(self.recorder.instructions)
        for one in passes:
            one(listing)
        return describe(listing).replace("\n", "; ")


@pytest.fixture
def layers() -> Layers:
    return Layers()


def test_a_scaled_embedding_is_one_instruction(layers: Layers) -> None:
    _ = layers.x * 3.0
    assert layers.fused(fusion.scale_embeddings) == "embed [50×32 F32] ×3"


def test_gate_and_up_are_multiplied_in_the_product(layers: Layers) -> None:
    layers.recorder.gated_activation(layers.linear(layers.x, 64, gated=True), "silu")
    text = layers.fused(fusion.gate_in_products)
    assert text == "embed [50×32 F32]; gemm [64×32 F32] +Silu +gate"


def test_gate_and_up_with_another_reader_are_refused(layers: Layers) -> None:
    _ = layers.linear(layers.x, 64, gated=True) * 2.0
    with pytest.raises(RecordingError, match="gates and ups"):
        layers.fused(fusion.gate_in_products)


def test_activations_scales_and_caps_are_applied_in_the_product(layers: Layers) -> None:
    layers.recorder.activation(layers.linear(layers.x), "gelu")
    layers.recorder.soft_cap(layers.linear(layers.x) * 0.5, 30.0)
    passes = (fusion.activate_in_products, fusion.scale_in_products, fusion.cap_in_products)
    text = layers.fused(*passes)
    assert text == ("embed [50×32 F32]; gemm [32×32 F32] +GeluErf; gemm [32×32 F32] ×0.5 cap 30")


def test_an_activation_stays_if_its_input_has_another_reader(layers: Layers) -> None:
    y = layers.linear(layers.x)
    _ = layers.recorder.activation(y, "gelu") + y
    assert "activate" in layers.fused(fusion.activate_in_products)


def test_residuals_are_added_in_the_product(layers: Layers) -> None:
    _ = layers.x + layers.linear(layers.x)
    text = layers.fused(fusion.add_residuals_in_products)
    assert text == "embed [50×32 F32]; gemm [32×32 F32] +residual"


def test_a_sum_of_two_products_is_added_by_the_later_one(layers: Layers) -> None:
    one = layers.linear(layers.x)
    other = layers.linear(layers.x, 64)
    _ = one + layers.linear(other)
    text = layers.fused(fusion.add_residuals_in_products)
    assert text.count("residual") == 1
    assert text.endswith("gemm [32×64 F32] +residual")


def test_norms_move_behind_the_selection(layers: Layers) -> None:
    layers.recorder.select_rows(layers.norm(layers.x), WantedRows("Logits"))
    text = layers.fused(fusion.select_before_norms)
    assert text == "embed [50×32 F32]; select; norm"


def test_only_wanted_rows_are_processed_after_the_last_attention(layers: Layers) -> None:
    """Earlier values that are still needed are selected once, just before the attention."""
    recorder, batch = layers.recorder, RecordedBatch()
    attend = PagedAttention(2, 1, 8, scale=1.0)
    attend.place, attend.sinks = (0, 0), None
    x = layers.x
    for _ in range(2):
        q, k, v = recorder.split(layers.linear(x), (16, 8, 8))
        out = layers.linear(recorder.attention(q, k, v, attend, batch))
        x = out + x + x
    recorder.select_rows(x, batch.logits_rows)
    listing = Listing(recorder.instructions)
    fusion.leave_out_unwanted_rows(listing)
    words = [f"{i.op} {i.out.buffer.space}" for i in listing if i.out is not None]
    layer = ["Gemm Tokens", "Attention Tokens", "Gemm Tokens", "Add Tokens", "Add Tokens"]
    last = ["Gemm Tokens", "Select Wanted", "Attention Wanted", "Gemm Wanted"]
    assert words == ["Embed Tokens", *layer, *last, "Add Wanted", "Add Wanted", "Select Logits"]


def test_products_share_their_prepared_and_normalised_input(layers: Layers) -> None:
    normed = layers.norm(layers.x)
    layers.linear(normed)
    layers.linear(normed, 64)
    text = layers.fused(fusion.prepare_products)
    assert text == (
        "embed [50×32 F32]; prepare norm+ [32×32 F32]; gemm [32×32 F32]; gemm [64×32 F32]"
    )


def test_a_norm_with_another_reader_stays_an_instruction(layers: Layers) -> None:
    normed = layers.norm(layers.x)
    _ = layers.linear(normed) + normed
    assert "; norm; prepare [32" in layers.fused(fusion.prepare_products)


def test_a_rotation_outside_attention_is_refused(layers: Layers) -> None:
    layers.recorder.rope(layers.x, Ids(by_position=True), Rope((1.0, 0.5)), 8)
    with pytest.raises(RecordingError, match="a rotation of something else"):
        layers.fused(fusion.refuse_what_is_left)


ARCHITECTURES = ["LlamaForCausalLM", "GPTNeoXForCausalLM", "Qwen2MoeForCausalLM"]


def recorded(architecture: str) -> Listing:
    """Record a small model of an architecture."""
    model = make_model(architecture)
    place_layers(model)
    backend = FakeBackend()
    bind(model, cast(Backend, backend), MadeUpWeights(model))
    return backend.recorder.record(model)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_listing_knows_its_readers_and_writers_after_fusion(architecture: str) -> None:
    listing = recorded(architecture)
    fusion.fuse(listing)
    values = [value for i in listing for value in (*i.reads, *i.writes)]
    for buffer in {value.buffer for value in values}:
        reading = [i for i in listing if any(value.buffer is buffer for value in i.reads)]
        assert sorted(map(listing.index, listing.readers(buffer))) == list(
            map(listing.index, reading)
        )
    for value in values:
        writing = [i for i in listing if any(v.buffer is value.buffer for v in i.writes)]
        assert listing.maker(value) in (*writing, None)
