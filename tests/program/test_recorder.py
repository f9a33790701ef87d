"""What a forward pass becomes: each peephole alone, whole programs, rooms and meetings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from octavo.backends.base import StoredRows
from octavo.backends.native.backend import NativeBackend, NativeOptions
from octavo.backends.native.layout import lay_out, place_barriers
from octavo.backends.native.packing import Matrix, interleaved
from octavo.layers import GateUpLinear, Linear, PagedAttention, Rope
from octavo.models.build import bind
from octavo.models.kv_layout import place_layers
from octavo.program import fusion
from octavo.program.describe import describe
from octavo.program.listing import Listing, RecordingError, Value
from octavo.program.recorder import Ids, RecordedBatch, Recorder, WantedRows
from tests.backends.native.tiny import make_native
from tests.models.made_up import MadeUpWeights, make_model
from tests.runner.tiny import FULL

WIDTH = 32


class Layers:
    """Operations with weights at hand."""

    def __init__(self) -> None:
        self.backend = NativeBackend(NativeOptions(weights="float32", num_threads=1))
        self.recorder = Recorder()
        self.x = self.recorder.embed(Ids(by_position=False), self.matrix(50, WIDTH))

    def matrix(self, outputs: int, inputs: int = WIDTH, gated: bool = False) -> Matrix:
        rows = StoredRows.of(np.ones((outputs, inputs), np.float32))
        if not gated:
            return self.backend.matrix([rows], Linear(inputs, outputs))
        half = outputs // 2
        parts = [rows.cut(0, half), rows.cut(half, outputs)]
        return self.backend.matrix(parts, GateUpLinear(inputs, half))

    def norm(self, x: Value) -> Value:
        weight = self.backend.parameter(np.ones(x.width, np.float32))
        return self.recorder.rms_norm(x, weight, 1e-6, 0.0)

    def linear(self, x: Value, outputs: int = WIDTH, gated: bool = False) -> Value:
        return self.recorder.linear(x, self.matrix(outputs, x.width, gated), None)

    def fused(self, *passes: Callable[[Listing], None]) -> str:
        """What is left in the list, one word an instruction and its additions."""
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


def test_gates_and_ups_are_multiplied_in_the_product(layers: Layers) -> None:
    layers.recorder.gated_activation(layers.linear(layers.x, 64, gated=True), "silu")
    text = layers.fused(fusion.gate_in_products)
    assert text == "embed [50×32 F32]; gemm [64×32 F32] +Silu +gate"


def test_gates_and_ups_that_are_read_otherwise_are_refused(layers: Layers) -> None:
    _ = layers.linear(layers.x, 64, gated=True) * 2.0
    with pytest.raises(RecordingError, match="gates and ups"):
        layers.fused(fusion.gate_in_products)


def test_activations_scales_and_caps_are_done_in_the_product(layers: Layers) -> None:
    layers.recorder.activation(layers.linear(layers.x), "gelu")
    layers.recorder.soft_cap(layers.linear(layers.x) * 0.5, 30.0)
    passes = (fusion.activate_in_products, fusion.scale_in_products, fusion.cap_in_products)
    text = layers.fused(*passes)
    assert text == ("embed [50×32 F32]; gemm [32×32 F32] +GeluErf; gemm [32×32 F32] ×0.5 cap 30")


def test_an_activation_that_others_see_the_input_of_stays(layers: Layers) -> None:
    y = layers.linear(layers.x)
    _ = layers.recorder.activation(y, "gelu") + y
    assert "activate" in layers.fused(fusion.activate_in_products)


def test_residuals_are_added_in_the_product(layers: Layers) -> None:
    _ = layers.x + layers.linear(layers.x)
    text = layers.fused(fusion.add_residuals_in_products)
    assert text == "embed [50×32 F32]; gemm [32×32 F32] +residual"


def test_a_residual_that_comes_later_is_added_by_the_later_product(layers: Layers) -> None:
    one = layers.linear(layers.x)
    other = layers.linear(layers.x, 64)
    _ = one + layers.linear(other)
    text = layers.fused(fusion.add_residuals_in_products)
    assert text.count("residual") == 1
    assert text.endswith("gemm [32×64 F32] +residual")


def test_norms_are_done_behind_the_selection(layers: Layers) -> None:
    layers.recorder.select_rows(layers.norm(layers.x), WantedRows("Logits"))
    text = layers.fused(fusion.select_before_norms)
    assert text == "embed [50×32 F32]; select; norm"


def test_behind_the_last_attention_only_wanted_rows_go_on(layers: Layers) -> None:
    """What is read from before it is selected once, in front of it; everything else just runs."""
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


def test_products_share_what_is_prepared_and_normed(layers: Layers) -> None:
    normed = layers.norm(layers.x)
    layers.linear(normed)
    layers.linear(normed, 64)
    text = layers.fused(fusion.prepare_products)
    assert text == (
        "embed [50×32 F32]; prepare norm+ [32×32 F32]; gemm [32×32 F32]; gemm [64×32 F32]"
    )


def test_a_norm_that_others_read_is_done_by_itself(layers: Layers) -> None:
    normed = layers.norm(layers.x)
    _ = layers.linear(normed) + normed
    assert "; norm; prepare [32" in layers.fused(fusion.prepare_products)


def test_a_rotation_of_something_else_is_refused(layers: Layers) -> None:
    layers.recorder.rope(layers.x, Ids(by_position=True), Rope((1.0, 0.5)), 8)
    with pytest.raises(RecordingError, match="a rotation of something else"):
        layers.fused(fusion.refuse_what_is_left)


def test_gates_stand_beside_their_ups() -> None:
    """Sixteen of each a panel; the last panel's ups begin at sixteen all the same."""
    order = interleaved(20)
    assert order[:32].tolist() == [*range(16), *range(20, 36)]
    assert order[32:].tolist() == [16, 17, 18, 19, *[-1] * 12, 36, 37, 38, 39]


LLAMA_LAYER = """\
│
prepare norm+ [32×16 F32]
gemm [32×16 F32]
│
attention 2/1×8 +rope
│
prepare [16×16 F32]
gemm [16×16 F32] +residual
│
prepare norm+ [48×16 F32]
gemm [48×16 F32] +Silu +gate
│
prepare [16×24 F32]
gemm [16×24 F32] +residual
"""
# The rows that are wanted are chosen on the way to the attention: no meeting more.
LAST_LAYER = LLAMA_LAYER.replace("│\nattention", "select\n│\nattention")


def test_a_llama_layer_is_five_phases() -> None:
    """As the design has it: the program of two layers, in full."""
    expected = "ropetables\nembed [61×16 F32]\n" + LLAMA_LAYER + LAST_LAYER
    expected += "│\nselect\n│\nprepare norm+ [61×16 F32]\ngemm [61×16 F32]\nselect\nnorm"
    assert make_native(FULL, 8, 16).describe() == expected


ARCHITECTURES = ["LlamaForCausalLM", "GPTNeoXForCausalLM", "Qwen2MoeForCausalLM"]


def recorded(architecture: str) -> Listing:
    model = make_model(architecture)
    place_layers(model)
    backend = NativeBackend(NativeOptions(weights="float32", num_threads=1))
    bind(model, backend, MadeUpWeights(model))
    recorder = backend.ops
    assert isinstance(recorder, Recorder)
    return recorder.record(model)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_listing_knows_its_readers_after_all_that_was_done_to_it(architecture: str) -> None:
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


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_what_lives_at_once_has_rooms_of_its_own(architecture: str) -> None:
    """And nobody reads a room that somebody writes, unless all have met in between."""
    listing = recorded(architecture)
    fusion.fuse(listing)
    prepared = {id(i.prepared): 64 for i in listing if i.prepared is not None}
    made = lay_out(listing, prepared)
    place_barriers(listing, made)
    contents: dict[tuple[str, int], Any] = {}  # who wrote each byte of a row last
    for instruction in listing:
        for value in instruction.reads:
            if value.buffer.place == "Scratch":
                room = made.extent(value.buffer)
                for byte in range(room.offset, room.offset + room.row_bytes, 64):
                    assert contents[room.space, byte] is value.buffer, describe(listing)
        for value in instruction.writes:
            if value.buffer.place == "Scratch":
                room = made.extent(value.buffer)
                for byte in range(room.offset, room.offset + room.row_bytes, 64):
                    contents[room.space, byte] = value.buffer
    assert sum(i.barrier for i in listing) >= 5
