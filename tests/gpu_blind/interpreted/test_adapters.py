"""Adapters by kernels on the fake device: near the reference, and with the same bits in any batch.

Kernels find matrices by addresses, so that nothing watches accesses here; test_kernels does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from octavo.backends.adapter_weights import AdapterSettings, AdapterWeights
from octavo.backends.cuda.backend import CudaBackend
from octavo.backends.cuda.fake.accelerator import FakeAccelerator
from octavo.backends.step import NO_ADAPTER, HostBatch
from octavo.backends.torch.backend import TorchBackend
from octavo.models.build import bind
from octavo.models.kv_layout import place_layers
from octavo.models.llama import Llama
from octavo.models.registry import family_of
from tests.backends.cuda.on_fake import SIZE, accelerator_of
from tests.backends.cuda.steps import rows_of
from tests.backends.cuda.test_eight_bits import FORMATS
from tests.backends.cuda.test_eight_bits import SIZES as EIGHT_BIT_SIZES
from tests.backends.made_up_adapters import made_up_adapter, with_more
from tests.gpu_blind.adapter_cases import alone_and_among_others
from tests.gpu_blind.cases import BF16, FP32
from tests.gpu_blind.homes import Home, interpret
from tests.gpu_blind.interpreted import sanitizer
from tests.quant.made_up import write_pair
from tests.runner.tiny import FULL, RandomWeights, make_spec

pytestmark = pytest.mark.slow
SETTINGS = AdapterSettings(slots=3, max_rank=8)
PROMPTS = ([3, 4, 5], [7, 8, 9, 10, 11], [6], [12, 13])
SLOTS = (0, 1, NO_ADAPTER, 2)


@pytest.fixture(autouse=True)
def unwatched() -> Iterator[None]:
    with sanitizer.paused():
        yield


def made(backend: TorchBackend) -> list[AdapterWeights]:
    """Bind the small model; return adapters of it, the last of which does more than add pairs."""
    model = Llama(make_spec(FULL))
    layout = place_layers(model)
    bind(model, backend, RandomWeights())
    backend.prepare(model, layout, 4, adapters=SETTINGS)
    adapters = [made_up_adapter(model, seed) for seed in (1, 2, 3)]
    adapters[2] = with_more(model, adapters[2], 4)
    return adapters


def batch_of(
    backend: TorchBackend, prompts: Sequence[list[int]], slots: Sequence[int]
) -> HostBatch:
    """Bind the model; return a first batch, whose prompts have the adapters of slots."""
    adapters = made(backend)
    backend.make_cache(32)
    return batch_with(backend, adapters, prompts, slots)


def batch_with(
    backend: TorchBackend,
    adapters: Sequence[AdapterWeights],
    prompts: Sequence[list[int]],
    slots: Sequence[int],
) -> HostBatch:
    """Return a batch that puts adapters into slots, for prompts that have these."""
    changes = tuple(
        (slot, backend.adapter(each), 1.0 - 0.5 * slot) for slot, each in enumerate(adapters)
    )
    of_rows = np.repeat(np.array(slots, np.int32), [len(each) for each in prompts])
    return rows_of(backend, *prompts)._replace(adapters=of_rows, adapter_slots=changes)


def by_kernels() -> CudaBackend:
    return CudaBackend(FakeAccelerator(), has_kernels=True)


def test_they_are_near_the_reference_by_two_launches_a_product() -> None:
    reference, backend = TorchBackend(), by_kernels()
    expected = reference.forward(batch_of(reference, PROMPTS, SLOTS)).logits
    bare = reference.forward(batch_of(reference, PROMPTS, (NO_ADAPTER,) * 4)).logits
    found = backend.forward(batch_of(backend, PROMPTS, SLOTS)).logits
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
    assert np.abs(expected - bare).max() > 0.01 * np.abs(expected).max()
    notes = [note.detail for note in accelerator_of(backend).log if note.what == "launch"]
    launched = Counter(notes)
    products = 4 * len(FULL) + 1  # of all layers, and the head
    assert launched["shrink_rows"] == launched["expand_rows"] == products


def test_a_slot_that_is_emptied_and_filled_has_its_new_adapter() -> None:
    backend, other = by_kernels(), by_kernels()
    batch = batch_of(backend, PROMPTS[:1], (0,))
    before = backend.forward(batch).logits
    (_, second, _) = batch.adapter_slots[1]
    emptied = batch._replace(adapters=batch.adapters[:0], adapter_slots=((0, None, 0.0),))
    backend.forward(emptied)
    with pytest.raises(ValueError, match="slot 0"):
        backend.forward(batch._replace(adapter_slots=()))
    found = backend.forward(batch._replace(adapter_slots=((0, second, 0.5),))).logits
    expected = other.forward(batch_of(other, PROMPTS[:1], (1,))).logits
    np.testing.assert_array_equal(found, expected)
    assert not np.array_equal(found, before)


def test_a_row_has_the_same_bits_alone_and_among_others() -> None:
    backend, other = by_kernels(), by_kernels()
    alone = backend.forward(batch_of(backend, PROMPTS[1:2], (1,))).logits
    among = other.forward(batch_of(other, (*PROMPTS, PROMPTS[1]), (*SLOTS, 1))).logits
    np.testing.assert_array_equal(among[-1], alone[-1])
    np.testing.assert_array_equal(among[1], alone[-1])


@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_sums_of_a_row_have_the_same_bits_at_every_place(dtype: torch.dtype) -> None:
    first, *others = alone_and_among_others(dtype, Home(interpret))
    assert all(torch.equal(first, each) for each in others)


def test_nothing_is_compiled_once_an_engine_serves() -> None:
    backend = by_kernels()
    adapters = made(backend)
    backend.reserve(msgspec.structs.replace(SIZE, rows=4, wanted_rows=4, sequences=4), 0)
    before = set(accelerator_of(backend).forms)
    assert {"shrink_rows", "expand_rows"} <= {str(name) for name, *_ in before}
    backend.make_cache(32)
    for prompts, slots in ((PROMPTS, SLOTS), (PROMPTS[:1], (1,)), (PROMPTS[2:3], (0,))):
        backend.forward(batch_with(backend, adapters, prompts, slots))
    assert accelerator_of(backend).forms == before


def test_rows_of_adapters_stay_beside_the_codes_of_products(tmp_path: Path) -> None:
    opened = write_pair(tmp_path, FORMATS["rows"], **EIGHT_BIT_SIZES).stored
    found = []
    for has_kernels in (False, True):
        home = FakeAccelerator()
        backend = CudaBackend(home, "bfloat16", has_kernels=has_kernels, activations="dynamic")
        model = family_of(opened.architecture)(opened.spec)
        layout = place_layers(model)
        bind(model, backend, opened.weights)
        backend.prepare(model, layout, 4, adapters=SETTINGS)
        backend.make_cache(32)
        adapters = [made_up_adapter(model, 1)]
        for slots in ((NO_ADAPTER,), (0,)):
            batch = batch_with(backend, adapters, PROMPTS[:1], slots)
            found.append(backend.forward(batch).logits)
    bare, expected, bare_by_kernels, by_kernels = found
    most = np.abs(expected).max()
    assert np.abs(expected - bare).max() > 0.2 * most
    assert np.abs(by_kernels - expected).max() <= 0.05 * most
    assert np.abs(bare_by_kernels - bare).max() <= 0.05 * most
    launched = Counter(note.detail for note in home.log if note.what == "launch")
    assert launched["round_rows"] == 2 * 2  # those of attention, in steps with prompts
