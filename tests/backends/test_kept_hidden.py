"""What an inner layer reads can be an output: it is what a model without the later layers gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from octavo.backends.base import ForwardResult
from octavo.backends.step import NO_ROWS, HostBatch
from octavo.models.build import bind
from octavo.models.kv_layout import place_layers
from octavo.models.llama import Llama
from tests.backends.both import BACKENDS, AnyBackend, New
from tests.backends.native.tiny import make_batch
from tests.runner.tiny import Family, RandomWeights, convolving, latent, make_spec

LAYERS = 4
FAMILIES: dict[str, Family] = {"llama": Llama, "latent": latent, "convolving": convolving}
# Rows of three sequences: some wanted twice, some as hidden states alone.
LOGITS, HIDDEN = [4, 11], [0, 4, 5, 12]


def prepared(backend: AnyBackend, family: Family, layers: int, kept: Sequence[int]) -> AnyBackend:
    model = family(make_spec((None,) * layers))
    bind(model, backend, RandomWeights())
    backend.prepare(model, place_layers(model), 16, kept)
    backend.make_cache(160)
    return backend


def computed(backend: AnyBackend, groups: int) -> ForwardResult:
    batch: HostBatch = make_batch((0, 0, 5), (1, 0, 7), (2, 0, 1), groups=groups)
    return backend.forward(
        batch._replace(
            logits_rows=np.array(LOGITS, np.int32), hidden_rows=np.array(HIDDEN, np.int32)
        )
    )


def normalised(rows: NDArray[Any]) -> NDArray[Any]:
    """Return what the last norm makes of rows; its weights are as `RandomWeights` has them."""
    weights = RandomWeights()
    weights.check({"model.norm.weight": (16,)}, ())
    weight = weights.rows("model.norm.weight").floats()[0]
    scaled: NDArray[Any] = rows / np.sqrt((rows**2).mean(-1, keepdims=True) + 1e-6) * weight
    return scaled


@pytest.mark.parametrize("new", BACKENDS.values(), ids=BACKENDS)
@pytest.mark.parametrize("family", ["llama", "latent"])
def test_a_kept_layer_reads_what_the_layers_before_it_give(new: New, family: str) -> None:
    whole = computed(prepared(new(), FAMILIES[family], LAYERS, [3, 1, 1]), 1)
    assert len(whole.kept) == 2
    for layer, kept in zip((1, 3), whole.kept, strict=True):
        shorter = computed(prepared(new(), FAMILIES[family], layer, ()), 1)
        np.testing.assert_allclose(normalised(kept), shorter.hidden, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("new", BACKENDS.values(), ids=BACKENDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_to_keep_layers_changes_no_bit(new: New, family: str) -> None:
    groups = 2 if family == "convolving" else 1
    plain = computed(prepared(new(), FAMILIES[family], LAYERS, ()), groups)
    keeping = computed(prepared(new(), FAMILIES[family], LAYERS, [0, 2]), groups)
    assert not plain.kept
    assert np.array_equal(plain.logits, keeping.logits)
    assert np.array_equal(plain.hidden, keeping.hidden)


@pytest.mark.parametrize("family", FAMILIES)
def test_both_backends_keep_the_same(family: str) -> None:
    groups = 2 if family == "convolving" else 1
    made = [
        computed(prepared(new(), FAMILIES[family], LAYERS, range(LAYERS)), groups)
        for new in BACKENDS.values()
    ]
    for one, other in zip(made[0].kept, made[1].kept, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("new", BACKENDS.values(), ids=BACKENDS)
def test_a_step_that_wants_no_hidden_states_keeps_nothing(new: New) -> None:
    backend = prepared(new(), Llama, LAYERS, [1])
    batch = make_batch((0, 0, 5))
    result = backend.forward(batch._replace(hidden_rows=NO_ROWS))
    assert [len(each) for each in result.kept] == [0]
    assert len(computed(backend, 1).kept[0]) == len(HIDDEN)
