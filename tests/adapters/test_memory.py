"""The memory of adapters is a part of the engine's bill, bounded by what there is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.adapters.memory import largest_bytes, whole_bytes
from octavo.backends.adapter_weights import AdapterWeights, Bias, Pair, Whole
from octavo.backends.native.backend import NativeBackend, NativeOptions
from octavo.backends.stored_rows import StoredRows
from octavo.core.stats import ADAPTER
from octavo.layers import Linear
from octavo.loader import resolve as find_source
from octavo.models.kv_layout import place_layers
from octavo.models.load import OpenedModel, open_model
from octavo.observe.memory_bill import MAX_SPARE_BYTES
from octavo.options.engine import EngineArguments
from octavo.resolve import EngineConfig, resolve
from tests.api.tiny import make_model
from tests.backends.adapted import Adapted
from tests.backends.native.tiny import EXACT

FREE_BYTES = 4 << 30


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> OpenedModel:
    directory = make_model(tmp_path_factory.mktemp("model"))
    return open_model(find_source(str(directory)))


def configured(opened: OpenedModel, free_bytes: int = FREE_BYTES, **options: Any) -> EngineConfig:
    options = {"dtype": "float32", **options}
    arguments = EngineArguments(model=str(Path("anything")), backend="torch", **options)
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
    largest = largest_bytes(opened.model, rank, 4)
    assert config.bill.resident_adapter_bytes == num_adapters * largest
    num_left = options.get("max_loras", 4)  # that had to leave, and are in slots still
    whole = (num_adapters + num_left) * largest + MAX_SPARE_BYTES
    assert config.bill.adapter_bytes == whole
    assert (
        config.bill.fixed_bytes - config.bill.adapter_bytes == configured(opened).bill.fixed_bytes
    )


def test_where_memory_is_short_they_get_a_part_of_it(opened: OpenedModel) -> None:
    """An adapter counts by its real size, which is mostly smaller than the largest."""
    options: dict[str, Any] = {"enable_lora": True, "max_cpu_loras": 4096, "max_lora_rank": 512}
    config = configured(opened, FREE_BYTES, **options)
    largest = largest_bytes(opened.model, 512, 4)
    resident = config.bill.resident_adapter_bytes
    assert 4 * largest < resident < FREE_BYTES // 8 < 4096 * largest
    assert config.bill.adapter_bytes == resident + 4 * largest + MAX_SPARE_BYTES


@pytest.mark.parametrize(
    ("lora_dtype", "dtype", "number_bytes"),
    [
        ("auto", "bfloat16", 4),  # the files' own type
        ("float32", "bfloat16", 4),
        ("bfloat16", "bfloat16", 2),
        ("float16", "float32", 4),  # the reference computes in the type of its weights
    ],
)
def test_an_adapter_is_counted_in_the_type_in_which_it_is_kept(
    lora_dtype: str, dtype: str, number_bytes: int, opened: OpenedModel
) -> None:
    config = configured(opened, enable_lora=True, max_loras=1, lora_dtype=lora_dtype, dtype=dtype)
    largest = largest_bytes(opened.model, 16, number_bytes)
    assert config.bill.resident_adapter_bytes == 4 * largest


SHAPES: dict[str, dict[str, Any]] = {
    "of the tests": {},
    "parts that share 16 outputs": {"num_key_value_heads": 1, "intermediate_size": 40},
    "inputs that fill no block": {"intermediate_size": 56, "hidden_size": 40, "head_dim": 8},
    "mebibytes": {"intermediate_size": 98304, "num_hidden_layers": 1},
}


@pytest.mark.parametrize("rank", [1, 7, 8])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_largest_adapter_fits(shape: str, rank: int) -> None:
    """The native engine packs it within what is set aside, and not far below that."""
    options = NativeOptions(**EXACT, num_threads=1)
    made = Adapted(NativeBackend(options), "MistralForCausalLM", **SHAPES[shape])
    for dtype in (np.float32, np.float16):
        pairs = {
            path: tuple(
                Pair(
                    np.ones((rank, layer.inputs), dtype),
                    np.ones((part.rows, rank), dtype),
                    1.0,
                    np.ones(part.rows, np.float32),
                )
                for part in layer.parts
            )
            for path, layer in made.model.walk()
            if isinstance(layer, Linear)
        }
        biases = {
            path: tuple(
                [Bias(pair.magnitude) for pair in of_parts],
            )
            for path, of_parts in pairs.items()
        }
        embed = made.model.embed
        pairs["embed"] = (
            Pair(
                np.ones((rank, embed.vocabulary), dtype), np.ones((embed.hidden, rank), dtype), 1.0
            ),
        )
        (packed,) = made.pack(AdapterWeights(pairs, rank, biases))
        largest = largest_bytes(made.model, rank, np.dtype(dtype).itemsize)
        assert packed.num_bytes <= largest < 2 * packed.num_bytes


def test_memory_for_whole_matrices_is_kept_if_there_may_be_some(opened: OpenedModel) -> None:
    plain = configured(opened, enable_lora=True).bill
    saved = configured(opened, enable_lora=True, max_saved_loras=2).bill
    whole = whole_bytes(opened.model, 4)
    assert saved.resident_adapter_bytes - plain.resident_adapter_bytes == 2 * whole
    assert saved.adapter_bytes - plain.adapter_bytes == (2 + 2 + 2) * whole


@pytest.mark.parametrize("tied", [False, True])
def test_whole_matrices_fit(*, tied: bool) -> None:
    options = NativeOptions(**EXACT, num_threads=1)
    model = {"tie_word_embeddings": tied}
    made = Adapted(NativeBackend(options), "MistralForCausalLM", wholes=True, **model)
    rows = StoredRows.of(
        np.ones((made.model.embed.vocabulary, made.model.embed.hidden), np.float32)
    )
    (packed,) = made.pack(AdapterWeights({}, 0, {}, {"embed": Whole(rows), "head": Whole(rows)}))
    assert 2 * rows.num_bytes <= packed.num_bytes
    assert packed.num_bytes <= whole_bytes(made.model, 4) + largest_bytes(made.model, 1, 4)
