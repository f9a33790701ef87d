"""Layers are grouped by what they keep, whatever kind that is."""

from __future__ import annotations

import pytest

from octavo.backends.base import KVLayers
from octavo.layers import CausalLM, KVLayer, KVSpec, Model, Module
from octavo.models.kv_layout import place_layers
from tests.models.made_up import make_model

FULL, LATENT = KVSpec("full", 2, 8), KVSpec("latent", 1, 576)
STATE = KVSpec("state", 4, 128, checkpoint_blocks=8)


class Layer(KVLayer):
    """A layer that declares what it keeps, and computes nothing."""

    def __init__(self, spec: KVSpec) -> None:
        self.spec = spec

    @property
    def kv_spec(self) -> KVSpec:
        return self.spec


def model_of(*specs: KVSpec) -> CausalLM:
    """Return a model of nothing but these layers."""
    model = CausalLM.__new__(CausalLM)
    Module.__setattr__(model, "layers", [Layer(spec) for spec in specs])
    return model


def places(model: Model) -> list[tuple[int, int]]:
    return [layer.place for _, layer in model.walk() if isinstance(layer, KVLayer)]


def test_a_model_whose_layers_are_alike_is_one_group() -> None:
    model = make_model("LlamaForCausalLM")
    assert place_layers(model).groups == (KVLayers(KVSpec("full", 2, 8), 2),)
    assert places(model) == [(0, 0), (0, 1)]


def test_layers_of_one_shape_form_groups_of_nearly_equal_size() -> None:
    window = KVSpec("full", 2, 8, window=32)
    model = model_of(window, window, FULL, window, window, FULL, window)
    assert place_layers(model).groups == (
        KVLayers(window, 2),
        KVLayers(window, 2),
        KVLayers(window, 1),
        KVLayers(FULL, 2),
    )


def test_each_kind_is_a_group_of_its_own_and_other_shapes_do_not_split_it() -> None:
    model = model_of(STATE, STATE, STATE, LATENT)
    assert place_layers(model).groups == (KVLayers(STATE, 3), KVLayers(LATENT, 1))
    assert places(model) == [(0, 0), (0, 1), (0, 2), (1, 0)]


def test_a_drafter_has_groups_of_its_own() -> None:
    model, drafter = model_of(FULL, FULL), model_of(FULL)
    layout = place_layers(model, drafter)
    assert layout.groups == (KVLayers(FULL, 2), KVLayers(FULL, 1, "drafter"))
    assert (places(model), places(drafter)) == ([(0, 0), (0, 1)], [(1, 0)])


def test_layers_that_keep_nothing_have_no_group() -> None:
    nothing = KVSpec("none")
    assert place_layers(model_of(nothing, FULL)).groups == (KVLayers(FULL, 1),)
    assert place_layers(model_of(nothing)).groups == (KVLayers(nothing, 1),)


@pytest.mark.parametrize(("spec", "vectors"), [(FULL, 4 * 16), (LATENT, 16), (STATE, 4)])
def test_a_block_has_so_many_vectors(spec: KVSpec, vectors: int) -> None:
    assert spec.block_vectors(16) == vectors
