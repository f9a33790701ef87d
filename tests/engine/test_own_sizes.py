"""The sizes of blocks, running sequences and steps are the backend's own unless they are given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo.backends.kind import Sizes
from octavo.backends.native.kind import NativeKind
from octavo.engine.build import build_engine
from octavo.loader import resolve as resolve_source
from octavo.models.kv_layout import place_layers
from octavo.models.load import open_model
from octavo.options.engine import EngineArguments
from octavo.resolve import make_bill, resolve
from tests.api.tiny import make_model

OWN = Sizes(block_size=32, max_num_seqs=7, max_num_batched_tokens=48)


@pytest.fixture(autouse=True)
def own_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NativeKind, "sizes", OWN)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"block_size": 16},
        {"max_num_seqs": 3},
        {"max_num_batched_tokens": 64},
        {"block_size": 64, "max_num_seqs": 5, "max_num_batched_tokens": 99},
    ],
)
def test_each_size_is_the_backends_own_unless_it_is_given(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    opened = open_model(resolve_source(str(make_model(tmp_path))), None)
    layout = place_layers(opened.model)
    asked = EngineArguments(str(tmp_path), backend="native", **given)
    config = resolve(asked, opened, layout, 1 << 40)
    names = ("block_size", "max_num_seqs", "max_num_batched_tokens")
    expected = {name: given.get(name, getattr(OWN, name)) for name in names}
    assert {name: getattr(config.core, name) for name in expected} == expected
    step = config.largest_step
    assert step.rows == expected["max_num_batched_tokens"]
    assert step.sequences == expected["max_num_seqs"]
    assert config.bill == make_bill(asked, opened, layout)
    assert config.bill.block_size == expected["block_size"]
    assert config.core.num_blocks == step.sequences * -(-128 // expected["block_size"]) + 1


def test_an_engine_has_its_backends_sizes(tmp_path: Path) -> None:
    engine = build_engine(EngineArguments(str(make_model(tmp_path)), backend="native"))
    assert (engine.facts.block_size, engine.facts.max_num_seqs) == (32, 7)
    assert engine.facts.device == "cpu"
