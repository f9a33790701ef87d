"""An engine with a spare one beside it leaves room for the spare's weights and arrays."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.core.config import ConfigError
from octavo.engine.build import build_engine
from octavo.loader import resolve as resolve_source
from octavo.models.kv_layout import place_layers
from octavo.models.load import open_model
from octavo.options.engine import EngineArguments
from octavo.resolve import EngineConfig, resolve
from tests.api.tiny import make_model


def test_the_kv_cache_is_smaller_by_the_spares_weights_and_arrays(tmp_path: Path) -> None:
    model = str(make_model(tmp_path))
    opened = open_model(resolve_source(model), None)
    layout = place_layers(opened.model)
    free_bytes = 620 << 20

    def config_of(spare_engine: bool) -> EngineConfig:
        arguments = EngineArguments(
            model, max_num_seqs=10_000, grammar_memory_bytes=16 << 20, spare_engine=spare_engine
        )
        return resolve(arguments, opened, layout, free_bytes)

    alone, beside = config_of(False), config_of(True)
    bill = alone.bill
    difference = (alone.core.num_blocks - beside.core.num_blocks) * bill.block_bytes
    assert abs(difference - bill.fixed_bytes) <= bill.block_bytes


def test_an_engine_in_the_callers_process_has_no_spare(tmp_path: Path) -> None:
    arguments = EngineArguments(str(make_model(tmp_path)), spare_engine=True)
    with pytest.raises(ConfigError, match="spare_engine needs an engine in a process of its own"):
        build_engine(arguments)
