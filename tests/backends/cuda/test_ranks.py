"""Two fake devices compute what one computes, and what two ranks of the reference compute."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from octavo.backends.base import BackendEndedError
from octavo.backends.cuda.backend import CudaBackend
from octavo.backends.cuda.fake.accelerator import FakeAccelerator
from octavo.backends.cuda.ranks import LeadingBackend
from octavo.backends.step import LAST_SAMPLE, Draws
from octavo.backends.torch.backend import TorchBackend
from octavo.distributed.communicator import ThreadCommunicator, ThreadGroup
from octavo.distributed.context import ParallelContext
from octavo.models.build import bind
from octavo.models.kv_layout import place_layers
from octavo.models.llama import Llama
from octavo.models.registry import FAMILIES
from octavo.quant.shard import ShardError
from tests.backends.cuda.on_fake import accelerator_of
from tests.backends.cuda.test_families import computed, declared
from tests.backends.cuda.test_graphs import BLOCKS, COUNTS, KINDS, MIXED, decoded, outputs_of
from tests.backends.cuda.test_steps import PROMPTS
from tests.backends.cuda.two_devices import RANKS, even, make_two, two_capturing, two_devices
from tests.models.made_up import DECODERS, MadeUpWeights
from tests.runner.test_worlds import run_world
from tests.runner.tiny import FULL, Family, Mixed, RandomWeights, convolving, latent, make_groups

BLOCK_SIZE = 4
# What ranks cannot divide, by what is said of it.
REFUSED = dict.fromkeys(
    ("Olmo2ForCausalLM", "Olmo3ForCausalLM", "OlmoeForCausalLM"), "all its heads together"
)


def reference_ranks(architecture: str, *, splits: bool) -> Any:
    """Return what the first of two ranks of the reference computes."""

    def work(communicator: ThreadCommunicator) -> Any:
        torch.set_num_threads(1)
        model, backend = declared(architecture), TorchBackend(communicator=communicator)
        bind(model, backend, MadeUpWeights(declared(architecture)), communicator.context)
        layout = place_layers(model)  # of what a rank keeps
        backend.prepare(model, layout, BLOCK_SIZE)
        backend.make_cache(64 * len(layout.windows))
        return computed(backend, layout, splits=splits)

    return ThreadGroup(RANKS).run(work)[0]


@pytest.mark.slow
@pytest.mark.sample(6)
@pytest.mark.parametrize("architecture", FAMILIES)
def test_a_family_has_the_bits_of_the_references_ranks(architecture: str) -> None:
    """Results are near those of one device; what ranks cannot divide is refused by name."""
    splits = architecture in DECODERS
    if architecture in REFUSED:
        model, weights = declared(architecture), MadeUpWeights(declared(architecture))
        with pytest.raises(ShardError, match=REFUSED[architecture]):
            bind(model, CudaBackend(FakeAccelerator()), weights, ParallelContext(0, RANKS))
        return
    expected = reference_ranks(architecture, splits=splits)
    backend, layout = devices(architecture)
    found = computed(backend, layout, splits=splits)
    alone = CudaBackend(FakeAccelerator())
    model = declared(architecture)
    bind(model, alone, MadeUpWeights(model))
    alone.prepare(model, place_layers(model), BLOCK_SIZE)
    alone.make_cache(64 * len(layout.windows))
    for mine, other, one in zip(
        found, expected, computed(alone, layout, splits=splits), strict=True
    ):
        for name in ("logits", "hidden"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(other, name))
            near = getattr(one, name)
            most = np.abs(near).max(initial=1.0)
            np.testing.assert_allclose(getattr(mine, name), near, rtol=0, atol=1e-4 * most)
        if one.logits.size:
            np.testing.assert_array_equal(mine.logits.argmax(-1), one.logits.argmax(-1))


def devices(architecture: str) -> Any:
    """Make two devices with a family's small model; return the first, and the whole layout."""
    layout = place_layers(declared(architecture))
    made = two_devices(
        lambda: declared(architecture),
        lambda model: MadeUpWeights(declared(architecture)),
        BLOCK_SIZE,
        64 * len(layout.windows),
    )
    return made, layout


FAMILIES_OF_WORLDS: dict[str, Family] = {
    "llama": Llama,
    "mixed": Mixed,
    "latent": latent,
    "convolving": convolving,
}


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", range(60, 66))
@pytest.mark.parametrize("name", FAMILIES_OF_WORLDS)
def test_worlds_hold_on_two_devices(name: str, seed: int) -> None:
    """Chunks, preemptions, cached prefixes, forks, drafts and crashes change no output.

    The expected output of a request is that of a pass over it alone, on two devices of its own.
    """
    family = FAMILIES_OF_WORLDS[name]
    run_world(seed, partial(make_two, family=family), partial(make_groups, family=family))


def one_device() -> CudaBackend:
    """Make one device with the model of `two_capturing`."""
    model, backend = Llama(even(FULL)), CudaBackend(FakeAccelerator())
    bind(model, backend, RandomWeights())
    backend.prepare(model, place_layers(model), BLOCK_SIZE)
    backend.make_cache(BLOCKS)
    return backend


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [KINDS, MIXED], ids=("plain", "mixed"))
def test_replayed_steps_have_the_tokens_of_operations(kinds: Sequence[Any]) -> None:
    """Each rank replays, and the further one takes the tokens that the first one has drawn."""
    replaying, usual = two_capturing(FULL, BLOCKS, BLOCK_SIZE), one_device()
    found, expected = (outputs_of(each, kinds, COUNTS) for each in (replaying, usual))
    assert [each.tokens for each in found] == [each.tokens for each in expected]
    notes = [note.what for note in accelerator_of(replaying).log]
    assert notes.count("replay") == len(COUNTS)


@pytest.mark.slow
def test_steps_continue_each_other_on_both_devices() -> None:
    """No rank's host has the tokens of the steps in flight."""
    results = []
    for backend in (two_capturing(FULL, BLOCKS, BLOCK_SIZE), one_device()):
        outputs = outputs_of(backend, KINDS, [4])
        tokens = [each.tokens for each in outputs]
        last = [each[-1] for each in tokens[-1]]
        ends = [len(prompt) + 1 for prompt in PROMPTS]
        slots = np.arange(4, dtype=np.int32)
        draws = Draws((), (), slots, slots)
        steps = []
        for _ in range(4):
            batch = decoded(backend, last, ends)
            known = batch._replace(token_ids=np.full(4, LAST_SAMPLE, np.int32))
            steps.append(backend.step(known, draws))
            ends = [end + 1 for end in ends]
        tokens += [step.collect().tokens for step in steps]
        assert (backend._steady is not None) == isinstance(backend, LeadingBackend)
        results.append(tokens)
    assert results[0] == results[1]


def test_the_end_of_a_rank_ends_the_step() -> None:
    made, layout = devices("LlamaForCausalLM")
    made._links[0].connection.shutdown(socket.SHUT_RDWR)
    made.communicator.end("rank 1 has ended: its process was ended by SIGKILL")
    with pytest.raises(BackendEndedError, match="rank 1 has ended: its process"):
        computed(made, layout, splits=False)
