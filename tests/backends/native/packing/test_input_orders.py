"""Matrices whose inputs have an order of their own: a product's input is put in it once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec import structs
from numpy.typing import NDArray

from octavo.backends.made_rows import GroupTensors
from octavo.backends.native.backend import NativeBackend, NativeOptions
from octavo.backends.stored_rows import StoredRows
from octavo.models.build import bind
from octavo.models.kv_layout import place_layers
from octavo.models.llama import Llama
from octavo.quant.integers import integer_layout, kind_of, made_rows
from tests.backends.native.tiny import make_batch
from tests.runner.tiny import FULL, RandomWeights, make_spec

GROUP = 32  # inputs that are rounded to int8 together
SIZES: dict[str, Any] = {"hidden": 64, "ffn": 96, "heads": 4, "kv_heads": 2, "head_dim": 16}
# By the ends of names: which of the orders the inputs of a matrix have; None: that of the rows.
Orders = dict[str, int | None]
SAME: Orders = {"": 0}
OWN: Orders = {"q_proj": 1, "k_proj": 2, "v_proj": 3, "gate_proj": 4, "up_proj": 5, "": 0}
SOME: Orders = {"k_proj": 1, "up_proj": 1, "o_proj": 1, "": None}


def within_groups(number: int, inputs: int) -> NDArray[np.int64]:
    """Return an order that moves each input within its group.

    A group then has the same scale, and its sum of integers is the same.
    """
    generator = np.random.default_rng(number)
    groups = [first + generator.permutation(GROUP) for first in range(0, inputs, GROUP)]
    return np.concatenate(groups).astype(np.int64)


class OrderedWeights(RandomWeights):
    """Random integers of four bits, whose inputs are stored in some order."""

    def __init__(self, orders: Orders) -> None:
        super().__init__()
        self._orders = orders

    def _order(self, name: str) -> int | None:
        module = name.removesuffix(".weight")
        return next(number for end, number in self._orders.items() if module.endswith(end))

    def row_type(self, name: str) -> str:
        return "I4By32" if name.endswith("_proj.weight") else "F32"

    def rows(self, name: str) -> StoredRows:
        plain = super().rows(name)
        if not name.endswith("_proj.weight"):
            return plain
        values, kind = plain.floats(), kind_of(4, plain.inputs, GROUP, is_symmetric=True)
        scales = np.abs(values.reshape(len(values), -1, GROUP)).max(-1) / np.float32(7)
        codes = np.rint(values / np.repeat(scales, GROUP, 1)).astype(np.int8) + 8
        packed = (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)
        number = self._order(name)
        tensors = GroupTensors(
            inputs=plain.inputs,
            codes=packed,
            bits=4,
            scales=scales.astype(np.float16),
            scale_group=GROUP,
            group=GROUP,
            middle=8,
            columns=None if number is None else within_groups(number, plain.inputs),
        )
        return made_rows(integer_layout(kind), tensors)


def make_backend(orders: Orders, threads: int = 2) -> NativeBackend:
    model = Llama(structs.replace(make_spec(FULL), **SIZES))
    layout = place_layers(model)
    backend = NativeBackend(NativeOptions(num_threads=threads, kv_dtype="float32"))
    bind(model, backend, OrderedWeights(orders))
    backend.prepare(model, layout, 16)
    backend.make_cache(20)
    return backend


def logits_of(orders: Orders, rows: int, threads: int) -> NDArray[np.float32]:
    result = make_backend(orders, threads).forward(make_batch((0, 0, rows)))
    logits: NDArray[np.float32] = result.logits
    return logits


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("orders", [SAME, OWN, SOME])
def test_the_order_of_inputs_does_not_change_a_bit(orders: Orders, rows: int, threads: int) -> None:
    """Each input meets its own weights; what is in a group has no order."""
    expected = logits_of({"": None}, rows, threads)
    np.testing.assert_array_equal(logits_of(orders, rows, threads), expected)


def test_products_with_equal_orders_share_their_prepared_input() -> None:
    """Queries, keys and values are one product then, and so are gates and ups."""

    def prepared(orders: Orders) -> int:
        return make_backend(orders).describe().count("prepare")

    plain = prepared({"": None})
    assert prepared(SAME) == plain
    # In each of two layers: two more for queries, keys and values, and one for gates and ups.
    assert prepared(OWN) == plain + 2 * 3
