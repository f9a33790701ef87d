"""Two ranks on fake devices, as two threads of one process, connected as processes are."""

from __future__ import annotations

import os
import socket
import weakref
from collections.abc import Callable
from threading import Thread
from typing import Any

from msgspec import structs

from octavo.backends.base import ForwardResult
from octavo.backends.cuda.accelerator import Accelerator
from octavo.backends.cuda.backend import CudaBackend
from octavo.backends.cuda.fake.accelerator import FakeAccelerator
from octavo.backends.cuda.graph_batch import operation_refusal
from octavo.backends.cuda.ranks import FollowingBackend, LeadingBackend
from octavo.backends.step import HostBatch
from octavo.backends.torch.interpreter import Outputs
from octavo.distributed.context import DevicePlace
from octavo.layers import Model
from octavo.models.build import bind
from octavo.models.kv_layout import place_layers
from octavo.models.llama import Llama
from octavo.models.weights import Weights
from tests.backends.cuda.on_fake import SIZE, WholeSpans
from tests.runner.tiny import VOCABULARY, Family, RandomWeights, Windows, make_spec

RANKS = 2


class FirstDevice(LeadingBackend):
    """The backend of the first rank, whose forward passes the other one computes too."""

    def forward(self, batch: HostBatch) -> ForwardResult:
        self._post(self._step_of(batch, "operations"))
        return super().forward(batch)

    def reserve(self, size: Any, spare_bytes: int) -> int:
        raise NotImplementedError("its forward passes are posted")


def two_devices(
    declare: Callable[[], Model],
    make_weights: Callable[[Model], Weights],
    block_size: int,
    num_blocks: int,
    *,
    first: type[LeadingBackend] = FirstDevice,
    further: type[FollowingBackend] = FollowingBackend,
    prepared: Callable[[CudaBackend], None] = lambda backend: None,
) -> LeadingBackend:
    """Return the backend of the first rank; the other one ends with it."""
    meeting = os.memfd_create("meeting")  # closed with the first rank
    ours, theirs = socket.socketpair()
    backends: list[CudaBackend] = []
    for rank, (make, end) in enumerate(((first, ours), (further, theirs))):
        place = DevicePlace(rank, RANKS, meeting, (end,))
        model, backend = declare(), make(FakeAccelerator(), "float32", place)
        layout = place_layers(model)
        bind(model, backend, make_weights(model), place.context)
        backend.prepare(model, layout, block_size)
        prepared(backend)
        backends.append(backend)
    leading, following = backends
    assert isinstance(leading, LeadingBackend)
    assert isinstance(following, FollowingBackend)

    def follow() -> None:
        with theirs:
            following.follow()
            following.follow_steps()

    Thread(target=follow, daemon=True).start()
    weakref.finalize(leading, ours.close)
    weakref.finalize(leading, os.close, meeting)
    leading.make_cache(num_blocks)
    return leading


def even(spec_of: Windows) -> Any:
    """Return the small models' specification with a vocabulary that two ranks can divide."""
    return structs.replace(make_spec(spec_of), vocabulary=VOCABULARY + 1)


class Cut:
    """A part of backends that leaves the last token of the vocabulary out."""

    def _outputs(self, batch: HostBatch) -> Outputs | None:
        found: Outputs | None = super()._outputs(batch)  # type: ignore[misc]
        return None if found is None else found._replace(logits=found.logits[:, :VOCABULARY])


class FirstCut(Cut, FirstDevice):
    """The first of two."""


def make_two(
    windows: Windows, num_blocks: int, block_size: int, family: Family = Llama
) -> LeadingBackend:
    """Make two devices with empty caches."""
    spec = even(windows)
    return two_devices(
        lambda: family(spec), lambda model: RandomWeights(), block_size, num_blocks, first=FirstCut
    )


class Captures:
    """A part of rank's backends whose decode steps are captured, with the reference's attention."""

    _graph_batches = WholeSpans

    def __init__(self, accelerator: Accelerator, dtype: str, place: DevicePlace) -> None:
        super().__init__(accelerator, dtype, place, captures=True)  # type: ignore[call-arg]

    def _graph_refusal(self) -> str | None:
        return operation_refusal(self._interpreter.instructions)  # type: ignore[attr-defined]


class FirstCaptures(Captures, FirstDevice):
    """The first of two."""


class FurtherCaptures(Captures, FollowingBackend):
    """The further one of two that capture."""


def two_capturing(
    windows: Windows,
    num_blocks: int,
    block_size: int,
    further: type[FollowingBackend] = FurtherCaptures,
) -> LeadingBackend:
    """Make two devices whose decode steps are replayed."""
    spec = even(windows)

    def prepare(backend: CudaBackend) -> None:
        backend._size = structs.replace(SIZE, vocabulary=spec.vocabulary)

    return two_devices(
        lambda: Llama(spec),
        lambda model: RandomWeights(),
        block_size,
        num_blocks,
        first=FirstCaptures,
        further=further,
        prepared=prepare,
    )
