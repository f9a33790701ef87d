"""Ranks' shards are slices of the whole, and together they compute what the whole computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.backends.base import Floats
from octavo.backends.step import HostBatch
from octavo.backends.torch.backend import TorchBackend
from octavo.distributed.context import ParallelContext
from octavo.layers import CausalLM
from octavo.models.build import assemble, bind, find_needs
from octavo.models.kv_layout import place_layers
from octavo.quant.compose import ShardError
from tests.models.made_up import CONFIGS, EXPERTS, MadeUpWeights, make_model
from tests.models.ranks import bind_ranks, run_ranks

RANKS = (1, 2, 4)


def assembled(
    model: CausalLM, weights: MadeUpWeights, context: ParallelContext
) -> dict[str, Floats]:
    """Assemble every tensor of a rank, by our own name."""
    paths = {id(module): path for path, module in model.walk()}
    return {
        f"{paths[id(need.module)]}.{need.tensor}": assemble(need, weights.read, context)
        for need in find_needs(model, weights.shapes())
    }


def heads_of(whole: Floats, counts: tuple[int, ...], rank: int, ranks: int) -> Floats:
    """Return a rank's queries, keys and values, given the heads of each, computed by hand."""
    dim = len(whole) // sum(counts)
    kept: list[int] = []
    begin = 0
    for count in counts:
        first = rank * count // ranks
        last = max(first + 1, (rank + 1) * count // ranks)
        kept += range((begin + first) * dim, (begin + last) * dim)
        begin += count
    return whole[kept]


def rows_of(whole: Floats, rank: int, ranks: int) -> Floats:
    return np.split(whole, ranks)[rank]


def columns_of(whole: Floats, rank: int, ranks: int) -> Floats:
    return np.split(whole, ranks, axis=-1)[rank]


def halves_of(whole: Floats, rank: int, ranks: int, axis: int = 0) -> Floats:
    """Return a rank's part of gate and up, which follow each other."""
    return np.concatenate(
        [np.split(half, ranks, axis)[rank] for half in np.split(whole, 2, axis)], axis
    )


def first_only(whole: Floats, rank: int, ranks: int) -> Floats:
    return np.zeros_like(whole) if rank else whole


def by_hand(architecture: str, name: str, whole: Floats, rank: int, ranks: int) -> Floats:
    """Return the slice of the whole that a rank owns."""
    layer, _, tensor = name.rpartition(".")
    kv_heads = {"FalconForCausalLM": 1, "GPT2LMHeadModel": 4, "GPTNeoXForCausalLM": 4}
    match layer.rpartition(".")[2], tensor:
        case "qkv", _:
            kv = kv_heads.get(architecture, 2)
            return heads_of(whole, (4, kv, kv), rank, ranks)
        case "gate_up", _:
            return halves_of(whole, rank, ranks)
        case "experts", "gate_up_weight" | "gate_up_bias":
            return halves_of(whole, rank, ranks, axis=1)
        case ("experts", "down_weight") | ("out" | "down", "weight"):
            return columns_of(whole, rank, ranks)
        case ("experts", "down_bias") | ("out" | "down", "bias"):
            return first_only(whole, rank, ranks)
        case "embed" | "head" | "up", _:
            return rows_of(whole, rank, ranks)
        case "attend", "sinks":
            return rows_of(whole, rank, ranks)
        case "q_norm" | "k_norm", _:  # StableLM: a row for each head
            return heads_of(whole, (len(whole),), rank, ranks)
    return whole


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("architecture", CONFIGS)
def test_shards_are_slices_of_the_whole(architecture: str, ranks: int) -> None:
    model = make_model(architecture)
    weights = MadeUpWeights(model)
    wholes = assembled(model, weights, ParallelContext())
    for rank in range(ranks):
        shards = assembled(model, weights, ParallelContext(rank, ranks))
        assert shards.keys() == wholes.keys()
        for name, shard in shards.items():
            expected = by_hand(architecture, name, wholes[name], rank, ranks)
            assert np.array_equal(shard, expected), name
            assert shard.flags.c_contiguous, name


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("architecture", CONFIGS)
def test_ranks_together_compute_what_one_computes(architecture: str, ranks: int) -> None:
    """The sums over ranks are done by hand, for two sequences."""
    tables = np.arange(1, 13, dtype=np.int32).reshape(2, 6)
    rows = np.arange(20, dtype=np.int32)
    model = make_model(architecture)
    layout = place_layers(model)
    batch = HostBatch(
        np.random.default_rng(1).integers(0, 96, 20).astype(np.int32),
        np.r_[0:13, 0:7].astype(np.int32),
        np.array([0, 13, 20], np.int32),
        tuple(tables + 12 * group for group in range(len(layout.windows))),
        rows,
    )
    weights = MadeUpWeights(model)
    backend = TorchBackend()
    bind(model, backend, weights)
    backend.prepare(model, layout, 4)
    backend.make_cache(64)
    expected = backend.forward(batch).logits
    bind_ranks(model, weights, ranks)
    together = run_ranks(model, layout, batch, ranks).numpy()
    np.testing.assert_allclose(together, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_the_error_for_an_indivisible_model_has_the_numbers() -> None:
    model = make_model("LlamaForCausalLM")
    weights = MadeUpWeights(model)
    with pytest.raises(ShardError, match="vocabulary: 96 units do not divide among 5 ranks"):
        assembled(model, weights, ParallelContext(0, 5))
    with pytest.raises(ShardError, match="q: 4 units do not divide among 8 ranks"):
        assembled(model, weights, ParallelContext(0, 8))


@pytest.mark.parametrize(
    ("architecture", "more"), [("Olmo2ForCausalLM", {}), ("OlmoeForCausalLM", EXPERTS)]
)
def test_a_norm_over_all_heads_is_not_split(architecture: str, more: dict[str, Any]) -> None:
    """Otherwise each rank would silently normalise only its own heads."""
    model = make_model(architecture, **more)
    weights = MadeUpWeights(model)
    with pytest.raises(
        ShardError, match=r"blocks\.0\.attn\.attend: .* each of 2 ranks .* one rank"
    ):
        bind(model, TorchBackend(), weights, ParallelContext(1, 2))
    bind(model, TorchBackend(), weights)
