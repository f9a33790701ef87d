"""Any stored format is stacked and sharded by data alone: a rank's part is a slice."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from octavo.distributed.context import ParallelContext
from octavo.layers import GateUpLinear, Linear, Part, QKVLinear
from octavo.quant.compose import ShardError, part_run, shard, split_parts
from octavo.quant.scheme import PLAIN, Axis, TensorDecl

GROUP, PACKED = 32, 8
# Eight numbers of four bits share a word, and 32 share a scale; and the same transposed.
FOUR_BITS = (
    TensorDecl("packed", (Axis("out"), Axis("in", PACKED))),
    TensorDecl("scales", (Axis("out"), Axis("in", GROUP))),
)
SIDEWAYS = tuple(TensorDecl(decl.name, decl.axes[::-1]) for decl in FOUR_BITS)
INPUTS = 128
LINEARS: dict[str, Linear] = {
    "qkv": QKVLinear(INPUTS, 4, 2, 16),
    "gate_up": GateUpLinear(INPUTS, 48),
    "plain, split by outputs": Linear(INPUTS, 24, shard="out"),
    "plain, split by inputs": Linear(INPUTS, 24, shard="in"),
    "plain, whole": Linear(INPUTS, 24),
}
Stored = dict[str, NDArray[np.uint32] | NDArray[np.float32]]


def pack(matrix: NDArray[np.int64], scales: NDArray[np.float32]) -> Stored:
    """Pack a matrix as FOUR_BITS stores it."""
    words = matrix.reshape(len(matrix), -1, PACKED) << (4 * np.arange(PACKED))
    return {"packed": words.sum(-1).astype(np.uint32), "scales": scales}


def unpack(stored: Stored) -> NDArray[np.float32]:
    """Return the matrix that FOUR_BITS stands for."""
    nibbles = stored["packed"][..., None] >> (4 * np.arange(PACKED)).astype(np.uint32) & 15
    groups = nibbles.reshape(len(nibbles), -1, GROUP).astype(np.float32)
    return (groups * stored["scales"][..., None]).reshape(len(groups), -1)


def made_up(linear: Linear) -> list[Stored]:
    """Make a packed matrix for each part."""
    generator = np.random.default_rng(0)
    return [
        pack(
            generator.integers(0, 16, (part.rows, linear.inputs)),
            generator.random((part.rows, linear.inputs // GROUP), np.float32),
        )
        for part in linear.parts
    ]


def expected_slice(
    name: str, whole: NDArray[np.float32], rank: int, ranks: int
) -> NDArray[np.float32]:
    """Return the rank's part of the logical matrix, computed by hand."""
    rows, columns = whole.shape
    match name:
        case "qkv":  # four heads of queries, two of keys, two of values, 16 rows each
            heads = whole.reshape(8, 16, columns)
            queries = [*range(rank * 4 // ranks, (rank + 1) * 4 // ranks)]
            kv = [*range(rank * 2 // ranks, max(rank * 2 // ranks + 1, (rank + 1) * 2 // ranks))]
            keys, values = [4 + head for head in kv], [6 + head for head in kv]
            return heads[queries + keys + values].reshape(-1, columns)
        case "gate_up":
            share = 48 // ranks
            gate = whole[rank * share : (rank + 1) * share]
            up = whole[48 + rank * share : 48 + (rank + 1) * share]
            return np.concatenate((gate, up))
        case "plain, split by outputs":
            return whole[rank * rows // ranks : (rank + 1) * rows // ranks]
        case "plain, split by inputs":
            return whole[:, rank * columns // ranks : (rank + 1) * columns // ranks]
    return whole


@pytest.mark.parametrize("name", LINEARS)
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("scheme", [FOUR_BITS, SIDEWAYS], ids=["four bits", "sideways"])
@pytest.mark.parametrize("fused", [False, True], ids=["a tensor a part", "one for all"])
def test_a_packed_matrix_is_cut_where_the_plain_one_is(
    name: str, ranks: int, scheme: tuple[TensorDecl, ...], fused: bool
) -> None:
    linear = LINEARS[name]
    parts = made_up(linear)
    whole = np.concatenate([unpack(part) for part in parts])
    is_sideways = scheme is SIDEWAYS
    for rank in range(ranks):
        mine: Stored = {}
        for decl in scheme:
            stored = [part[decl.name].T if is_sideways else part[decl.name] for part in parts]
            if fused:
                stacked = np.concatenate(stored, axis=int(is_sideways))
                stored = split_parts(stacked, linear, decl)
            array = shard(stored, linear, decl, ParallelContext(rank, ranks))
            assert array.flags.c_contiguous
            mine[decl.name] = array.T if is_sideways else array
        assert np.array_equal(unpack(mine), expected_slice(name, whole, rank, ranks))


def test_leading_axes_are_kept() -> None:
    """Each expert's matrix is cut in the same way."""
    linear = LINEARS["gate_up"]
    experts = np.random.default_rng(0).random((3, 96, INPUTS), np.float32)
    weight = PLAIN["weight"]
    mine = shard(split_parts(experts, linear, weight), linear, weight, ParallelContext(1, 2))
    for expert, whole in zip(mine, experts, strict=True):
        assert np.array_equal(expert, expected_slice("gate_up", whole, 1, 2))


def test_a_tensor_without_rows_serves_all_parts() -> None:
    """An example is the order in which a format keeps the columns."""
    order = TensorDecl("order", (Axis("in"),))
    linear = LINEARS["gate_up"]
    columns = np.arange(INPUTS)
    whole = shard([columns, columns], linear, order, ParallelContext(1, 2))
    assert np.array_equal(whole, columns)
    with pytest.raises(ShardError, match="order: the parts differ"):
        shard([columns, columns[::-1]], linear, order, ParallelContext(1, 2))


@pytest.mark.parametrize("decl", FOUR_BITS, ids=lambda decl: decl.name)
def test_a_group_that_would_be_cut_is_refused_with_its_numbers(decl: TensorDecl) -> None:
    divisor = decl.axes[1].divisor
    inputs = 2 * divisor
    linear = Linear(inputs, 24, shard="in")
    stored = np.zeros((24, 2))
    half = divisor // 2
    message = f"{decl.name}: in {half}..{divisor} cuts a group of {divisor}; use fewer ranks"
    with pytest.raises(ShardError, match=message):
        shard([stored], linear, decl, ParallelContext(1, 4))


def test_a_group_of_rows_that_would_be_cut_is_refused_too() -> None:
    decl = TensorDecl("packed", (Axis("out", 8), Axis("in")))
    with pytest.raises(ShardError, match=r"packed: out 0\.\.12 cuts a group of 8"):
        shard([np.zeros((3, 4))], Linear(4, 24, shard="out"), decl, ParallelContext(0, 2))


def test_what_does_not_divide_among_the_ranks_is_refused_with_its_numbers() -> None:
    with pytest.raises(ShardError, match="q: 6 units do not divide among 4 ranks"):
        part_run(Part("q", 96, unit=16), ParallelContext(0, 4))
    with pytest.raises(ShardError, match="k: 8 ranks cannot share 3 units evenly"):
        part_run(Part("k", 48, unit=16, replicable=True), ParallelContext(0, 8))
    with pytest.raises(ShardError, match="k: 3 units do not divide among 2 ranks"):
        part_run(Part("k", 48, unit=16, replicable=True), ParallelContext(0, 2))
