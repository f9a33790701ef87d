"""A listing with collectives computes the same before and after fusion, on every rank."""

from __future__ import annotations

import pytest
import torch

from octavo.backends.torch.attention import TorchBatch, make_buffers
from octavo.backends.torch.backend import TorchBackend
from octavo.backends.torch.interpreter import Interpreter
from octavo.distributed.communicator import ThreadCommunicator, ThreadGroup
from octavo.models.build import bind
from octavo.models.kv_layout import place_layers
from octavo.program.passes.collectives import insert_collectives
from octavo.program.passes.fusion import FUSION, Pass, rewrite
from octavo.program.passes.prepare import norm_while_preparing, prepare_products
from octavo.program.recorder import record
from tests.models.made_up import CONFIGS, MadeUpWeights, make_model
from tests.models.ranks import BLOCK_SIZE, NUM_BLOCKS, two_sequences

PASSES = (*FUSION, prepare_products, norm_while_preparing)


@pytest.mark.parametrize("architecture", CONFIGS)
def test_fusion_after_collectives_changes_no_bit(architecture: str) -> None:
    whole = make_model(architecture)
    weights = MadeUpWeights(whole)

    def work(communicator: ThreadCommunicator) -> list[torch.Tensor]:
        torch.set_num_threads(1)
        model, backend = make_model(architecture), TorchBackend()
        bind(model, backend, weights, communicator.context)
        layout = place_layers(model)

        def logits(passes: tuple[Pass, ...]) -> torch.Tensor:
            listing = record(model)
            insert_collectives(listing, model, communicator.context)
            rewrite(listing, passes)
            buffers = make_buffers(layout, NUM_BLOCKS, BLOCK_SIZE, torch.float32)
            batch = TorchBatch.of(two_sequences(model, layout), buffers)
            return Interpreter(listing, communicator).run(batch).logits

        with torch.inference_mode():
            return [logits(()), logits(PASSES)]

    results = ThreadGroup(2).run(work)
    for plain, fused in results:
        assert plain.shape[1] == whole.spec.vocabulary
        assert torch.equal(plain, fused)
        assert torch.equal(plain, results[0][0]), "ranks differ"
