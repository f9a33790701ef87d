"""Ranks with weights of FP8: each keeps its part in eight bits, whatever their scales are for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from octavo.backends.cuda.backend import CudaBackend
from octavo.backends.cuda.fake.accelerator import FakeAccelerator
from octavo.backends.torch.backend import TorchBackend
from octavo.distributed.communicator import ThreadCommunicator, ThreadGroup
from octavo.distributed.context import ParallelContext
from octavo.layers import Linear, Model
from octavo.layers.moe import ExpertMatrices
from octavo.models.build import bind
from octavo.models.kv_layout import place_layers
from octavo.models.load import OpenedModel
from octavo.models.registry import family_of
from octavo.quant.shard import ShardError
from tests.backends.cuda.test_eight_bits import FORMATS, SIZES
from tests.backends.cuda.two_devices import RANKS, two_devices
from tests.models.made_up import EXPERTS
from tests.models.ranks import two_sequences
from tests.quant.made_up import write_pair

DIVISIBLE: dict[str, Any] = {**SIZES, "intermediate_size": 128, "head_dim": 64}
MIXTURE: dict[str, Any] = {**DIVISIBLE, **EXPERTS, "moe_intermediate_size": 64}


def declared(opened: OpenedModel) -> Model:
    return family_of(opened.architecture)(opened.spec)


def of_references_ranks(opened: OpenedModel) -> np.ndarray:
    """Return the logits that two ranks of the reference compute."""

    def work(communicator: ThreadCommunicator) -> np.ndarray:
        torch.set_num_threads(1)
        model, backend = declared(opened), TorchBackend(communicator=communicator)
        bind(model, backend, opened.weights, communicator.context)
        layout = place_layers(model)
        backend.prepare(model, layout, 4)
        backend.make_cache(64)
        return backend.forward(two_sequences(model, layout)).logits

    return ThreadGroup(RANKS).run(work)[0]


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen3MoeForCausalLM"])
@pytest.mark.parametrize("name", FORMATS)
def test_two_devices_have_the_bits_of_the_references_ranks(
    name: str, architecture: str, tmp_path: Path
) -> None:
    """A rank reads the scales of its own rows and inputs, and makes no floats to keep."""
    sizes = MIXTURE if "Moe" in architecture else DIVISIBLE
    opened = write_pair(tmp_path, FORMATS[name], architecture, **sizes).stored
    models: list[Model] = []

    def declare() -> Model:
        models.append(declared(opened))
        return models[-1]

    backend = two_devices(declare, lambda model: opened.weights, 4, 64)
    layout = place_layers(declared(opened))
    found = backend.forward(two_sequences(declared(opened), layout)).logits
    np.testing.assert_array_equal(found, of_references_ranks(opened))
    for model in models:
        kept = [each.weight for _, each in model.walk() if isinstance(each, Linear)]
        for _, each in model.walk():
            if isinstance(each, ExpertMatrices):
                kept += [each.gate_up_weight, each.down_weight]
        coded = [each for each in kept if each.scales is not None]
        assert len(coded) == 2 * 4
        assert {each.values.dtype for each in coded} == {torch.float8_e4m3fn}
        assert {each.kind for each in coded} == {"float"}


def test_a_border_within_a_block_of_inputs_is_refused(tmp_path: Path) -> None:
    opened = write_pair(tmp_path, FORMATS["block"], **{**DIVISIBLE, "intermediate_size": 96}).stored
    model, backend = declared(opened), CudaBackend(FakeAccelerator())
    with pytest.raises(ShardError, match=r"down_proj.*0\.\.48 of 96 cut a group of 32"):
        bind(model, backend, opened.weights, ParallelContext(0, RANKS))
