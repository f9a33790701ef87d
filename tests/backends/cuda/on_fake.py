"""Small random models on the fake device, whose steps refuse whatever a card would wait for."""

from __future__ import annotations

from functools import lru_cache

from octavo.backends.base import KVLayout
from octavo.backends.cuda.backend import CudaBackend
from octavo.backends.cuda.fake.accelerator import FakeAccelerator
from octavo.layers import Model
from octavo.models.build import bind
from octavo.models.kv_layout import place_layers
from octavo.models.llama import Llama
from tests.runner.tiny import Family, RandomWeights, Windows, make_spec


def make_backend(
    windows: Windows, num_blocks: int, block_size: int, family: Family = Llama
) -> CudaBackend:
    """Make a backend with an empty cache on a fake device of its own."""
    model, layout = made(windows, family)
    backend = CudaBackend(FakeAccelerator())
    backend.prepare(model, layout, block_size)
    backend.make_cache(num_blocks)
    return backend


@lru_cache(maxsize=16)
def made(windows: Windows, family: Family = Llama) -> tuple[Model, KVLayout]:
    """Return a model whose weights are on a fake device; both are without a state."""
    model = family(make_spec(windows))
    bind(model, CudaBackend(FakeAccelerator()), RandomWeights())
    return model, place_layers(model)


def accelerator_of(backend: CudaBackend) -> FakeAccelerator:
    """Return the fake device that a backend computes on."""
    accelerator = backend._accelerator
    assert isinstance(accelerator, FakeAccelerator)
    return accelerator
