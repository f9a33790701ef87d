"""The predicted memory is the memory that is taken, and settings that do not fit are refused."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from octavo import resolve as resolving
from octavo.backends.base import KVLayers, KVLayout
from octavo.backends.native.backend import NativeBackend, NativeOptions
from octavo.backends.native.footprint import NativeFootprint
from octavo.backends.native.packing import choose_format
from octavo.backends.torch import attention, footprint
from octavo.core.config import ConfigError
from octavo.engine.build import build_engine
from octavo.layers import KVSpec
from octavo.loader.source import resolve as resolve_source
from octavo.models.footprint import tensor_sizes
from octavo.models.kv_layout import place_layers
from octavo.models.load import OpenedModel, open_model
from octavo.observe.memory_bill import HEADROOM_BYTES
from octavo.options.engine import EngineArguments
from octavo.options.speculation import SpeculativeConfig
from octavo.resolve import make_bill, resolve
from tests.api.tiny import make_model

BLOCK = 2 * 2 * 16 * 2 * 8 * 4  # keys and values, layers, tokens, heads, their size, float32


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("tiny"))


def opened_model(directory: Path) -> OpenedModel:
    return open_model(resolve_source(str(directory)))


def test_the_estimate_uses_the_numbers_of_the_backends() -> None:
    assert footprint.QUERY_TILE == attention.QUERY_TILE
    assert footprint.KEY_TILE == attention.KEY_TILE
    assert footprint.MOST_KEPT_CELLS == attention.MOST_KEPT_CELLS


@pytest.mark.parametrize(
    ("backend", "dtype", "cpu_weights"),
    [
        ("torch", "float32", "auto"),
        ("torch", "bfloat16", "auto"),
        ("native", "float32", "auto"),
        ("native", "bfloat16", "auto"),
        ("native", "bfloat16", "bf16"),
        ("native", "bfloat16", "int8"),
        ("native", "bfloat16", "int4"),
        ("native", "bfloat16", "int4-128"),
    ],
)
def test_weights_take_what_was_predicted(
    directory: Path,
    backend: Any,
    dtype: Any,
    cpu_weights: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "octavo")
    arguments = EngineArguments(
        str(directory), backend=backend, dtype=dtype, cpu_weights=cpu_weights
    )
    engine = build_engine(arguments)
    bill = engine.config.bill
    assert bill.weights_bytes == engine.facts.memory_bytes["weights"]
    assert "measured (+0.0 %)" in caplog.text
    assert bill.block_bytes == BLOCK * (2 if dtype == "bfloat16" else 4) // 4
    assert engine.facts.memory_bytes["KV cache"] == engine.config.core.num_blocks * bill.block_bytes
    stored = sum(info.num_bytes for info in opened_model(directory).checkpoint.tensors.values())
    assert bill.stored_bytes == stored


@pytest.mark.parametrize(
    ("dtype", "cpu_weights", "expected"),
    [
        ("auto", "auto", {"F32": "F32", "F16": "F16", "BF16": "BF16", "Q8_0": "U8"}),
        ("bfloat16", "auto", {"F32": "BF16", "F16": "F16", "BF16": "BF16", "Q8_0": "U8"}),
        ("bfloat16", "int8", {"F32": "U8", "F16": "U8", "BF16": "U8", "Q8_0": "U8"}),
        ("bfloat16", "bf16", {"F32": "BF16", "F16": "BF16", "BF16": "BF16", "Q8_0": "U8"}),
        ("float32", "auto", {"F32": "F32", "F16": "F32", "BF16": "F32", "Q8_0": "F32"}),
    ],
)
def test_bfloat16_converts_weights_that_are_wider_and_auto_keeps_them(
    directory: Path, dtype: Any, cpu_weights: Any, expected: dict[str, str]
) -> None:
    opened = opened_model(directory)
    asked = EngineArguments(str(directory), backend="native", dtype=dtype, cpu_weights=cpu_weights)
    chosen = resolve(asked, opened, place_layers(opened.model)).footprint
    assert isinstance(chosen, NativeFootprint)
    found = {
        name: choose_format(name, 256, chosen.weights, is_embedding=False).name for name in expected
    }
    assert found == expected


def test_the_estimate_knows_that_queries_keys_and_values_have_smaller_groups(
    directory: Path,
) -> None:
    opened = opened_model(directory)
    sizes = [structs.replace(size, type="I8Wide") for size in tensor_sizes(opened) if size.is_qkv]
    assert len(sizes) == opened.spec.layers * len({size.rows for size in sizes})
    footprint = NativeFootprint("auto", "bfloat16")
    size = structs.replace(sizes[0], rows=64, inputs=256)
    bytes_of = {
        is_qkv: footprint.weight_bytes(structs.replace(size, is_qkv=is_qkv))
        for is_qkv in (True, False)
    }
    assert bytes_of[True] == 64 * 256 * 8.5 / 8
    assert bytes_of[False] == 64 * 256 * 8.125 / 8


def test_the_estimate_reads_no_weights(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = opened_model(directory)

    def refuse(*_: object) -> None:
        raise AssertionError("a weight was read")

    monkeypatch.setattr("octavo.models.checkpoint_weights.CheckpointWeights.rows", refuse)
    monkeypatch.setattr("octavo.loader.checkpoint.Checkpoint.read", refuse)
    make_bill(EngineArguments(str(directory), backend="torch"), opened, place_layers(opened.model))


def test_the_cache_takes_the_free_memory_up_to_a_bound(directory: Path) -> None:
    opened = opened_model(directory)
    layout = place_layers(opened.model)
    asked = EngineArguments(str(directory), backend="torch", max_num_seqs=1_000_000)
    bill = make_bill(asked, opened, layout)
    base = bill.fixed_bytes + HEADROOM_BYTES
    most = footprint.TorchFootprint("float32").most_kv_bytes
    for free, kv_bytes in ((base + 20 * BLOCK, 20 * BLOCK), (1 << 50, most)):
        config = resolve(asked, opened, layout, free)
        assert config.core.num_blocks == kv_bytes // BLOCK
    few = EngineArguments(str(directory), backend="torch", max_num_seqs=2)
    assert resolve(few, opened, layout, 1 << 40).core.num_blocks == 2 * 128 // 16 + 1


def test_a_short_memory_shortens_sequences(directory: Path) -> None:
    opened = opened_model(directory)
    layout = place_layers(opened.model)
    asked = EngineArguments(str(directory), backend="torch")
    free = make_bill(asked, opened, layout).fixed_bytes + HEADROOM_BYTES + 4 * BLOCK
    assert resolve(asked, opened, layout, free).core.max_model_len == 3 * 16
    with pytest.raises(ConfigError, match="set max_model_len to at most 48"):
        resolve(
            EngineArguments(str(directory), backend="torch", max_model_len=128),
            opened,
            layout,
            free,
        )


def test_speculation_needs_logits_for_every_draft(directory: Path) -> None:
    opened = opened_model(directory)
    layout = place_layers(opened.model)
    asked = EngineArguments(str(directory), backend="native", max_num_seqs=8)
    asked = replace(asked, speculative_config=SpeculativeConfig("off"))
    drafting = replace(asked, speculative_config=SpeculativeConfig("ngram", 16))
    predicting = replace(asked, speculative_config=None)
    cores = [resolve(each, opened, layout).core for each in (asked, drafting, predicting)]
    assert [core.max_drafts for core in cores] == [0, 16, 16]
    assert [core.max_step_drafts for core in cores] == [0, 8 * 16, 16]
    assert [core.proposes for core in cores] == [False, True, False]
    plain, more, few = (
        make_bill(each, opened, layout).step_bytes for each in (asked, drafting, predicting)
    )
    most = make_bill(replace(asked, max_num_seqs=8 * 17), opened, layout).step_bytes
    logits_bytes = opened.spec.vocabulary * 4
    assert plain + 8 * 16 * logits_bytes <= more <= most
    assert plain + 16 * logits_bytes <= few < more
    with pytest.raises(ConfigError, match="steps of at least 2 tokens"):
        resolve(replace(drafting, max_num_batched_tokens=1), opened, layout)


def test_a_model_too_large_is_refused(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    opened = opened_model(directory)
    layout = place_layers(opened.model)
    with pytest.raises(
        ConfigError, match=r"not enough memory: .* are needed .* 9\.766 KiB are free"
    ):
        resolve(EngineArguments(str(directory), backend="torch"), opened, layout, 10_000)
    insisting = EngineArguments(str(directory), backend="torch", kv_cache_memory_bytes=40 * BLOCK)
    config = resolve(insisting, opened, layout, 10_000)
    assert config.core.num_blocks == 40
    assert "the machine may swap" in caplog.text
    taking = replace(insisting, backend="native", preallocate_kv_cache=True)
    with pytest.raises(ConfigError, match="takes all memory of the KV cache at the start"):
        resolve(taking, opened, layout, 10_000)


@pytest.mark.parametrize(
    ("dtype", "bits"), [("int8", 8), ("fp8", 8), ("fp8_e4m3", 8), ("fp8_e5m2", 8), ("int4", 4)]
)
def test_kv_in_few_bits_has_a_scale_per_head(dtype: Any, bits: int, directory: Path) -> None:
    opened = opened_model(directory)
    layout = place_layers(opened.model)
    asked = EngineArguments(str(directory), backend="native", kv_cache_dtype=dtype)
    (group,) = layout.groups
    cells = 2 * group.num_layers * 16 * group.spec.heads
    assert make_bill(asked, opened, layout).block_bytes == cells * (group.spec.dim * bits // 8 + 4)
    assert build_engine(asked).core.scheduler.config.num_blocks > 1
    refusing = [{"dtype": "float32", "backend": "native"}]
    if dtype not in ("fp8", "fp8_e4m3"):
        refusing += [{"backend": "torch"}, {"backend": "cuda", "device": "fake"}]
    for refused in refusing:
        wrong: Any = refused
        with pytest.raises(ConfigError, match=rf"^kv_cache_dtype='{dtype}' is "):
            make_bill(replace(asked, **wrong), opened, layout)


@pytest.mark.parametrize("where", [{"backend": "torch"}, {"backend": "cuda", "device": "fake"}])
def test_fp8_kv_of_torch_has_a_byte_for_each_number_and_vector(
    where: dict[str, Any], directory: Path
) -> None:
    """Scales lie within blocks, so that what is copied, saved and loaded has them."""
    opened = opened_model(directory)
    layout = place_layers(opened.model)
    (group,) = layout.groups
    cells = 2 * group.num_layers * 16 * group.spec.heads
    asked = EngineArguments(str(directory), kv_cache_dtype="fp8", **where)
    assert make_bill(asked, opened, layout).block_bytes == cells * (group.spec.dim + 1)


def test_int4_is_refused_for_latent_rows(directory: Path) -> None:
    opened = opened_model(directory)
    layout = KVLayout((KVLayers(KVSpec("latent", 1, 576, latent=512), 2),))
    asked = EngineArguments(str(directory), backend="native", kv_cache_dtype="int4")
    with pytest.raises(ConfigError, match=r"^kv_cache_dtype='int4' is "):
        make_bill(asked, opened, layout)
    assert make_bill(replace(asked, kv_cache_dtype="fp8"), opened, layout).block_bytes > 0


def test_quantised_weights_are_refused_where_the_backend_cannot_keep_them(directory: Path) -> None:
    opened = opened_model(directory)
    layout = place_layers(opened.model)
    asked = EngineArguments(str(directory), backend="native", cpu_weights="int8")
    assert make_bill(asked, opened, layout).weights_bytes > 0
    for refused in ({"backend": "torch"}, {"dtype": "float32", "backend": "native"}):
        wrong: Any = refused
        with pytest.raises(ConfigError, match=r"^cpu_weights='int8' is "):
            make_bill(replace(asked, **wrong), opened, layout)


def test_a_number_of_threads_is_not_ignored_silently(directory: Path) -> None:
    opened = opened_model(directory)
    layout = place_layers(opened.model)
    asked = EngineArguments(str(directory), backend="native", num_threads=2)
    assert make_bill(asked, opened, layout).weights_bytes > 0
    with pytest.raises(ConfigError, match=r"num_threads=2 .* OMP_NUM_THREADS"):
        make_bill(replace(asked, backend="torch"), opened, layout)
    free = make_bill(replace(asked, backend="torch", num_threads=0), opened, layout)
    assert free.weights_bytes > 0


def test_an_automatic_choice_of_the_slow_backend_is_logged(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log warns of it, unless the user has chosen that backend."""
    caplog.set_level(logging.WARNING, "octavo")
    opened = opened_model(directory)
    layout = place_layers(opened.model)
    for backend in ("native", "torch"):
        chosen: Any = backend
        resolve(EngineArguments(str(directory), backend=chosen), opened, layout)
    assert not caplog.text
    resolve(EngineArguments(str(directory), block_size=4), opened, layout)
    assert "block_size=4 is not a multiple of 16" in caplog.text


def test_a_cache_too_small_for_a_token_is_refused_and_a_small_one_is_logged(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "octavo")
    opened = opened_model(directory)
    layout = place_layers(opened.model)
    few = EngineArguments(str(directory), num_gpu_blocks_override=2)
    engine = build_engine(few)
    assert engine.facts.longest_tokens == 17  # the last token's KV is never needed
    assert "a sequence can have 17 tokens, including its prompt, instead of the 128" in caplog.text
    caplog.clear()
    build_engine(replace(few, max_model_len=17))
    assert not caplog.text
    group = layout.groups[0]
    windowed = KVLayout((group, group._replace(spec=structs.replace(group.spec, window=32))))
    with pytest.raises(ConfigError, match=r"override=2 leaves no .* token: .*; give 3 at least"):
        resolve(few, opened, windowed)


def test_weights_that_are_quantised_already_stay_so_with_a_warning(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "octavo")
    opened = opened_model(directory)
    layout = place_layers(opened.model)
    asked = EngineArguments(str(directory), backend="native", cpu_weights="int8")
    resolve(asked, opened, layout)
    assert not caplog.text
    sizes = [structs.replace(size, type="Q4_1", inputs=64) for size in tensor_sizes(opened)]
    monkeypatch.setattr(resolving, "tensor_sizes", lambda _: sizes)
    resolve(replace(asked, cpu_weights="auto"), opened, layout)
    assert not caplog.text
    resolve(asked, opened, layout)
    assert "cpu_weights=int8 changes nothing: the file's weights are quantised" in caplog.text
    assert len(caplog.records) == 1


def test_a_missing_instruction_set_is_refused_with_one_message(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check before loading and the backend's own check raise the same message."""
    opened = opened_model(directory)
    words = "{}='sse9' is none .* choose one of .*scalar"
    monkeypatch.setenv("OCTAVO_CPU_ISA", "sse9")
    with pytest.raises(ConfigError, match=words.format("OCTAVO_CPU_ISA")):
        resolve(EngineArguments(str(directory)), opened, place_layers(opened.model))
    with pytest.raises(ValueError, match=words.format("cpu_isa")):
        NativeBackend(NativeOptions(instruction_set="sse9"))


def test_mean_embeddings_reserve_memory_for_all_rows(directory: Path) -> None:
    opened = opened_model(directory)
    layout = place_layers(opened.model)

    def step_bytes(rows: int, sequences: int) -> int:
        asked = EngineArguments(
            str(directory),
            backend="native",
            max_num_batched_tokens=rows,
            max_num_seqs=sequences,
            speculative_config=SpeculativeConfig("off"),
        )
        return make_bill(asked, opened, layout).step_bytes

    a_row = step_bytes(65, 8) - step_bytes(64, 8)
    a_wanted_row = step_bytes(64, 9) - step_bytes(64, 8) - 4 * opened.spec.vocabulary
    assert a_row == 2 * a_wanted_row + 4 * opened.spec.hidden
