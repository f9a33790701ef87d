"""Listings to which passes have added something: adapters, and hidden states of earlier layers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from octavo.backends.step import NO_ADAPTER
from octavo.backends.torch import ops
from octavo.backends.torch.attention import TorchBatch, make_buffers
from octavo.backends.torch.interpreter import Interpreter, Outputs
from octavo.backends.torch.weights import TorchMatrix
from octavo.layers import CausalLM, Linear
from octavo.program.listing import Listing
from octavo.program.operands import Adapters, Matrix
from octavo.program.passes.adapters import add_adapters
from octavo.program.passes.fusion import rewrite
from octavo.program.passes.kept_hidden import keep_hidden
from tests.backends.torch.test_interpreter import LENGTHS, PASSES, Model
from tests.models.made_up import DECODERS

RANK = 3


def run(model: Model, listing: Listing, adapters: tuple[int, int] | None = None) -> Outputs:
    """Run both sequences in one step, each with an adapter, and ask for everything."""
    buffers = make_buffers(model.layout, 64, 4, model.backend.dtype)
    rows = np.arange(sum(LENGTHS), dtype=np.int32)
    host = model.batch((0, 0), LENGTHS)._replace(logits_rows=rows, hidden_rows=rows[1:7])
    batch = TorchBatch.of(host, buffers)
    if adapters is not None:
        batch.adapters = torch.tensor(adapters).repeat_interleave(torch.tensor(LENGTHS))
    with torch.inference_mode():
        return Interpreter(listing).run(batch)


def some(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 0.3


def targets(model: Model) -> list[tuple[TorchMatrix, Adapters]]:
    """Make two adapters for every projection of every layer."""
    found = []
    for seed, (path, layer) in enumerate(model.model.walk()):
        if isinstance(layer, Linear) and path.startswith("blocks"):
            matrix: TorchMatrix = layer.weight
            down = some(2, RANK, matrix.inputs, seed=seed)
            up = some(2, matrix.outputs, RANK, seed=-seed)
            found.append((matrix, Adapters(down, up, RANK)))
    return found


def with_adapters(model: Model, adapted: list[tuple[TorchMatrix, Adapters]]) -> Listing:
    listing = model.record()
    add_adapters(listing, adapted)
    return listing


def merged(model: Model, adapted: list[tuple[TorchMatrix, Adapters]], number: int) -> Listing:
    """Record the model with weights that contain an adapter: W + B A."""
    weights: dict[Matrix | None, TorchMatrix] = {}
    for matrix, adapters in adapted:
        added = adapters.up[number] @ adapters.down[number]
        weights[matrix] = replace(matrix, values=matrix.values + added)
    listing = model.record()
    for instruction in listing:
        if instruction.op == "Gemm":
            instruction.matrix = weights.get(instruction.matrix, instruction.matrix)
    return listing


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen2MoeForCausalLM"])
def test_each_row_is_computed_with_the_weights_of_its_adapter(architecture: str) -> None:
    """One step has sequences with different adapters, as if each model had been merged."""
    model = Model(architecture)
    adapted = targets(model)
    found = run(model, with_adapters(model, adapted), (1, 0)).logits
    first = run(model, merged(model, adapted, 1)).logits[: LENGTHS[0]]
    second = run(model, merged(model, adapted, 0)).logits[LENGTHS[0] :]
    torch.testing.assert_close(found, torch.cat((first, second)), rtol=1e-4, atol=1e-4)
    plain = run(model, model.record()).logits
    assert (found - plain).abs().max() > 0.1


def test_adapters_change_no_bit_of_rows_without_one() -> None:
    """The other sequence of the step has an adapter, or there is none at all."""
    model = Model("LlamaForCausalLM")
    listing = with_adapters(model, targets(model))
    plain = run(model, model.record()).logits
    assert torch.equal(run(model, listing).logits, plain)
    mixed = run(model, listing, (NO_ADAPTER, 1)).logits
    assert torch.equal(mixed[: LENGTHS[0]], plain[: LENGTHS[0]])
    alone = run(model, listing, (0, 1)).logits
    assert torch.equal(mixed[LENGTHS[0] :], alone[LENGTHS[0] :])


def test_fusion_after_adapters_changes_no_bit() -> None:
    model = Model("LlamaForCausalLM")
    adapted = targets(model)
    fused = with_adapters(model, adapted)
    rewrite(fused, PASSES)
    expected = run(model, with_adapters(model, adapted), (1, NO_ADAPTER))
    found = run(model, fused, (1, NO_ADAPTER))
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
