"""Watches the accesses of a kernel in the interpreter: bounds, and races between programs.

Within one launch, two programs of which one writes may not touch the same byte, unless both do so
atomically; and each address must lie in a tensor that is an argument.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from triton.runtime import interpreter


class RaceError(AssertionError):
    """A byte that two programs of one launch touch, one of them by writing."""


class BoundsError(AssertionError):
    """An access outside of all arguments."""


_MANY = -1  # programs, in place of one's number


class _Span:
    """The memory of one argument, with the program that has stored, loaded and changed each part.

    A part is as large as the argument's numbers, and a byte once numbers of another size are
    touched. Programs have numbers from 1; 0 is none.
    """

    def __init__(self, name: str, tensor: Any) -> None:
        reach = sum(
            (size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True)
        )
        self.name, self.part = name, tensor.element_size()
        self.begin = tensor.data_ptr()
        self.end = self.begin + (reach + 1) * self.part
        self.by = {kind: np.zeros(reach + 1, np.int64) for kind in ("store", "load", "atomic")}

    def touch(self, offsets: Any, size: int, program: int, kind: str) -> None:
        """Note accesses of so many bytes each, or refuse one that meets another program's."""
        if self.part > 1 and (size != self.part or (offsets % size).any()):
            self.by = {each: noted.repeat(self.part) for each, noted in self.by.items()}
            self.part = 1
        if self.part == size:
            self._touch(offsets // size, program, kind)
            return
        for byte in range(size):
            self._touch(offsets + byte, program, kind)

    def _touch(self, parts: Any, program: int, kind: str) -> None:
        against = {
            "load": ("store", "atomic"),
            "store": ("store", "load", "atomic"),
            "atomic": ("store", "load"),
        }[kind]
        for other in against:
            others = self.by[other][parts]
            clashes = (others != 0) & (others != program)
            if clashes.any():
                where = int(parts[clashes][0]) * self.part
                raise RaceError(
                    f"program {program - 1} does a {kind} on {self.name} at byte {where}, on which "
                    f"another program of this launch does a {other}"
                )
        before = self.by[kind][parts]
        self.by[kind][parts] = np.where((before != 0) & (before != program), _MANY, program)


class _Launch:
    """One launch: its arguments, and the program that runs."""

    def __init__(self) -> None:
        self.spans: list[_Span] = []
        self.program = 1

    def touch(self, pointers: Any, mask: Any, size: int, kind: str) -> None:
        if _is_paused:
            return
        addresses = np.asarray(pointers)
        active = np.broadcast_to(np.asarray(mask, bool), addresses.shape)
        addresses = addresses[active].astype(np.int64)
        if not len(addresses):
            return
        first, last = int(addresses.min()), int(addresses.max()) + size
        for span in self.spans:  # most accesses lie in one argument alone
            if span.begin <= first and last <= span.end:
                span.touch(addresses - span.begin, size, self.program, kind)
                return
            if first < span.end and span.begin < last:
                break
        left = np.ones(len(addresses), bool)
        for span in self.spans:
            inside = left & (addresses >= span.begin) & (addresses + size <= span.end)
            if inside.any():
                left &= ~inside
                span.touch(addresses[inside] - span.begin, size, self.program, kind)
        if left.any():
            raise BoundsError(
                f"program {self.program - 1}: a {kind} of {int(left.sum())} elements outside of "
                "every argument"
            )


_launch = _Launch()
_is_paused = False


@contextmanager
def paused() -> Iterator[None]:
    """Watch nothing, for a step whose rows all have one cell because its numbers mean nothing."""
    global _is_paused
    before, _is_paused = _is_paused, True
    try:
        yield
    finally:
        _is_paused = before


def install() -> None:
    """Watch every launch of this process."""
    builder = interpreter.InterpreterBuilder
    load, store = builder.create_masked_load, builder.create_masked_store
    change, exchange = builder.create_atomic_rmw, builder.create_atomic_cas
    place, executor = builder.set_grid_idx, interpreter.GridExecutor
    initialise = executor._init_args_hst

    def size(pointers: Any) -> int:
        return max(1, int(pointers.get_element_ty().primitive_bitwidth) // 8)

    def watched_load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        _launch.touch(pointers.data, mask.data, size(pointers), "load")
        return load(self, pointers, mask, *rest)

    def watched_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        _launch.touch(pointers.data, mask.data, size(pointers), "store")
        return store(self, pointers, value, mask, *rest)

    def watched_change(
        self: Any, how: Any, pointers: Any, value: Any, mask: Any, *rest: Any
    ) -> Any:
        _launch.touch(pointers.data, mask.data, size(pointers), "atomic")
        return change(self, how, pointers, value, mask, *rest)

    def watched_exchange(self: Any, pointers: Any, *rest: Any) -> Any:
        _launch.touch(pointers.data, True, size(pointers), "atomic")
        return exchange(self, pointers, *rest)

    def placed(self: Any, x: int, y: int, z: int) -> Any:
        _launch.program = 1 + x + (y << 20) + (z << 40)
        return place(self, x, y, z)

    def begun(self: Any, arguments: Any, named: Any) -> Any:
        global _launch
        made = initialise(self, arguments, named)
        _launch = _Launch()
        for name, each in [*zip(self.arg_names, made[0], strict=False), *made[1].items()]:
            tensor = getattr(each, "base", each)
            if hasattr(tensor, "data_ptr") and tensor.numel():
                _launch.spans.append(_Span(name, tensor))
        return made

    builder.create_masked_load, builder.create_masked_store = watched_load, watched_store
    builder.create_atomic_rmw, builder.create_atomic_cas = watched_change, watched_exchange
    builder.set_grid_idx, executor._init_args_hst = placed, begun
