"""Every family gives the reference's very bits on the fake device, whole and in chunks."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from octavo.backends.base import ForwardResult, KVLayout
from octavo.backends.cuda.backend import CudaBackend
from octavo.backends.cuda.fake.accelerator import FakeAccelerator
from octavo.backends.step import HostBatch
from octavo.backends.torch.backend import TorchBackend
from octavo.layers import Model
from octavo.models.build import bind
from octavo.models.config_reader import Config
from octavo.models.kv_layout import place_layers
from octavo.models.registry import FAMILIES, family_of
from tests.backends.torch.test_interpreter import MORE
from tests.models.made_up import CONFIGS, DECODERS, ENCODER_CONFIGS, SIZES, MadeUpWeights

LENGTHS = (75, 11)  # one is longer than a tile of keys


def declared(architecture: str) -> Model:
    """Declare a family's small model, which takes the longer text."""
    longest = {"max_position_embeddings": 128}
    if architecture in CONFIGS:
        patch = {**CONFIGS[architecture], "n_positions": 128}
    elif architecture == "Gemma3ForConditionalGeneration":
        patch = {"text_config": {**SIZES, **MORE, **longest}}
    else:
        patch = {**MORE, **longest}
    values = {**SIZES, **ENCODER_CONFIGS.get(architecture, patch), "architectures": [architecture]}
    family = family_of(architecture)
    return family(family.read(Config({**values, **longest})))


def results(
    architecture: str,
    backend: TorchBackend,
    *,
    splits: bool,
    lengths: tuple[int, int] = LENGTHS,
) -> list[ForwardResult]:
    """Compute two sequences, each in two steps if they are split."""
    model = declared(architecture)
    layout = place_layers(model)
    bind(model, backend, MadeUpWeights(model))
    backend.prepare(model, layout, 4)
    backend.make_cache(64 * len(layout.windows))
    return computed(backend, layout, splits=splits, lengths=lengths)


def computed(
    backend: TorchBackend,
    layout: KVLayout,
    *,
    splits: bool,
    lengths: tuple[int, int] = LENGTHS,
) -> list[ForwardResult]:
    """Compute the same with a backend that has the model, and an empty cache."""
    tables = np.arange(1, 41, dtype=np.int32).reshape(2, 20)
    of_groups = tuple(tables + 40 * group for group in range(len(layout.windows)))
    halves = [(lengths[0] // 2, lengths[1] // 2)] if splits else []
    borders = [(0, 0), *halves, lengths]
    found = []
    for starts, stops in pairwise(borders):
        spans = [np.arange(*span, dtype=np.int32) for span in zip(starts, stops, strict=True)]
        positions = np.concatenate(spans)
        rows = np.arange(len(positions), dtype=np.int32)
        batch = HostBatch(
            positions * 7 % 89 + 3,
            positions,
            np.cumsum([0, *map(len, spans)], dtype=np.int32),
            of_groups,
            rows,
            rows,
        )
        result = backend.forward(batch)
        found.append(ForwardResult(result.logits.copy(), result.hidden.copy()))
    return found


@pytest.mark.slow
@pytest.mark.sample(4)
@pytest.mark.parametrize("architecture", FAMILIES)
def test_a_family_has_the_same_bits_on_the_device(architecture: str) -> None:
    splits = architecture in DECODERS
    expected = results(architecture, TorchBackend(), splits=splits)
    found = results(architecture, CudaBackend(FakeAccelerator()), splits=splits)
    assert all(np.isfinite(each.hidden).all() for each in expected)
    for mine, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine.logits, other.logits)
        np.testing.assert_array_equal(mine.hidden, other.hidden)
