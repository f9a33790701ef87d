"""Ranks on devices of their own: the first one posts what it computes, and all compute it.

A rank has some heads, inner numbers, channels and rows of the vocabulary, and its own part of the
KV cache. The pass `insert_collectives` has put sums behind its products, for which devices meet
(exchange.py). Only the first rank draws, so only it has slots and samplers.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec import Struct

from octavo.backends.base import BackendEndedError, Ints, KVLayout, KVPages, StepSize
from octavo.backends.cuda.accelerator import Accelerator
from octavo.backends.cuda.backend import CudaBackend
from octavo.backends.cuda.exchange import DeviceCommunicator
from octavo.backends.cuda.graphs import DecodeGraphs
from octavo.backends.cuda.sampler import signed_keys
from octavo.backends.cuda.steady import Drawing, SteadyDraws
from octavo.backends.part_layout import part_pages, rank_layout
from octavo.backends.step import Draws, HostBatch, StepOutput
from octavo.backends.torch.footprint import kv_pages, vector_size
from octavo.distributed.context import DevicePlace
from octavo.distributed.frames import Frames

# Of a step: tables of all sequences, 4 bytes for each of their blocks.
MOST_STEP_BYTES = 1 << 28
# How a step is computed: by operations one after the other, by a graph, and by one whose tokens are
# those that the graph before has drawn.
Way = Literal["operations", "graph", "continues"]
_ARRAYS = (
    *("token_ids", "positions", "row_starts", "logits_rows", "hidden_rows", "slots", "types"),
    "echoes",
)


class _Reserve(Struct, frozen=True, tag=True):
    size: StepSize


class _MakeCache(Struct, frozen=True, tag=True):
    num_blocks: int


class _Step(Struct, frozen=True, tag=True):
    way: Way
    arrays: tuple[bytes, ...]  # those of _ARRAYS
    tables: tuple[tuple[int, bytes], ...]  # for each group the width, and the content
    copies: tuple[tuple[int, int, int], ...]


_Message = _Reserve | _MakeCache | _Step
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Message).decode


class RankBackend(CudaBackend):
    """The backend of a rank."""

    def __init__(
        self, accelerator: Accelerator, dtype: str, place: DevicePlace, **options: Any
    ) -> None:
        self.place = place
        self.communicator = DeviceCommunicator(place.context)
        super().__init__(accelerator, dtype, communicator=self.communicator, **options)

    def _new_cache(self, num_blocks: int) -> None:
        # The cache of the largest step comes before anything is exchanged.
        self.communicator.join(self._accelerator, self.place.meeting)
        super()._new_cache(num_blocks)

    def _cache_layout(self) -> tuple[KVLayout, KVPages]:
        assert self._layout is not None, "prepare must be called first"
        assert self._model is not None
        own, size, dtype = (
            rank_layout(self._layout, self._model),
            self._block_size,
            self._dtype_name,
        )
        whole = kv_pages(self._layout, size, dtype)
        return own, part_pages(own, whole, size, partial(vector_size, dtype=dtype))


class FollowingBackend(RankBackend):
    """The backend of a further rank, which computes what the first one posts."""

    def __init__(
        self, accelerator: Accelerator, dtype: str, place: DevicePlace, **options: Any
    ) -> None:
        super().__init__(accelerator, dtype, place, **options)
        (link,) = place.links
        self._first = Frames(link, MOST_STEP_BYTES)

    def follow(self) -> None:
        """Follow the first rank up to its first step, so that nothing is compiled later.

        The cache is the last of it.
        """
        for message in self._posted():
            match message:
                case _Reserve(size):
                    self.reserve(size, 0)
                case _MakeCache(num_blocks):
                    self.make_cache(num_blocks)
                    return
                case _Step():
                    raise AssertionError("a step was posted before the cache was made")

    def follow_steps(self) -> None:
        """Compute this rank's share of all steps, until the first rank ends."""
        for message in self._posted():
            assert isinstance(message, _Step), "sizes are final once there is a cache"
            self._thread.submit(self._follow, message.way, _batch_of(message)).result()

    def _posted(self) -> Iterator[_Message]:
        while (data := self._first.receive()) is not None:
            yield _decode(data)

    def _follow(self, way: Way, batch: HostBatch) -> None:
        with self._home.step():
            if way == "operations":
                self._outputs(batch)
                return
            assert self._graphs is not None, "the first rank has graphs, and this one has none"
            self._change(batch)
            self._graphs.run(batch, (), signed_keys(()), continues=way == "continues")


class LeadingBackend(RankBackend):
    """The backend of the first rank, whose steps the others compute with it."""

    def __init__(
        self, accelerator: Accelerator, dtype: str, place: DevicePlace, **options: Any
    ) -> None:
        super().__init__(accelerator, dtype, place, **options)
        self._links = [Frames(link, MOST_STEP_BYTES) for link in place.links]
        self._is_broken = False  # a step has failed, and ranks may have done different parts of it

    def reserve(self, size: StepSize, spare_bytes: int) -> int:
        self._post(_Reserve(size))
        return super().reserve(size, spare_bytes)

    def make_cache(self, num_blocks: int) -> None:
        self._post(_MakeCache(num_blocks))
        super().make_cache(num_blocks)

    def _drawn(self, batch: HostBatch, draws: Draws) -> StepOutput:
        graphs = self._graphs
        is_replayed = graphs is not None and graphs.takes(batch, draws)
        try:
            self._post(self._step_of(batch, "graph" if is_replayed else "operations"))
            return super()._drawn(batch, draws)
        except BaseException:
            self._is_broken = True
            raise

    def _continue(
        self, steady: SteadyDraws, graphs: DecodeGraphs, batch: HostBatch, draws: Draws
    ) -> Drawing:
        try:
            self._post(self._step_of(batch, "continues"))
            return super()._continue(steady, graphs, batch, draws)
        except BaseException:
            self._is_broken = True
            raise

    def _step_of(self, batch: HostBatch, way: Way) -> _Step:
        """Return a step as it is posted; of its tables, what the ranks read."""
        positions = batch.positions
        width = int(positions.max()) // self._block_size + 1 if len(positions) else 0
        tables = [table[:, :width] for table in batch.tables]
        return _Step(
            way,
            tuple([_bytes_of(getattr(batch, name)) for name in _ARRAYS]),
            tuple([(table.shape[1], _bytes_of(table)) for table in tables]),
            batch.copies,
        )

    def _post(self, message: _Message) -> None:
        if self._is_broken:
            raise BackendEndedError(
                "an earlier step of the ranks has failed; start the engine anew"
            )
        data = _encode(message)
        try:
            for link in self._links:
                link.send(data)
        except OSError as error:
            raise BackendEndedError(self.communicator.why(error)) from error


def _bytes_of(array: Ints) -> bytes:
    return np.ascontiguousarray(array, np.int32).tobytes()


def _batch_of(step: _Step) -> HostBatch:
    arrays = {
        name: np.frombuffer(content, np.int32)
        for name, content in zip(_ARRAYS, step.arrays, strict=True)
    }
    count = len(arrays["row_starts"]) - 1
    tables = [np.frombuffer(data, np.int32).reshape(count, width) for width, data in step.tables]
    named: dict[str, Any] = {**arrays, "tables": tuple(tables), "copies": step.copies}
    return HostBatch(**named)
