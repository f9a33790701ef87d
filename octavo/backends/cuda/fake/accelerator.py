"""The fake accelerator: runs everything on the CPU and refuses what a card would refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import local
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from octavo.backends.cuda.accelerator import Copies, Graph, Kernel
from octavo.backends.cuda.fake.forms import form_of
from octavo.backends.cuda.fake.graph import Account, Recording
from octavo.backends.cuda.fake.tensor import (
    DEVICE,
    DeviceError,
    FakeTensor,
    PinnedTensor,
    run,
)
from octavo.distributed.context import ParallelContext
from octavo.observe.machine import Memory

if TYPE_CHECKING:
    from octavo.backends.cuda.fake.exchange import GlooExchange

TOTAL_BYTES = 4 << 30  # the memory that the fake card has
_MOST_IN_FLIGHT = 64  # pinned buffers that are looked at until the next wait
_NOT_YET = 0xA5  # bytes that pinned memory has until a copy into it has arrived
_MOST_NOTES = 10_000  # that a log keeps
_Made = TypeVar("_Made")


class Note(NamedTuple):
    """A copy or a wait, and whether a step was running."""

    # "upload", "pageable upload", "wait", "fetch", "launch", "exchange", "capture", "replay"
    what: str
    detail: str
    is_in_step: bool


class _Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sends the operations of a thread through the fake device."""

    def __init__(self, accelerator: FakeAccelerator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._accelerator = accelerator

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return run(operation, args, kwargs or {}, self._accelerator)


class FakeAccelerator(Copies):
    """A card that is none; implements `octavo.backends.cuda.accelerator.Accelerator`."""

    name = "no card: a fake one, whose numbers the CPU computes"

    def __init__(
        self,
        total_bytes: int = TOTAL_BYTES,
        *,
        multiplies_eight_bits: bool = True,
        compiles_kernels: bool = True,
    ) -> None:
        self.log: list[Note] = []
        self.compiles_kernels = compiles_kernels
        self.multiplies_eight_bits = multiplies_eight_bits
        self._total_bytes = total_bytes
        self.forms: set[tuple[object, ...]] = set()  # of kernels that a card would have compiled
        self._usual = Account()  # of all tensors but those of graphs
        self._of_thread = local()
        # Pinned memory with copies under way since the last event: what it had when those from it
        # were submitted, and what those into it bring.
        self._uploads: list[tuple[Tensor, Tensor]] = []
        self._arriving: list[tuple[Tensor, Tensor]] = []
        super().__init__(DEVICE, self._pin, self._mark)

    @contextmanager
    def working(self) -> Iterator[None]:
        # In inference mode, torch makes no views of tensors of a class of ours.
        with torch.no_grad(), _Mode(self):
            yield

    @contextmanager
    def step(self) -> Iterator[None]:
        before, self._of_thread.is_in_step = self._is_in_step, True
        try:
            with self.working():
                yield
        finally:
            self._of_thread.is_in_step = before

    @property
    def _is_in_step(self) -> bool:
        return getattr(self._of_thread, "is_in_step", False)

    @property
    def recording(self) -> Recording | None:
        return getattr(self._of_thread, "recording", None)

    @property
    def account(self) -> Account:
        return self._usual if self.recording is None else self.recording.account

    def memory(self) -> Memory:
        return Memory(self._total_bytes, max(0, self._total_bytes - self._usual.held), "")

    def forget_peak(self) -> int:
        self._usual.peak = self._usual.held
        return self._usual.held

    def peak_bytes(self) -> int:
        return self._usual.peak

    def capture(
        self, run: Callable[[], _Made], beside: Graph | None = None
    ) -> tuple[FakeGraph, _Made]:
        """Note what `run` submits; a step may capture only what fits the memory of a graph before.

        A card would take more for it, of which an engine that has begun to serve has none.
        """
        assert beside is None or isinstance(beside, FakeGraph)
        pool = _Pool(self._usual) if beside is None else beside.pool
        if self.recording is not None:
            raise DeviceError("a graph is captured while another one is")
        recording = self._of_thread.recording = Recording()
        try:
            made = run()
        finally:
            self._of_thread.recording = None
        grown = max(0, recording.account.peak - pool.num_bytes)
        if grown and self._is_in_step:
            raise DeviceError(f"a graph that is captured in a step takes {grown} bytes more")
        pool.grow(grown)
        self._note("capture", f"{len(recording.names)} operations")
        return FakeGraph(self, recording, pool), made

    def launch(
        self,
        kernel: Kernel,
        grid: tuple[int, ...],
        tensors: Sequence[Tensor],
        numbers: Sequence[float],
        **constants: object,
    ) -> None:
        """Run a kernel by Triton's interpreter, on what the tensors hold."""
        given = []
        for each in tensors:
            if not isinstance(each, FakeTensor):
                raise DeviceError(f"a tensor {tuple(each.shape)} of a kernel is on the host")
            given.append(each.on_cpu)
        name = getattr(kernel, "__name__", repr(kernel))
        self.forms.add(form_of(kernel, given, numbers, constants))
        if self.recording is not None:
            self.recording.note(name, lambda: kernel[grid](*given, *numbers, **constants))
            return
        self._note("launch", name)
        with _disable_current_modes():
            kernel[grid](*given, *numbers, **constants)

    def address(self, tensor: Tensor) -> int:
        assert isinstance(tensor, FakeTensor), "only tensors of the device have an address there"
        return tensor.on_cpu.data_ptr()

    def join(self, meeting: int, context: ParallelContext) -> GlooExchange:
        from octavo.backends.cuda.fake.exchange import GlooExchange

        return GlooExchange(self, meeting, context)

    def exchange(self, run: Callable[[], None], made: Tensor) -> None:
        """Run an exchange with the other devices, on what the tensors hold, or note it."""
        if self.recording is not None:
            self.recording.exchange(run, made)
            return
        self._note("exchange", f"{made.nbytes} bytes")
        with _disable_current_modes():
            run()

    # what the tensors report

    def wait(self, what: str) -> None:
        if self.recording is not None:
            raise DeviceError(f"{what} waits for the device while a graph is captured")
        if self._is_in_step:
            raise DeviceError(f"{what} waits for the device within a step")
        self._note("wait", what)

    def copied(self, source: Tensor, *, is_pinned: bool) -> None:
        num_bytes = source.nbytes
        if self.recording is not None:
            raise DeviceError(f"{num_bytes} bytes are uploaded while a graph is captured")
        if self._is_in_step and not is_pinned:
            raise DeviceError(f"{num_bytes} bytes are uploaded from pageable memory in a step")
        if is_pinned and self._is_in_step:
            del self._uploads[:-_MOST_IN_FLIGHT]
            self._uploads.append((source, source.as_subclass(Tensor).clone()))
        self._note("upload" if is_pinned else "pageable upload", f"{num_bytes} bytes")

    def note_replay(self, num_operations: int) -> None:
        """Note that a graph is submitted."""
        if self.recording is not None:
            raise DeviceError("a graph is replayed while another one is captured")
        self._note("replay", f"{num_operations} operations")

    def _note(self, what: str, detail: str) -> None:
        del self.log[:-_MOST_NOTES]
        self.log.append(Note(what, detail, self._is_in_step))

    def _pin(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8).as_subclass(PinnedTensor)

    def arrives(self, target: Tensor, content: Tensor) -> None:
        """Let a copy to the host arrive as late as it may: when its event is waited for."""
        if self.recording is not None:
            raise DeviceError("the host fetches while a graph is captured")
        target.as_subclass(Tensor).fill_(_NOT_YET)
        self._arriving.append((target, content.clone()))

    def _mark(self) -> FakeEvent:
        uploads, self._uploads = self._uploads, []
        arriving, self._arriving = self._arriving, []
        return FakeEvent(self, uploads, arriving)

    def note_fetch(self) -> None:
        """Note that the host has waited for a copy."""
        self._note("fetch", "the one wait of a step")


class FakeEvent:
    """A place in the queue, behind copies; implements `octavo.backends.cuda.accelerator.Event`."""

    def __init__(
        self,
        accelerator: FakeAccelerator,
        uploads: list[tuple[Tensor, Tensor]],
        arriving: list[tuple[Tensor, Tensor]],
    ) -> None:
        self._accelerator, self._uploads, self._arriving = accelerator, uploads, arriving

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        """Let copies arrive, and refuse memory that was written to while one may have read it."""
        with torch.no_grad(), _disable_current_modes():
            for source, before in self._uploads:
                if not torch.equal(source.as_subclass(Tensor), before):
                    raise DeviceError("pinned memory was changed before its copy had ended")
            for target, content in self._arriving:
                target.as_subclass(Tensor).copy_(content)
        self._uploads, self._arriving = [], []
        self._accelerator.note_fetch()


class _Pool:
    """The memory of graphs, which ends with the last of them."""

    def __init__(self, account: Account) -> None:
        self.num_bytes, self._account = 0, account

    def grow(self, num_bytes: int) -> None:
        """Take more memory of the card, for a graph that is captured."""
        self.num_bytes += num_bytes
        self._account.hold(num_bytes)

    def __del__(self) -> None:
        self._account.hold(-self.num_bytes)


class FakeGraph:
    """A graph of the fake device; implements `octavo.backends.cuda.accelerator.Graph`."""

    def __init__(self, accelerator: FakeAccelerator, recording: Recording, pool: _Pool) -> None:
        self._accelerator, self._recording, self.pool = accelerator, recording, pool

    @property
    def names(self) -> list[str]:
        """The operations and kernels that a replay submits."""
        return self._recording.names

    def replay(self) -> None:
        self._accelerator.note_replay(len(self.names))
        with torch.no_grad(), _disable_current_modes():
            self._recording.replay()
