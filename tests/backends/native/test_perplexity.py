"""The benchmark of formats measures the error of the products alone."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.perplexity import EXACT, MADE, Cost, Rounded, cut, losses_of, perplexity
from octavo.backends.native.backend import NativeBackend, NativeOptions
from octavo.backends.native.packing import Matrix
from octavo.loader import resolve
from octavo.models.build import bind
from octavo.models.kv_layout import place_layers
from octavo.models.load import open_model
from octavo.options.cpu_types import CpuWeights
from tests.backends.native.test_claims import VOCABULARY, write_model


def ready(path: Path, backend: NativeBackend) -> NativeBackend:
    opened = open_model(resolve(str(path)))
    layout = place_layers(opened.model)
    bind(opened.model, backend, opened.weights)
    backend.prepare(opened.model, layout, 16)
    backend.make_cache(4)
    backend.settle()
    return backend


def test_a_cost_is_a_part_of_the_perplexity() -> None:
    base = np.array([1.0, 2.0, 3.0, 4.0])
    same, more = Cost.of(base, base), Cost.of(base + np.array([0.1, 0.3, 0.1, 0.3]), base)
    assert (same.part, same.error) == (0.0, 0.0)
    assert more.part == pytest.approx(math.exp(0.2) - 1)
    assert more.part == pytest.approx(perplexity(base + 0.2) / perplexity(base) - 1)
    assert more.error == pytest.approx(math.exp(0.2) * np.std([0.1, 0.3], ddof=0) / math.sqrt(3))
    assert str(more) == "+22.14 ± 7.05 %"


def test_windows_do_not_overlap() -> None:
    assert cut(list(range(10)), 4) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_losses_are_what_the_logits_say(tmp_path: Path) -> None:
    tokens = [3, 1, 4, 1, 5, 9]
    table: Any = np.arange(1, 4, dtype=np.int32)[None]
    backend = ready(write_model(tmp_path, "F32"), NativeBackend(EXACT))
    losses = losses_of(backend, table, tokens)
    assert len(losses) == len(tokens) - 1
    assert 0.5 * math.log(VOCABULARY) < losses.mean() < 2 * math.log(VOCABULARY)
    last = losses_of(backend, table, [*tokens[:-1], 7])
    assert np.array_equal(last[:-1], losses[:-1])
    assert last[-1] != losses[-1]


@pytest.mark.parametrize("weights", MADE)
def test_rounded_weights_are_those_that_the_format_keeps(
    weights: CpuWeights, tmp_path: Path
) -> None:
    """The remaining difference between the two is that of the products."""
    path = write_model(tmp_path, "BF16")
    kept = ready(path, NativeBackend(NativeOptions(weights=weights, num_threads=1)))
    exact = ready(path, Rounded(weights))
    matrices, others = (
        [each.matrix for each in listing.instructions if each.op == "Gemm"]
        for listing in (kept, exact)
    )
    assert matrices
    assert isinstance(matrices[0], Matrix)
    assert matrices[0].pieces[0].native.row(0).any()
    for one, other in zip(matrices, others, strict=True):
        assert isinstance(one, Matrix)
        assert isinstance(other, Matrix)
        for row in range(min(one.pieces[0].native.outputs, 40)):
            expected = one.pieces[0].native.row(row)
            np.testing.assert_array_equal(other.pieces[0].native.row(row), expected)
