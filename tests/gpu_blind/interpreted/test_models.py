"""Models by kernels on the fake device are near the reference, with the same bits in any batch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from octavo import LLM, SamplingParams
from octavo.backends.base import StepSize
from octavo.backends.cuda.backend import CudaBackend
from octavo.backends.cuda.fake.accelerator import FakeAccelerator, FakeGraph
from octavo.backends.cuda.kernels import paged
from octavo.backends.cuda.kernels.paged import GraphWork
from octavo.backends.step import NO_ROWS, Draws, HostBatch, batch_of_copies
from octavo.backends.torch.backend import TorchBackend
from octavo.models.build import bind
from octavo.models.kv_layout import place_layers
from octavo.models.llama import Llama
from octavo.models.registry import FAMILIES, family_of
from tests.api.tiny import make_model
from tests.backends.cuda.on_fake import SIZE, accelerator_of, made
from tests.backends.cuda.steps import rows_of
from tests.backends.cuda.test_eight_bits import FORMATS, logits_of, make_eight_bit_model
from tests.backends.cuda.test_eight_bits import SIZES as EIGHT_BIT_SIZES
from tests.backends.cuda.test_families import LENGTHS, results
from tests.backends.cuda.test_graphs import outputs_of
from tests.backends.cuda.test_steps import (
    FILTERED,
    GREEDY,
    PROMPTS,
    RULED,
    TOLD,
    WARM,
    assert_equal,
    draws_of,
)
from tests.gpu_blind.homes import Home, interpret
from tests.gpu_blind.interpreted import sanitizer
from tests.models.made_up import DECODERS
from tests.quant.made_up import write_pair
from tests.runner import tiny
from tests.runner.tiny import FULL

# Sums in other orders, through the layers of a small model in float32.
TOLERANCE = 1e-4
WINDOWED = (None, 6)
# Families whose texts are longer than a tile of keys; of others they are longer than a window. What
# a kernel makes of long texts is seen in its cases, at a twentieth of the time.
LONG, SHORT = ("LlamaForCausalLM", "Gemma3ForCausalLM"), (15, 4)
# All that a layer submits beside its products, from one attention to the next.
LAUNCHES = [
    *("attend_chunks", "merge_chunks", "add_and_normalise", "gate_rows", "add_and_normalise"),
    "place_heads",
]

# One graph, of the eight rows that products of the fake device compute at once.
SMALL = msgspec.structs.replace(SIZE, rows=4, wanted_rows=4, sequences=4, positions=32)


def make_backend(
    num_blocks: int = 16,
    block_size: int = 4,
    windows: tiny.Windows = FULL,
    *,
    captures: bool = False,
    has_short_kv: bool = False,
) -> CudaBackend:
    """Make the small model's backend, whose operations are kernels where there are any."""
    model, layout = made(windows)
    backend = CudaBackend(
        FakeAccelerator(), has_kernels=True, captures=captures, has_short_kv=has_short_kv
    )
    backend.prepare(model, layout, block_size)
    if captures:
        with sanitizer.paused():
            backend.reserve(SMALL, 0)
    backend.make_cache(num_blocks)
    return backend


@pytest.mark.slow
@pytest.mark.sample(3)
@pytest.mark.parametrize("architecture", FAMILIES)
def test_a_family_is_near_the_reference(architecture: str) -> None:
    splits = architecture in DECODERS
    lengths = LENGTHS if architecture in LONG else SHORT
    expected = results(architecture, TorchBackend(), splits=splits, lengths=lengths)
    backend = CudaBackend(FakeAccelerator(), has_kernels=True)
    found = results(architecture, backend, splits=splits, lengths=lengths)
    for mine, other in zip(found, expected, strict=True):
        for name in ("logits", "hidden"):
            reference = getattr(other, name)
            most = np.abs(reference).max(initial=1.0)
            np.testing.assert_allclose(
                getattr(mine, name), reference, rtol=0, atol=TOLERANCE * most
            )


def test_the_kernels_are_launched_and_nothing_waits() -> None:
    backend = make_backend()
    backend.step(rows_of(backend, *PROMPTS), draws_of(*(WARM,) * 4)).collect()
    notes = accelerator_of(backend).log
    launched = {note.detail for note in notes if note.what == "launch"}
    assert launched == {
        *(
            "normalise",
            "add_and_normalise",
            "gate_rows",
            "attend_rows",
            "attend_chunks",
            "merge_chunks",
        ),
        "place_heads",
        *("best_of_part", "best_of_row"),
    }
    assert [note.what for note in notes if note.is_in_step].count("fetch") == 1


def pool_of(backend: CudaBackend) -> np.ndarray[Any, Any]:
    """Return the cache as bytes [blocks, bytes]."""
    assert backend._buffers is not None
    with accelerator_of(backend).working():
        (pool,) = accelerator_of(backend).fetch([backend._buffers.blocks[0]])
    return pool


@pytest.mark.parametrize(("copies", "launches"), [(4, 1), (0, 0)])
def test_a_step_copies_its_blocks_in_one_launch(copies: int, launches: int) -> None:
    """The blocks of two groups of layers, as copies one by one have them."""
    backend = make_backend(windows=WINDOWED)
    backend.step(rows_of(backend, *PROMPTS), draws_of(*(WARM,) * 4)).collect()
    pool = pool_of(backend)
    pairs = ((1, 12, 0), (2, 13, 1), (1, 14, 0), (3, 15, 0))[:copies]
    for source, destination, _ in pairs:
        pool[destination] = pool[source]
    accelerator_of(backend).log.clear()
    backend.step(batch_of_copies(pairs), Draws((), (), NO_ROWS, NO_ROWS)).collect()
    notes = [note.detail for note in accelerator_of(backend).log if note.what == "launch"]
    assert notes == ["copy_blocks"] * launches
    np.testing.assert_array_equal(pool_of(backend), pool)


def test_all_kernels_of_all_programs_run_before_the_first_step() -> None:
    """Kernels that run first in a confined process cannot be compiled there."""
    backend = CudaBackend(FakeAccelerator(), has_kernels=True)
    model, drafter = Llama(tiny.make_spec(FULL)), Llama(tiny.make_spec((None,)))
    layout = place_layers(model, drafter)
    for each in (model, drafter):
        bind(each, backend, tiny.RandomWeights())
    backend.prepare(model, layout, 4)
    backend.add_program(drafter, "drafter")
    size = StepSize(
        rows=4, wanted_rows=4, sequences=4, positions=8, hidden=16, ffn=24,
        heads=2, kv_heads=1, head_dim=8, vocabulary=tiny.VOCABULARY,
    )  # fmt: skip
    backend.reserve(size, 0)
    launched = Counter(note.detail for note in accelerator_of(backend).log if note.what == "launch")
    assert launched["attend_rows"] == len(FULL) + 1
    assert launched["attend_chunks"] == 2 * len(FULL) + 1  # in the largest step too
    assert launched["best_of_part"] == 4  # with masks, filters, both, and none
    assert launched["edge_of_row"] == 2
    assert launched["change_numbers"] == 1
    assert launched["copy_blocks"]


COUNTS = [4, 2, 4]


@pytest.mark.slow
@pytest.mark.parametrize("is_short", [False, True], ids=("", "FP8"))
@pytest.mark.parametrize("windows", [FULL, WINDOWED], ids=("full", "windowed"))
def test_replayed_steps_have_the_tokens_of_kernels_one_by_one(
    windows: tiny.Windows, is_short: bool
) -> None:
    """The device plans their chunks, and their numbers of rows differ."""
    kinds = (WARM, GREEDY, TOLD, FILTERED)
    replaying, usual = (
        make_backend(128, 4, windows, captures=each, has_short_kv=is_short)
        for each in (True, False)
    )
    for found, expected in zip(
        outputs_of(replaying, kinds, COUNTS), outputs_of(usual, kinds, COUNTS), strict=True
    ):
        assert_equal(found, expected)
    notes = [note.what for note in accelerator_of(replaying).log]
    assert notes.count("replay") == len(COUNTS)


@pytest.mark.slow
def test_nothing_is_compiled_once_an_engine_serves() -> None:
    """Neither by prompts nor by steps of any number of rows, replayed or not."""
    for captures in (True, False):
        backend = make_backend(64, 4, captures=captures)
        if not captures:
            with sanitizer.paused():
                backend.reserve(SMALL, 0)
            backend.make_cache(64)
        forms = accelerator_of(backend).forms
        before = set(forms)
        outputs_of(backend, (WARM, GREEDY, WARM, WARM), [4, 1])
        assert before
        assert forms == before


def test_a_layer_has_six_launches_beside_its_products() -> None:
    """Sums of residuals are among them."""
    backend = make_backend(64, 4, captures=True)
    assert backend._graphs is not None
    (graph,) = backend._graphs.captured.values()
    assert isinstance(graph, FakeGraph)
    first, second = (n for n, name in enumerate(graph.names) if name == "attend_chunks")
    layer = graph.names[first:second]
    assert layer.count("aten.mm") == 4
    # The small model's rows are padded, as no rows are whose width is a multiple of 64 bytes.
    assert [each for each in layer if each not in ("aten.mm", "aten.constant_pad_nd")] == LAUNCHES


def eight_bit_layer(directory: Path, positions: int) -> list[str]:
    """Return what a layer of FP8 submits in a decode step, of so many positions at most."""
    opened = write_pair(directory, FORMATS["rows"], **EIGHT_BIT_SIZES).stored
    backend = CudaBackend(
        FakeAccelerator(), "bfloat16", has_kernels=True, captures=True, activations="dynamic"
    )
    model = family_of(opened.architecture)(opened.spec)
    bind(model, backend, opened.weights)
    backend.prepare(model, place_layers(model), 16)
    sizes = {"positions": positions, "vocabulary": opened.spec.vocabulary, "rows": 1}
    with sanitizer.paused():
        backend.reserve(msgspec.structs.replace(SMALL, **sizes), 0)
    backend.make_cache(4)
    assert backend._graphs is not None
    (graph,) = backend._graphs.captured.values()
    assert isinstance(graph, FakeGraph)
    first, second = (n for n, name in enumerate(graph.names) if name == "attend_chunks")
    return graph.names[first:second]


@pytest.mark.slow
@pytest.mark.parametrize(("positions", "rounding"), [(8192, []), (8208, ["round_rows"])])
def test_products_of_eight_bits_have_no_launches_beside_them(
    positions: int, rounding: list[str], tmp_path: Path
) -> None:
    """Rows are rounded by what makes them; those of long attention by a launch of its own."""
    layer = eight_bit_layer(tmp_path, positions)
    assert layer.count("aten._scaled_mm") == 4
    others = [each for each in layer if each != "aten._scaled_mm"]
    assert others == [*LAUNCHES[:2], *rounding, *LAUNCHES[2:]]


@pytest.mark.parametrize("window", [0, 5, 600])
def test_the_device_plans_the_chunks_that_the_host_would(window: int) -> None:
    positions = np.array([0, 511, 512, 5000, 1023, 77], np.int32)
    rows = len(positions)
    host = HostBatch(positions, positions, np.arange(rows + 1, dtype=np.int32), (), positions)
    most = 40
    at = torch.tensor([*positions.tolist(), -1, -1])
    tables = [torch.zeros(len(at), 10)]  # of blocks as large as chunks
    work = GraphWork(Home(interpret), at, tables, 512)._planned(window, 1, most)
    ((chunks, items),) = work.decodes
    _, ((expected, expected_rows),) = paged.plan(host, window, 1, most)
    assert chunks[0].tolist() == [len(expected), 0, 0]
    np.testing.assert_array_equal(chunks[1 : 1 + len(expected)], expected)
    np.testing.assert_array_equal(items[:rows], expected_rows)
    assert items[rows:, 2].tolist() == [0, 0]


@pytest.mark.parametrize(
    "kinds",
    [(GREEDY,) * 4, (WARM,) * 4, RULED, (TOLD, WARM, FILTERED, GREEDY)],
    ids=("greedy", "warm", "ruled", "mixed"),
)
def test_the_kernels_draw_the_references_tokens(kinds: tuple) -> None:
    reference, backend = tiny.make_backend(FULL, 16, 4), make_backend()
    expected = reference.step(rows_of(reference, *PROMPTS), draws_of(*kinds)).collect()
    found = backend.step(rows_of(backend, *PROMPTS), draws_of(*kinds)).collect()
    assert found.tokens == expected.tokens
    assert found.failures == expected.failures


@pytest.mark.slow
@pytest.mark.parametrize("kv_cache_dtype", ["auto", "fp8"])
def test_an_engine_answers_by_kernels(kv_cache_dtype: str, tmp_path: Path) -> None:
    """Prompts in chunks, in a cache too small for all of them; greedy and drawn.

    Where keys and values are FP8, weights are too.
    """
    is_short = kv_cache_dtype == "fp8"
    model = make_eight_bit_model(tmp_path) if is_short else str(make_model(tmp_path))
    prompts = [[3, 4, 5, 6], [*range(10, 40)], [7, 8, 9] * 5]
    sampling = [
        SamplingParams(max_tokens=4, temperature=warmth, seed=1, ignore_eos=True)
        for warmth in (0.0, 0.9, 0.0)
    ]
    sizes: dict[str, Any] = {"max_num_batched_tokens": 16, "num_gpu_blocks_override": 5}
    sizes["max_num_seqs"] = 3  # graphs of eight rows, which are interpreted in a second each
    sizes["kv_cache_dtype"] = kv_cache_dtype
    texts = []
    on_device = {"device": "fake", "cuda_kernels": "triton", "async_scheduling": True}
    for more in ({"backend": "torch", "fp8_activations": "dynamic"}, on_device):
        with LLM(model, dtype="float32", **sizes, **more) as llm:
            outputs = llm.generate(prompts, sampling)
            texts.append([each.outputs[0].token_ids for each in outputs])
    assert texts[0] == texts[1]


@pytest.mark.slow
def test_a_row_has_the_same_bits_alone_and_among_others_and_in_chunks() -> None:
    """The last logits of a prompt: whole and alone, among others, and the last row by itself."""
    whole = make_backend().forward(rows_of(make_backend(), PROMPTS[1])).logits[-1]
    backend = make_backend()
    among = backend.forward(rows_of(backend, PROMPTS[1], *PROMPTS)).logits[0]
    np.testing.assert_array_equal(among, whole)
    chunked = make_backend()
    chunked.forward(rows_of(chunked, PROMPTS[1][:-1]))
    last = chunked.forward(rows_of(chunked, PROMPTS[1][-1:], start=len(PROMPTS[1]) - 1)).logits[-1]
    np.testing.assert_array_equal(last, whole)


@pytest.mark.slow
@pytest.mark.parametrize("activations", ["dynamic", "static"])
def test_products_of_a_card_read_the_rows_that_a_kernel_rounds(
    activations: str, tmp_path: Path
) -> None:
    """The kernel's codes are those of torch's operations, and so are the logits.

    Their bits are those of kernels that round apart.
    """
    opened = write_pair(tmp_path, FORMATS["matrix"], **EIGHT_BIT_SIZES).stored
    usual, backend = (
        CudaBackend(FakeAccelerator(), "bfloat16", has_kernels=each, activations=activations)
        for each in (False, True)
    )
    apart = CudaBackend(FakeAccelerator(), "bfloat16", has_kernels=True, activations=activations)
    apart._last_passes = ()
    expected, found, alike = (logits_of(opened, each) for each in (usual, backend, apart))
    np.testing.assert_array_equal(alike, found)
    launched = Counter(note.detail for note in accelerator_of(backend).log if note.what == "launch")
    assert launched["round_rows"] == 2  # those of attention, in a step with prompts
    notes = (note.detail for note in accelerator_of(apart).log if note.what == "launch")
    assert Counter(notes)["round_rows"] == 2 * 4
    assert np.abs(found - expected).max() <= 0.05 * np.abs(expected).max()
