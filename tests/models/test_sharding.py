"""Ranks' shares are slices of the whole, and together they compute what the whole computes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import pytest

from octavo.backends.base import Backend
from octavo.backends.stored_rows import Floats, StoredRows
from octavo.backends.torch.backend import TorchBackend
from octavo.distributed.context import ParallelContext
from octavo.layers import Module
from octavo.models.build import bind
from octavo.quant.shard import ShardError
from tests.models.made_up import CONFIGS, EXPERTS, MadeUpWeights, make_model
from tests.models.ranks import run_ranks

RANKS = (1, 2, 4)


class Kept:
    """The part of a backend that binding needs; it keeps all values as arrays."""

    ops = None

    def parameter(self, array: Floats) -> Floats:
        return array

    def matrix(self, parts: Sequence[StoredRows], module: Module) -> Floats:
        return np.concatenate([part.floats() for part in parts])

    def experts(self, matrices: Sequence[Sequence[StoredRows]], module: Module) -> Floats:
        return np.stack([self.matrix(parts, module) for parts in matrices])


def bound(architecture: str, weights: MadeUpWeights, context: ParallelContext) -> dict[str, Floats]:
    """Bind a rank's model, and return every tensor by our own name."""
    model = make_model(architecture)
    names = [f"{path}.{name}" for path, module in model.walk() for name in module.tensors()]
    bind(model, cast(Backend, Kept()), weights, context)
    modules = dict(model.walk())
    return {
        name: getattr(modules[path], tensor)
        for name in names
        for path, _, tensor in [name.rpartition(".")]
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
        case "into", _:
            return heads_of(whole, (4, 4, 4), rank, ranks)
        case "conv", _:
            return rows_of(whole, rank, ranks)
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
        case "embed" | "head" | "up" | "q" | "widen" | "keys" | "values", _:
            return rows_of(whole, rank, ranks)
        case "attend", "sinks":
            return rows_of(whole, rank, ranks)
        case "distances", _:  # MPNet: a column for each head
            return columns_of(whole, rank, ranks)
        case "q_norm" | "k_norm", _ if whole.ndim > 1:  # StableLM: a row for each head
            return heads_of(whole, (len(whole),), rank, ranks)
    return whole


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("architecture", [*CONFIGS, "MPNetModel"])
def test_shares_are_slices_of_the_whole(architecture: str, ranks: int) -> None:
    weights = MadeUpWeights(make_model(architecture))
    wholes = bound(architecture, weights, ParallelContext())
    for rank in range(ranks):
        shares = bound(architecture, weights, ParallelContext(rank, ranks))
        assert shares.keys() == wholes.keys()
        for name, share in shares.items():
            expected = by_hand(architecture, name, wholes[name], rank, ranks)
            assert np.array_equal(share, expected), name


@pytest.mark.parametrize("ranks", RANKS[1:])
@pytest.mark.parametrize("architecture", CONFIGS)
def test_ranks_together_compute_what_one_computes(architecture: str, ranks: int) -> None:
    """Every rank ends with all logits, and the same bits as the others."""
    declare = partial(make_model, architecture)
    weights = MadeUpWeights(declare())
    (expected,) = (each.logits for each in run_ranks(declare, weights, 1))
    first, *others = (each.logits for each in run_ranks(declare, weights, ranks))
    np.testing.assert_allclose(first, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    assert all(np.array_equal(first, other) for other in others)


@pytest.mark.parametrize("ranks", RANKS)
def test_a_bound_layer_has_the_sizes_and_the_collective_of_its_rank(ranks: int) -> None:
    declare = partial(make_model, "LlamaForCausalLM")
    outcomes = run_ranks(declare, MadeUpWeights(declare()), ranks)
    for rank, outcome in enumerate(outcomes):
        layers: dict[str, Any] = dict(outcome.model.walk())
        attend, out = layers["blocks.1.attn.attend"], layers["blocks.1.attn.out"]
        kv_heads = max(1, 2 // ranks)
        assert (attend.heads, attend.kv_heads) == (4 // ranks, kv_heads)
        assert [group.spec.heads for group in outcome.layout.groups] == [kv_heads]
        assert (out.inputs, out.outputs) == (32 // ranks, 32)
        qkv, down = layers["blocks.0.attn.qkv"], layers["blocks.0.mlp.down"]
        assert [part.rows for part in qkv.parts] == [32 // ranks, 8 * kv_heads, 8 * kv_heads]
        assert (down.inputs, layers["blocks.0.mlp.gate_up"].outputs) == (48 // ranks, 96 // ranks)
        embed = layers["embed"]
        assert (embed.first, embed.vocabulary) == (rank * 96 // ranks, 96 // ranks)
        shared = {path: layer.collective for path, layer in layers.items() if layer.collective}
        sums = [
            "embed",
            *(f"blocks.{n}.{name}" for n in (0, 1) for name in ("attn.out", "mlp.down")),
        ]
        assert shared == ({} if ranks == 1 else dict.fromkeys(sums, "sum") | {"head": "gather"})


def test_the_error_for_an_indivisible_model_has_the_numbers() -> None:
    weights = MadeUpWeights(make_model("LlamaForCausalLM"))
    with pytest.raises(
        ShardError, match=r"vocabulary has 96 units .*, which do not divide among 5 ranks"
    ):
        bound("LlamaForCausalLM", weights, ParallelContext(0, 5))
    with pytest.raises(ShardError, match=r"q has 4 units .*, which do not divide among 8 ranks"):
        bound("LlamaForCausalLM", weights, ParallelContext(0, 8))


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
