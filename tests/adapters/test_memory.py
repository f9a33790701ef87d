"""The memory of adapters is a part of the engine's bill, bounded by what there is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo.core.stats import ADAPTER
from octavo.loader import resolve as find_source
from octavo.models.kv_layout import place_layers
from octavo.models.load import OpenedModel, open_model
from octavo.options.engine import EngineArguments
from octavo.resolve import EngineConfig, resolve
from tests.api.tiny import make_model

# Numbers of an adapter of rank 1: each part of a projection reads the inputs, and gives its rows.
BLOCK = 3 * 32 + 64 + 32 + 32 + 2 * 32 + 2 * 48 + 48 + 32
FREE_BYTES = 4 << 30


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> OpenedModel:
    directory = make_model(tmp_path_factory.mktemp("model"))
    return open_model(find_source(str(directory)))


def configured(opened: OpenedModel, free_bytes: int = FREE_BYTES, **options: Any) -> EngineConfig:
    arguments = EngineArguments(
        model=str(Path("anything")), dtype="float32", backend="torch", **options
    )
    return resolve(arguments, opened, place_layers(opened.model), free_bytes)


def test_there_are_none_unless_they_are_asked_for(opened: OpenedModel) -> None:
    config = configured(opened)
    assert config.core.max_loras == 0
    assert config.bill.adapter_bytes == 0


@pytest.mark.parametrize(
    ("options", "num_adapters", "rank"),
    [
        ({}, 16, 16),
        ({"max_loras": 2}, 8, 16),
        ({"max_loras": 2, "max_cpu_loras": 3, "max_lora_rank": 64}, 3, 64),
    ],
)
def test_there_is_room_for_as_many_as_may_be_in_memory(
    options: dict[str, Any], num_adapters: int, rank: int, opened: OpenedModel
) -> None:
    config = configured(opened, enable_lora=True, **options)
    assert config.core.max_loras == options.get("max_loras", 4)
    assert config.core.untimed_holds == (ADAPTER,)
    assert config.bill.adapter_bytes == num_adapters * rank * 2 * BLOCK * 4
    assert (
        config.bill.fixed_bytes - config.bill.adapter_bytes == configured(opened).bill.fixed_bytes
    )


def test_where_memory_is_short_they_get_a_part_of_it(opened: OpenedModel) -> None:
    """An adapter counts by its real size, which is mostly smaller than the largest."""
    options: dict[str, Any] = {"enable_lora": True, "max_cpu_loras": 4096, "max_lora_rank": 512}
    config = configured(opened, FREE_BYTES, **options)
    largest = 512 * 2 * BLOCK * 4
    assert 4 * largest < config.bill.adapter_bytes < FREE_BYTES // 8 < 4096 * largest
