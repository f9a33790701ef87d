"""Listings to which passes have added something: adapters, and hidden states of earlier layers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from octavo.backends.adapter_weights import AdapterSettings, AdapterWeights
from octavo.backends.adapters import adapt
from octavo.backends.step import NO_ADAPTER
from octavo.backends.torch import ops
from octavo.backends.torch.adapters import TorchAdapters
from octavo.backends.torch.attention import AdapterSlots, TorchBatch, make_buffers
from octavo.backends.torch.interpreter import Interpreter, Outputs
from octavo.backends.torch.weights import TorchMatrix
from octavo.layers import CausalLM, Linear
from octavo.program.listing import Listing
from octavo.program.operands import Adapters, Matrix
from octavo.program.passes.fusion import rewrite
from octavo.program.passes.kept_hidden import keep_hidden
from tests.backends.made_up_adapters import made_up_adapter, merged_weight
from tests.backends.torch.test_interpreter import LENGTHS, PASSES, Model
from tests.models.made_up import DECODERS

SETTINGS = AdapterSettings(slots=2, max_rank=8)
FACTORS = (1.0, -0.5)  # of what the adapters of the two slots add


def run(
    model: Model,
    listing: Listing,
    slots: tuple[int, int] | None = None,
    adapters: AdapterSlots | None = None,
) -> Outputs:
    """Run both sequences in one step, each with an adapter, and ask for everything."""
    buffers = make_buffers(model.layout, 64, 4, model.backend.dtype)
    rows = np.arange(sum(LENGTHS), dtype=np.int32)
    host = model.batch((0, 0), LENGTHS)._replace(logits_rows=rows, hidden_rows=rows[1:7])
    if slots is not None:
        host = host._replace(adapters=np.repeat(np.array(slots, np.int32), LENGTHS))
    with torch.inference_mode():
        return Interpreter(listing).run(TorchBatch.of(host, buffers, adapters))


def with_adapters(model: Model) -> tuple[Listing, list[Adapters]]:
    listing = model.record()
    return listing, adapt(listing, model.model, SETTINGS)


def two_adapters(model: Model) -> list[AdapterWeights]:
    return [made_up_adapter(model.model, seed) for seed in (1, 2)]


def in_slots(
    model: Model, adapters: list[AdapterWeights], products: list[Adapters]
) -> AdapterSlots:
    made = [
        TorchAdapters(model.model, products, model.backend.dtype).make(each) for each in adapters
    ]
    return dict(enumerate(zip(made, FACTORS, strict=True)))


def merged(model: Model, adapter: AdapterWeights, factor: float) -> Listing:
    """Record the model with weights that contain an adapter: W + scale · B A."""
    weights: dict[Matrix | None, TorchMatrix] = {}
    table: TorchMatrix = model.model.embed.weight
    (pair,) = adapter.pairs["embed"]
    assert pair is not None
    change = np.float32(pair.scale * factor) * (pair.up @ pair.down).T
    changed = replace(table, values=torch.from_numpy(table.values.numpy() + change))
    for path, layer in model.model.walk():
        if isinstance(layer, Linear) and path in adapter.pairs:
            matrix: TorchMatrix = layer.weight
            values = merged_weight(matrix.values.numpy(), layer, adapter.pairs[path], factor)
            weights[matrix] = replace(matrix, values=torch.from_numpy(values))
    listing = model.record()
    for instruction in listing:
        if instruction.op == "Gemm":
            instruction.matrix = weights.get(instruction.matrix, instruction.matrix)
        elif instruction.op == "Embed" and instruction.matrix is table:
            instruction.matrix = changed
    return listing


@pytest.mark.parametrize("architecture", DECODERS)
def test_each_row_is_computed_with_the_weights_of_its_adapter(architecture: str) -> None:
    """One step has sequences with different adapters, as if each model had been merged."""
    model = Model(architecture)
    adapters = two_adapters(model)
    listing, products = with_adapters(model)
    found = run(model, listing, (1, 0), in_slots(model, adapters, products)).logits
    first = run(model, merged(model, adapters[1], FACTORS[1])).logits[: LENGTHS[0]]
    second = run(model, merged(model, adapters[0], FACTORS[0])).logits[LENGTHS[0] :]
    expected = torch.cat((first, second))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    plain = run(model, model.record()).logits
    assert (expected - plain).abs().max() > 100 * (found - expected).abs().max()


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen2MoeForCausalLM"])
def test_adapters_change_no_bit_of_rows_without_one(architecture: str) -> None:
    """The other sequence of the step has an adapter, or there is none at all."""
    model = Model(architecture)
    listing, products = with_adapters(model)
    slots = in_slots(model, two_adapters(model), products)
    plain = run(model, model.record()).logits
    assert torch.equal(run(model, listing).logits, plain)
    mixed = run(model, listing, (NO_ADAPTER, 1), slots).logits
    assert torch.equal(mixed[: LENGTHS[0]], plain[: LENGTHS[0]])
    alone = run(model, listing, (0, 1), slots).logits
    assert torch.equal(mixed[LENGTHS[0] :], alone[LENGTHS[0] :])


@pytest.mark.parametrize("architecture", DECODERS)
def test_passes_behind_adapters_change_no_bit(architecture: str) -> None:
    model = Model(architecture)
    listing, products = with_adapters(model)
    slots = in_slots(model, two_adapters(model), products)
    expected = run(model, listing, (1, NO_ADAPTER), slots)
    fused, _ = with_adapters(model)
    rewrite(fused, PASSES)
    found = run(model, fused, (1, NO_ADAPTER), slots)
    assert torch.equal(found.logits, expected.logits)
    assert torch.equal(found.hidden, expected.hidden)


@pytest.mark.parametrize("architecture", DECODERS)
def test_what_a_layer_reads_is_what_a_shorter_model_ends_with(architecture: str) -> None:
    """The second layer's input, normalised, is the hidden state of the model's first layer."""
    model = Model(architecture)
    kept = model.record()
    keep_hidden(kept, [0, 1])
    outputs = run(model, kept)
    rewrite(kept, PASSES)
    fused = run(model, kept)
    plain = run(model, model.record())
    for found in (outputs, fused):
        assert torch.equal(found.logits, plain.logits)
        assert len(found.kept) == 2
    final = next(i.norm for i in reversed(model.record().instructions) if i.norm is not None)
    decoder = model.model
    assert isinstance(decoder, CausalLM)
    whole = decoder.blocks
    for count in (0, 1):
        decoder.blocks = whole[:count]
        shorter = run(model, model.record()).hidden
        for found in (outputs, fused):
            assert torch.equal(ops.norm(found.kept[count], final), shorter)
