"""A card that torch.cuda drives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

from octavo.backends.cuda.accelerator import Copies, Graph, Kernel
from octavo.backends.cuda.exchange import LibraryExchange, Meeting
from octavo.backends.select import NoBackendError
from octavo.distributed.context import ParallelContext
from octavo.env import stay_on_loopback
from octavo.observe.machine import Memory

_Made = TypeVar("_Made")


class NcclExchange(LibraryExchange):
    """One card among several; implements `octavo.backends.cuda.exchange.Exchange`."""

    def __init__(self, meeting: int, context: ParallelContext) -> None:
        """Connect the card, which all ranks do at once: the first exchange waits for them."""
        stay_on_loopback()
        found = Meeting(meeting)
        library: Any = distributed
        make = library.ProcessGroupNCCL  # which builds for the CPU have not
        store = library.FileStore(found.path, context.ranks)
        self._ranks = context.ranks
        self._group = make(store, context.rank, context.ranks, make.Options())
        self._meeting = found
        self.gather(torch.zeros(1, device="cuda"))
        torch.cuda.synchronize()

    def gather(self, values: Tensor) -> Tensor:
        made = values.new_empty(self._ranks, *values.shape)
        if values.numel():
            # What follows in this queue of work waits for it; the host does not.
            self._group._allgather_base(made.view(-1), values.contiguous().view(-1)).wait()
        return made

    def end(self) -> None:
        self._group.abort()


class CudaAccelerator(Copies):
    """One NVIDIA card; implements `octavo.backends.cuda.accelerator.Accelerator`."""

    def __init__(self, index: int = 0) -> None:
        if not torch.cuda.is_available():
            raise NoBackendError(
                f"device='cuda:{index}' cannot be used: PyTorch {torch.__version__} finds no card; "
                "install the build of PyTorch for CUDA and a driver that is new enough for it, or "
                "leave device out"
            )
        if index >= torch.cuda.device_count():
            raise NoBackendError(
                f"device='cuda:{index}' cannot be used: PyTorch finds "
                f"{torch.cuda.device_count()} cards, and their numbers begin at 0"
            )
        self._index = index
        # Sums of products in full precision: the bits of a type are all that it rounds to.
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        self._capturing: torch.cuda.Stream | None = None  # made with the first graph
        super().__init__(torch.device("cuda", index), self._pin, self._mark)

    @property
    def name(self) -> str:
        return torch.cuda.get_device_name(self._index)

    @property
    def multiplies_eight_bits(self) -> bool:
        return torch.cuda.get_device_capability(self._index) >= (8, 9)

    @property
    def compiles_kernels(self) -> bool:
        return torch.cuda.get_device_capability(self._index) >= (8, 0)

    @contextmanager
    def working(self) -> Iterator[None]:
        with torch.cuda.device(self._index), torch.inference_mode():
            yield

    step = working

    def memory(self) -> Memory:
        free, total = torch.cuda.mem_get_info(self._index)
        # What torch has taken from the driver, and no tensor uses, is free for tensors.
        reserved = torch.cuda.memory_reserved(self._index)
        kept = reserved - torch.cuda.memory_allocated(self._index)
        return Memory(total, free + kept, "")

    def forget_peak(self) -> int:
        torch.cuda.synchronize(self._index)
        torch.cuda.reset_peak_memory_stats(self._index)
        return torch.cuda.memory_allocated(self._index)

    def peak_bytes(self) -> int:
        torch.cuda.synchronize(self._index)
        return torch.cuda.max_memory_allocated(self._index)

    def launch(
        self,
        kernel: Kernel,
        grid: tuple[int, ...],
        tensors: Sequence[Tensor],
        numbers: Sequence[float],
        **constants: object,
    ) -> None:
        kernel[grid](*tensors, *numbers, **constants)

    def address(self, tensor: Tensor) -> int:
        return tensor.data_ptr()

    def capture(
        self, run: Callable[[], _Made], beside: Graph | None = None
    ) -> tuple[torch.cuda.CUDAGraph, _Made]:
        stream = self._capturing
        if stream is None:
            stream = torch.cuda.Stream(self._index)  # type: ignore[no-untyped-call]
            self._begin_on(stream, run)
            self._capturing = stream
        pool: Any = None
        if beside is None:
            # Meanwhile torch gives nothing of what it keeps back to the driver, whose memory alone
            # a new pool gets.
            torch.cuda.empty_cache()
        else:
            assert isinstance(beside, torch.cuda.CUDAGraph)
            # A pool ends with its last graph; torch refuses to capture with the name of an old one.
            pool = beside.pool()
        graph, usual = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._index)
        stream.wait_stream(usual)
        with torch.cuda.stream(stream):
            # Other threads, such as those that load adapters, may use the card meanwhile.
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                made = run()
            except BaseException:
                with suppress(RuntimeError):  # it only says that the capture has failed
                    graph.capture_end()
                raise
            graph.capture_end()
        usual.wait_stream(stream)
        return graph, made

    def _begin_on(self, stream: torch.cuda.Stream, run: Callable[[], object]) -> None:
        """Let libraries make what they keep for a stream, such as the room of cuBLAS."""
        usual = torch.cuda.current_stream(self._index)
        stream.wait_stream(usual)
        with torch.cuda.stream(stream):
            run()
        usual.wait_stream(stream)

    def join(self, meeting: int, context: ParallelContext) -> NcclExchange:
        with self.working():
            return NcclExchange(meeting, context)

    def _pin(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def _mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._index))
        return event
