"""The final size of the KV cache follows from the memory left once the weights are loaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from octavo.backends.base import StepSize
from octavo.core.config import ConfigError, CoreConfig
from octavo.engine.build import build_engine
from octavo.engine.cache_size import final_blocks, reserve_step
from octavo.models.kv_layout import place_layers
from octavo.observe.machine import memory
from octavo.observe.memory_bill import HEADROOM_BYTES
from octavo.options.engine import EngineArguments
from octavo.resolve import EngineConfig, limited_depth, make_bill, resolve
from tests.api.tiny import make_model
from tests.engine.test_memory_check import BLOCK, opened_model

STEP = 5_000_000
GRAMMARS = EngineArguments("").grammar_memory_bytes


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("tiny"))


def sized(directory: Path, free_blocks: float, **options: Any) -> tuple[EngineConfig, int]:
    """Resolve with much memory, and size the cache with memory for so many blocks."""
    opened = opened_model(directory)
    layout = place_layers(opened.model)
    options = {"backend": "torch", "max_num_seqs": 1000, **options}
    arguments = EngineArguments(str(directory), **options)
    config = resolve(arguments, opened, layout, 1 << 40)
    free = HEADROOM_BYTES + STEP + GRAMMARS + int(free_blocks * BLOCK)
    return config, final_blocks(config, layout, free, STEP)


def test_it_is_what_weights_step_and_grammars_leave(directory: Path) -> None:
    assert sized(directory, 50.5)[1] == 50
    config, num_blocks = sized(directory, 1e9)
    assert num_blocks == config.core.num_blocks == 1000 * 128 // 16 + 1


def test_less_memory_than_estimated_shortens_sequences(directory: Path) -> None:
    """The length was decided before; the pool may be too small for it, which the log says."""
    config, num_blocks = sized(directory, 3)
    assert (config.core.max_model_len, num_blocks) == (128, 3)


def test_a_size_that_was_set_stays(directory: Path) -> None:
    assert sized(directory, 3, num_gpu_blocks_override=77)[1] == 77
    assert sized(directory, 3, kv_cache_memory_bytes=40 * BLOCK)[1] == 40


def test_a_size_that_is_taken_at_the_start_must_fit(directory: Path) -> None:
    """The estimate of `resolve` allowed it; the weights have left less than that."""
    options: dict[str, Any] = {
        "backend": "native",
        "dtype": "float32",
        "num_gpu_blocks_override": 40,
        "preallocate_kv_cache": True,
    }
    headroom = HEADROOM_BYTES / BLOCK  # is given up for a size that the user has set
    assert sized(directory, 40 - headroom, **options)[1] == 40
    with pytest.raises(ConfigError, match="takes all memory of the KV cache at the start"):
        sized(directory, 39.9 - headroom, **options)


def test_a_successor_repeats_a_size_that_is_taken_at_the_start(directory: Path) -> None:
    """The memory of the engine that it replaces may not be free again yet."""
    opened = opened_model(directory)
    layout = place_layers(opened.model)
    asked = EngineArguments(
        str(directory), dtype="float32", num_gpu_blocks_override=40, preallocate_kv_cache=True
    )
    config = resolve(asked, opened, layout, 10_000, is_first=False)
    assert final_blocks(config, layout, 10_000, STEP) == 40


def test_mapped_weights_are_not_free_memory(directory: Path, tmp_path: Path) -> None:
    """The system counts pages of a file as free; the estimate has the weights."""
    opened = opened_model(directory)
    layout = place_layers(opened.model)
    asked = EngineArguments(str(directory), max_num_seqs=1000, packed_cache=str(tmp_path))
    room = make_bill(asked, opened, layout)
    free = HEADROOM_BYTES + room.fixed_bytes + 50 * room.block_bytes
    config = resolve(asked, opened, layout, free)
    assert config.core.num_blocks == 50
    assert final_blocks(config, layout, free, STEP) == 50
    mapped = resolve(replace(asked, packed_cache=None), opened, layout, free)
    assert final_blocks(mapped, layout, free, STEP) > 50


def test_an_engine_takes_its_share_of_the_memory(directory: Path) -> None:
    """Weights, steps and KV together, however much is free; a size that is given stays."""
    opened = opened_model(directory)
    layout = place_layers(opened.model)
    asked = EngineArguments(str(directory), max_num_seqs=1000)
    room = make_bill(asked, opened, layout)
    wanted = room.fixed_bytes + 50.5 * room.block_bytes  # what is left for others is beside it
    asked = replace(asked, gpu_memory_utilization=wanted / memory().total)
    config = resolve(asked, opened, layout, 1 << 50)
    assert config.core.num_blocks == 50
    assert final_blocks(config, layout, 1 << 50, STEP) == 50
    given = replace(asked, num_gpu_blocks_override=60, gpu_memory_utilization=1e-9)
    assert resolve(given, opened, layout, 1 << 50).core.num_blocks == 60
    for share in (0, -0.5, 1.5, True, "half"):
        with pytest.raises(
            ConfigError, match=r"gpu_memory_utilization=.* must be (above 0|a number)"
        ):
            EngineArguments("m", gpu_memory_utilization=share)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "found", "is_it"),
    [
        (None, "gptq", True),
        (None, None, True),
        ("gguf", "gguf", True),
        ("gptq_marlin", "gptq", True),
        ("mxfp8", None, False),
        ("gguf", "fp8", False),
    ],
)
def test_the_files_have_the_format_that_is_asked_for(
    directory: Path, asked: str | None, found: str | None, *, is_it: bool
) -> None:
    opened = structs.replace(opened_model(directory), quantization=found)
    arguments = EngineArguments(str(directory), quantization=asked)
    layout = place_layers(opened.model)
    if is_it:
        resolve(arguments, opened, layout, 1 << 40)
        return
    with pytest.raises(ConfigError, match=f"quantization='{asked}': the model's (fp8 )?files"):
        resolve(arguments, opened, layout, 1 << 40)


def test_memory_for_no_sequence_is_refused(directory: Path) -> None:
    assert sized(directory, 2)[1] == 2
    with pytest.raises(ConfigError, match=r"weights loaded, .* are free, and .* are needed \(a st"):
        sized(directory, 1.9)


class Recording:
    """A backend that records what it is asked to reserve."""

    def __init__(self) -> None:
        self.asked: list[tuple[StepSize, int]] = []

    def reserve(self, size: StepSize, spare_bytes: int) -> int:
        self.asked.append((size, spare_bytes))
        return STEP


def test_the_step_is_reserved_with_what_the_cache_leaves_over(directory: Path) -> None:
    free = 10 << 30
    for options, cache_bytes in (
        ({}, 4 << 30),
        ({"kv_cache_memory_bytes": 40 * BLOCK}, 40 * BLOCK),
        ({"num_gpu_blocks_override": 33}, 33 * BLOCK),
    ):
        config, _ = sized(directory, 100, **options)
        backend: Any = Recording()
        assert reserve_step(config, backend, free) == STEP
        ((size, spare),) = backend.asked
        assert spare == free - HEADROOM_BYTES - GRAMMARS - cache_bytes
        assert (size.rows, size.sequences, size.positions) == (512, 1000, 128)


@pytest.mark.parametrize("backend", ["torch", "native"])
def test_an_engine_has_the_final_size(
    directory: Path, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.engine.build.final_blocks", lambda *_: 9)
    engine = build_engine(EngineArguments(str(directory), backend=backend))
    assert engine.config.core.num_blocks == engine.facts.num_blocks == 9
    assert engine.core.scheduler.config.num_blocks == 9
    assert engine.facts.longest_tokens == 128


def test_async_scheduling_plans_a_step_ahead(directory: Path) -> None:
    opened = opened_model(directory)
    layout = place_layers(opened.model)
    asked = EngineArguments(str(directory), backend="torch")
    assert resolve(asked, opened, layout).core.pipeline_depth == 1
    ahead = replace(asked, async_scheduling=True)
    assert resolve(ahead, opened, layout).core.pipeline_depth == 2


def test_with_drafts_one_stage_computes_at_a_time(caplog: pytest.LogCaptureFixture) -> None:
    core = CoreConfig(num_blocks=9, max_model_len=16, pipeline_depth=2)
    with_drafts = replace(core, max_drafts=3)
    assert limited_depth(core) is core
    assert limited_depth(with_drafts) is with_drafts, "steps without drafts are planned ahead"
    assert not caplog.text
    with_stages = replace(with_drafts, num_stages=2)
    assert limited_depth(with_stages) == replace(with_stages, pipeline_depth=1, num_stages=1)
    assert "one stage computes at a time" in caplog.text
