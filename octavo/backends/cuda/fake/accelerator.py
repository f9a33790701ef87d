"""The fake accelerator: runs everything on the CPU and refuses what a card would refuse."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock, local
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from octavo.backends.cuda.accelerator import Copies, Kernel
from octavo.backends.cuda.fake.tensor import (
    DEVICE,
    DeviceError,
    FakeTensor,
    PinnedTensor,
    run,
)
from octavo.observe.machine import Memory

TOTAL_BYTES = 4 << 30  # the memory that the fake card has
_MOST_NOTES = 10_000  # that a log keeps


class Note(NamedTuple):
    """A copy or a wait, and whether a step was running."""

    what: str  # "upload", "pageable upload", "wait", "fetch", "launch"
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

    def __init__(self, total_bytes: int = TOTAL_BYTES) -> None:
        self.log: list[Note] = []
        self._total_bytes = total_bytes
        self._held = self._peak = 0
        self._lock = Lock()  # tensors may be freed in any thread
        self._of_thread = local()
        super().__init__(DEVICE, self._pin, self._wait_for_copies)

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

    def memory(self) -> Memory:
        return Memory(self._total_bytes, max(0, self._total_bytes - self._held), "")

    def forget_peak(self) -> int:
        self._peak = self._held
        return self._held

    def peak_bytes(self) -> int:
        return self._peak

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
        self._note("launch", getattr(kernel, "__name__", repr(kernel)))
        with _disable_current_modes():
            kernel[grid](*given, *numbers, **constants)

    # what the tensors report

    def wait(self, what: str) -> None:
        if self._is_in_step:
            raise DeviceError(f"{what} waits for the device within a step")
        self._note("wait", what)

    def copied(self, num_bytes: int, *, is_pinned: bool) -> None:
        if self._is_in_step and not is_pinned:
            raise DeviceError(f"{num_bytes} bytes are uploaded from pageable memory in a step")
        self._note("upload" if is_pinned else "pageable upload", f"{num_bytes} bytes")

    def hold(self, num_bytes: int) -> None:
        with self._lock:
            self._held += num_bytes
            self._peak = max(self._peak, self._held)

    def _note(self, what: str, detail: str) -> None:
        del self.log[:-_MOST_NOTES]
        self.log.append(Note(what, detail, self._is_in_step))

    def _pin(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8).as_subclass(PinnedTensor)

    def _wait_for_copies(self) -> None:
        self._note("fetch", "the one wait of a step")
