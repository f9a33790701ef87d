"""Mixtures of experts by kernels on the fake device: in graphs too, for any choice."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec import structs

from octavo.backends.cuda.backend import CudaBackend
from octavo.backends.cuda.fake.accelerator import FakeAccelerator, FakeGraph
from octavo.backends.cuda.kernels import experts
from octavo.backends.torch.backend import TorchBackend
from octavo.layers import ExpertSpec, ModelSpec, Routing
from octavo.models.build import bind
from octavo.models.kv_layout import place_layers
from octavo.models.mixture import Mixture
from tests.backends.cuda.on_fake import accelerator_of
from tests.backends.cuda.steps import rows_of
from tests.backends.cuda.test_eight_bits import FORMATS, SIZES, logits_of
from tests.backends.cuda.test_graphs import outputs_of
from tests.backends.cuda.test_steps import (
    FILTERED,
    GREEDY,
    PROMPTS,
    TOLD,
    WARM,
    assert_equal,
    draws_of,
)
from tests.gpu_blind.cases import BF16, FP32
from tests.gpu_blind.expert_cases import Mixed, chosen_by, mixture_case, one_row_in_batches
from tests.gpu_blind.homes import Home, interpret
from tests.gpu_blind.interpreted import sanitizer
from tests.gpu_blind.interpreted.test_models import SMALL
from tests.gpu_blind.near import assert_near
from tests.models.made_up import EXPERTS, MadeUpWeights
from tests.quant.made_up import write_pair
from tests.runner.tiny import FULL, make_spec

pytestmark = pytest.mark.slow
KINDS = (WARM, GREEDY, TOLD, FILTERED)
COUNTS = [4, 1, 3]
SHARED = ExpertSpec(5, 24, Routing(2, normalise=True), shared_ffn=8, shared_gate=True)
LAUNCHES = ["sort_pairs", "gate_pairs", "weigh_pairs", "add_pairs"]


def spec() -> ModelSpec:
    """Return the small model's shape, with experts and one that all rows pass in each layer."""
    return structs.replace(make_spec(FULL), experts=(SHARED,) * len(FULL))


def prepared(backend: TorchBackend) -> TorchBackend:
    """Give a backend the model and a cache; capture its largest graph if it has graphs."""
    model = Mixture(spec())
    bind(model, backend, MadeUpWeights(model))
    backend.prepare(model, place_layers(model), 4)
    if isinstance(backend, CudaBackend):
        with sanitizer.paused():
            backend.reserve(SMALL, 0)
    backend.make_cache(64)
    return backend


def by_kernels(*, captures: bool = False) -> CudaBackend:
    backend = CudaBackend(FakeAccelerator(), has_kernels=True, captures=captures)
    prepared(backend)
    return backend


def test_replayed_steps_have_the_tokens_of_the_reference_and_of_kernels_one_by_one() -> None:
    replaying, usual = by_kernels(captures=True), by_kernels()
    reference = prepared(TorchBackend())
    expected = outputs_of(reference, KINDS, COUNTS)
    one_by_one = outputs_of(usual, KINDS, COUNTS)
    found = outputs_of(replaying, KINDS, COUNTS)
    for one, other, meant in zip(found, one_by_one, expected, strict=True):
        assert_equal(one, other)
        assert one.tokens == meant.tokens
    notes = [note.what for note in accelerator_of(replaying).log]
    assert notes.count("replay") == len(COUNTS)


def test_a_layer_has_four_launches_for_its_experts_and_nothing_waits() -> None:
    backend = by_kernels()
    accelerator_of(backend).log.clear()
    backend.step(rows_of(backend, *PROMPTS), draws_of(*(WARM,) * 4)).collect()
    notes = accelerator_of(backend).log
    launched = Counter(note.detail for note in notes if note.what == "launch")
    assert all(launched[each] == len(FULL) for each in LAUNCHES)
    assert [note.what for note in notes if note.is_in_step].count("fetch") == 1


def test_a_graph_has_the_same_four_launches_for_any_choice() -> None:
    backend = by_kernels(captures=True)
    assert backend._graphs is not None
    (graph,) = backend._graphs.captured.values()
    assert isinstance(graph, FakeGraph)
    of_experts = [each for each in graph.names if each in LAUNCHES]
    assert of_experts == LAUNCHES * len(FULL)
    # Attention's two products, the router's, and three of the expert that all rows pass.
    first, second = (n for n, name in enumerate(graph.names) if name == "attend_chunks")
    assert graph.names[first:second].count("aten.mm") <= 6


def test_nothing_is_compiled_once_an_engine_serves() -> None:
    backend = by_kernels(captures=True)
    forms = accelerator_of(backend).forms
    before = set(forms)
    outputs_of(backend, KINDS, [4, 1])
    assert set(LAUNCHES) <= {str(name) for name, *_ in before}
    assert forms == before


def test_a_row_has_the_same_bits_alone_and_among_others() -> None:
    alone = by_kernels().forward(rows_of(by_kernels(), PROMPTS[1])).logits[-1]
    backend = by_kernels()
    among = backend.forward(rows_of(backend, *PROMPTS, PROMPTS[1])).logits
    np.testing.assert_array_equal(among[-1], alone)
    np.testing.assert_array_equal(among[1], alone)


@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_outputs_of_a_row_have_the_same_bits_at_every_place(dtype: torch.dtype) -> None:
    first, *others = one_row_in_batches(dtype, Home(interpret))
    assert all(torch.equal(first, each) for each in others)


@pytest.mark.parametrize("absent", [(), (0, 3, 39)])
def test_pairs_are_sorted_by_expert_and_those_of_no_row_have_no_tile(
    absent: tuple[int, ...],
) -> None:
    shape = Mixed(40, 6, 3, popular=35)
    _, chosen = chosen_by(shape, FP32)
    marks = torch.arange(shape.rows)
    marks[list(absent)] = -1
    found = experts.sort(chosen, shape.experts, Home(interpret), marks if absent else None)
    flat = torch.where(marks[:, None] < 0, shape.experts, chosen).flatten()
    count = (shape.rows - len(absent)) * shape.top_k
    expected = flat.argsort(stable=True)[:count]
    assert found.order[:count].tolist() == expected.tolist()
    places = torch.full((flat.numel(),), -1)
    places[expected] = torch.arange(count)
    assert found.places.tolist() == places.tolist()
    covered: list[int] = []
    for expert, first, size in found.tiles.tolist():
        assert 0 <= size <= experts.TILE
        assert all(flat[pair] == expert for pair in expected[first : first + size])
        covered += range(first, first + size)
    assert covered == list(range(count))


def test_weights_of_eight_bits_stay_with_torchs_operations_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sizes = {**SIZES, **EXPERTS, "moe_intermediate_size": 64, "head_dim": 64}
    opened = write_pair(tmp_path, FORMATS["rows"], "Qwen3MoeForCausalLM", **sizes).stored
    home = FakeAccelerator()
    with caplog.at_level(logging.INFO):
        logits_of(opened, CudaBackend(home, has_kernels=True))
    assert [each for each in caplog.messages if each.startswith("experts: ")]
    launched = {note.detail for note in home.log if note.what == "launch"}
    assert "attend_rows" in launched
    assert launched.isdisjoint(LAUNCHES)


@pytest.mark.parametrize("activation", ["GeluTanh", "GeluErf", "Relu"])
def test_other_activations_are_those_of_gates(activation: str) -> None:
    case = mixture_case(BF16, activation, Mixed(rows=2, hidden=16, ffn=8, activation=activation))
    assert_near(case.compute(Home(interpret)), case)
