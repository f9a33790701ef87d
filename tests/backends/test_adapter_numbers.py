"""The numbers that adapters are made of: growths near 1, and the rows whose lengths they need."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from octavo.backends.adapter_weights import AdapterWeights, Pair
from octavo.backends.native.adapters import packer
from octavo.backends.native.packing import InputOrder, Matrix
from octavo.backends.torch.adapters import TorchAdapters, expand
from octavo.backends.torch.weights import TorchMatrix
from octavo.layers import Linear
from octavo.program.operands import Adapters
from tests.models.made_up import make_model

GROWTH = 1.003  # 1 in bf16


def test_a_growth_near_one_changes_rows_of_a_narrow_type() -> None:
    """A product whose rows have length 1, and magnitudes a little above that."""
    model = make_model("MistralForCausalLM")
    path, layer = next(
        (path, layer)
        for path, layer in model.walk()
        if isinstance(layer, Linear) and path.endswith("attn.out")
    )
    (part,) = layer.parts
    rows = np.zeros((part.rows, layer.inputs), np.float32)
    rows[:, 0] = 1
    layer.weight = TorchMatrix(torch.from_numpy(rows).bfloat16())
    nothing = np.zeros((1, layer.inputs), np.float32), np.zeros((part.rows, 1), np.float32)
    pair = Pair(*nothing, 1.0, np.full(part.rows, GROWTH, np.float32))
    product = Adapters(path, 0, layer.inputs, (part.rows,), 1)
    made = TorchAdapters(model, [product], torch.bfloat16).make(AdapterWeights({path: (pair,)}, 1))
    (change,) = made.products
    values = torch.linspace(1, 2, part.rows)[None].bfloat16()
    y, low, row = values.clone(), torch.zeros(1, 1, dtype=torch.bfloat16), torch.tensor([0])
    expand(y, None, low, [(change, 1.0, row)])
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, (values.float() * GROWTH).bfloat16())
    assert not torch.equal(y, values)


def test_the_order_of_a_matrix_is_found_once_for_all_its_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    random = np.random.default_rng(0)
    whole = random.standard_normal((12, 8), np.float32)

    def piece(first: int, stop: int, ordered: bool) -> Any:
        inputs = random.permutation(8) if ordered else np.arange(8)
        kept = whole[first:stop, inputs]
        native = SimpleNamespace(outputs=stop - first, rows=lambda at, num: kept[at : at + num])
        return SimpleNamespace(
            native=native,
            first=first,
            order=InputOrder(0, inputs.astype(np.int32)) if ordered else None,
        )

    calls: Counter[str] = Counter()

    def count(module: Any, name: str) -> None:
        function = getattr(module, name)

        def counted(*arguments: Any) -> Any:
            calls[name] += 1
            return function(*arguments)

        monkeypatch.setattr(module, name, counted)

    count(np, "argsort")
    count(packer, "_outputs_of")
    pieces = piece(0, 5, True), piece(5, 9, False), piece(9, 12, True)
    rows = packer.BaseRows(
        Matrix(pieces, 12, 8), lambda number, *rows: pieces[number].native.rows(*rows)
    )
    assert not calls, "most adapters need no rows"
    for first in range(0, 12, 3):
        np.testing.assert_array_equal(rows(first, first + 3), whole[first : first + 3])
    assert calls == {"argsort": 2, "_outputs_of": 1}
