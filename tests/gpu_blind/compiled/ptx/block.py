"""Runs the threads of one block in lockstep: those that are furthest behind go on first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tests.gpu_blind.compiled.ptx.arithmetic import compute
from tests.gpu_blind.compiled.ptx.memory import Bytes, GlobalMemory, Longs, SharedMemory
from tests.gpu_blind.compiled.ptx.parse import Instruction, Program, UnknownError, parse
from tests.gpu_blind.compiled.ptx.values import (
    SHORT,
    TYPES,
    Mask,
    Registers,
    Values,
    listed,
)

_WARP = 32
# Copies that are under way: addresses in shared memory, the bytes, the threads.
Copies = list[tuple[Longs, Bytes, Longs]]


def launch(
    ptx: str,
    grid: Sequence[int],
    arguments: Sequence[Any],
    *,
    shared_bytes: int,
    num_warps: int,
    waits_for_copies: bool = True,
) -> None:
    """Run a kernel for every block of a grid, one after the other.

    Asynchronous copies are carried out by the wait that covers them, and never before.
    """
    program = parse(ptx)
    memory = GlobalMemory([each for each in arguments if isinstance(each, torch.Tensor)])
    parameters = {
        name: _bits(kind, value)
        # Behind the kernel's own come scratch pointers that no kernel here uses.
        for (kind, name), value in zip(
            program.parameters, [*arguments, *[0] * len(program.parameters)], strict=False
        )
    }
    x, y, z = (*grid, 1, 1)[:3]
    with np.errstate(all="ignore"):
        for number in range(x * y * z):
            place = number % x, number // x % y, number // (x * y)
            registers = Registers(_WARP * num_warps, place, tuple(grid))
            block = _Block(program, parameters, memory, registers, shared_bytes)
            block.waits_for_copies = waits_for_copies
            block.run()


def _bits(kind: str, value: Any) -> Values:
    """Return an argument as the bits of its parameter."""
    if isinstance(value, torch.Tensor):
        return np.array([value.data_ptr()], np.uint64)
    if kind == "f32":
        return np.array([value], np.float32).view(np.uint32)
    return np.array([value], np.int64).astype(np.uint64 if kind == "u64" else np.uint32)


class _Block:
    """The threads of a block, their shared memory, and where each of them is."""

    waits_for_copies = True

    def __init__(
        self,
        program: Program,
        parameters: dict[str, Values],
        memory: GlobalMemory,
        registers: Registers,
        shared_bytes: int,
    ) -> None:
        self._program, self._parameters, self._memory = program, parameters, memory
        self._registers = registers
        self._shared = SharedMemory(shared_bytes)
        self._counters = np.zeros(len(registers.threads), np.int64)
        self._waiting = np.zeros(len(registers.threads), bool)
        self._copies: list[Copies] = [[]]  # by group, the last one open

    def run(self) -> None:
        """Run until all threads have returned."""
        end = len(self._program.instructions)
        while (live := self._counters < end).any():
            running = live & ~self._waiting
            if not running.any():
                self._waiting[:] = False
                self._shared.barrier()
                continue
            counters = self._counters[running]
            counter = int(counters.min())
            here = running & (self._counters == counter)
            others = counters[counters > counter]
            self._some(here, counter, int(others.min()) if len(others) else end)

    def _some(self, here: Mask, counter: int, stop: int) -> None:
        """Run threads that are at one place, up to the place of the next ones or to a branch."""
        here = self._registers.every if here.all() else here
        while counter < stop:
            i = self._program.instructions[counter]
            counter += 1
            if i.moves:
                self._counters[here] = counter
                self._one(i, here)
                return
            self._one(i, here)
        self._counters[here] = counter

    def _one(self, i: Instruction, here: Mask) -> None:
        where = here
        if i.predicate:
            holds = self._registers.get(i.predicate)
            where = here & (~holds if i.is_negated else holds)
            if not i.moves and not where.any():
                return
        head = i.parts[0]
        if head == "bra":
            self._counters[where] = self._program.labels[i.operands[0]]
        elif head == "ret":
            self._counters[where] = len(self._program.instructions)
        elif i.opcode in ("bar.sync", "barrier.sync"):
            self._waiting[here] = True
        elif head == "fence":
            pass  # threads see what others store as soon as it is stored
        elif head == "cp":
            self._copy(i, where)
        else:
            _MEANINGS.get(head, _Block._compute)(self, i, where)

    def _compute(self, i: Instruction, where: Mask) -> None:
        compute(i, self._registers, where)

    def _move(self, i: Instruction, where: Mask) -> None:
        """Move a value, or pack two halves into one register and back."""
        registers, (target, source) = self._registers, i.operands
        half = {"b64": "b32", "b32": "b16"}.get(i.type, "")
        if source[0] == "{":
            low, high = (registers.value(each, half).astype(np.uint64) for each in listed(source))
            bits = np.uint64(8 * np.dtype(TYPES[half]).itemsize)
            registers.put(target, (low | (high << bits)).astype(TYPES[i.type]), where)
        elif target[0] == "{":
            both = registers.value(source, i.type).astype(np.uint64)
            bits = np.uint64(8 * np.dtype(TYPES[half]).itemsize)
            low_name, high_name = listed(target)
            registers.put(low_name, both.astype(TYPES[half]), where)
            registers.put(high_name, (both >> bits).astype(TYPES[half]), where)
        else:
            registers.put(target, registers.value(source, i.type), where)

    def _load(self, i: Instruction, where: Mask) -> None:
        registers = self._registers
        if i.parts[1] == "param":
            bits = self._parameters[i.operands[1].strip("[]")].view(TYPES[i.type])
            registers.put(i.operands[0], np.repeat(bits, len(where)), where)
            return
        names, addresses = listed(i.operands[0]), registers.address(i.operands[1])[where]
        size = np.dtype(TYPES[i.type]).itemsize
        if i.parts[1] == "global":
            content = self._memory.load(addresses, size * len(names))
        else:
            content = self._shared.load(addresses, size * len(names), registers.threads[where])
        parts = content.view(TYPES[i.type])
        for place, name in enumerate(names):
            values = parts[:, place]
            if where is not registers.every:
                values = np.zeros(len(where), values.dtype)
                values[where] = parts[:, place]
            registers.put(name, values, where)

    def _store(self, i: Instruction, where: Mask) -> None:
        registers = self._registers
        addresses = registers.address(i.operands[0])[where]
        size = np.dtype(TYPES[i.type]).itemsize
        parts = [
            np.ascontiguousarray(registers.value(each, i.type)[where])
            .view(np.uint8)
            .reshape(-1, size)
            for each in listed(i.operands[1])
        ]
        content = np.concatenate(parts, 1)
        if i.parts[1] == "global":
            self._memory.store(addresses, content)
        else:
            self._shared.store(addresses, content, registers.threads[where])

    def _copy(self, i: Instruction, where: Mask) -> None:
        """Begin an asynchronous copy, close a group of them, or wait for groups."""
        registers = self._registers
        if "commit_group" in i.parts:
            self._copies.append([])
        elif "wait_group" in i.parts or "wait_all" in i.parts:
            if not self.waits_for_copies:
                return
            left = int(i.operands[0], 0) if "wait_group" in i.parts else 0
            done = self._copies[: max(0, len(self._copies) - 1 - left)]
            self._copies = self._copies[len(done) :]
            for group in done:
                for addresses, content, threads in group:
                    self._shared.store(addresses, content, threads)
        elif where.any():
            size = int(i.operands[2], 0)
            copied = np.full(len(where), size)
            if len(i.operands) > 3:  # the rest is zero
                copied = registers.value(i.operands[3], "u32").astype(int)
            content = np.zeros((len(where), size), np.uint8)
            some = where & (copied > 0)
            if some.any():
                content[some] = self._memory.load(registers.address(i.operands[1])[some], size)
            content[np.arange(size)[None, :] >= copied[:, None]] = 0
            target = registers.address(i.operands[0])[where]
            self._copies[-1].append((target, content[where], registers.threads[where]))

    def _load_matrix(self, i: Instruction, where: Mask) -> None:
        """Load tiles of 8 · 8 numbers of 16 bits, spread over the threads of a warp."""
        registers, lanes = self._registers, np.arange(_WARP)
        rows = registers.address(i.operands[1]).reshape(-1, _WARP)
        for warp in np.flatnonzero(where[::_WARP]):
            own = slice(warp * _WARP, (warp + 1) * _WARP)
            for place, name in enumerate(listed(i.operands[0])):
                addresses = rows[warp, 8 * place : 8 * place + 8]
                content = self._shared.load(addresses, 16, np.full(8, _WARP * warp))
                tile = np.ascontiguousarray(content).view(np.uint16).astype(np.uint32)
                tile = tile.T if "trans" in i.parts else tile
                first = tile[lanes // 4, 2 * (lanes % 4)]
                second = tile[lanes // 4, 2 * (lanes % 4) + 1]
                registers.get(name)[own] = first | (second << 16)

    def _store_matrix(self, i: Instruction, where: Mask) -> None:
        registers, lanes = self._registers, np.arange(_WARP)
        rows = registers.address(i.operands[0]).reshape(-1, _WARP)
        for warp in np.flatnonzero(where[::_WARP]):
            own = slice(warp * _WARP, (warp + 1) * _WARP)
            for place, name in enumerate(listed(i.operands[1])):
                both, tile = registers.get(name)[own], np.zeros((8, 8), np.uint16)
                tile[lanes // 4, 2 * (lanes % 4)] = both & 0xFFFF
                tile[lanes // 4, 2 * (lanes % 4) + 1] = both >> 16
                tile = tile.T if "trans" in i.parts else tile
                content = np.ascontiguousarray(tile).view(np.uint8)
                addresses = rows[warp, 8 * place : 8 * place + 8]
                self._shared.store(addresses, content, np.full(8, _WARP * warp))

    def _multiply(self, i: Instruction, where: Mask) -> None:
        """Multiply tiles of 16 · 16 and 16 · 8 numbers, and add 16 · 8 in float32."""
        if "m16n8k16" not in i.parts:
            raise UnknownError(i.text)
        registers, lanes = self._registers, np.arange(_WARP)
        row, column = lanes // 4, 2 * (lanes % 4)
        wide = SHORT["bf16" if "bf16" in i.parts else "f16"].wide
        out, left, right, added = (listed(each) for each in i.operands)
        for warp in np.flatnonzero(where[::_WARP]):
            own = slice(warp * _WARP, (warp + 1) * _WARP)
            a, b = np.zeros((16, 16), np.float32), np.zeros((16, 8), np.float32)
            c = np.zeros((16, 8), np.float32)
            for place, name in enumerate(left):
                low, high = _halves(registers.get(name)[own])
                at = row + 8 * (place % 2), column + 8 * (place // 2)
                a[at], a[at[0], at[1] + 1] = wide(low), wide(high)
            for place, name in enumerate(right):
                low, high = _halves(registers.get(name)[own])
                b[column + 8 * place, row], b[column + 8 * place + 1, row] = wide(low), wide(high)
            for place, name in enumerate(added):
                at = row + 8 * (place // 2), column + place % 2
                c[at] = registers.value(name, "f32")[own]
            result = (a @ b + c).astype(np.float32)
            for place, name in enumerate(out):
                at = row + 8 * (place // 2), column + place % 2
                registers.get(name)[own] = np.ascontiguousarray(result[at]).view(np.uint32)

    def _shuffle(self, i: Instruction, where: Mask) -> None:
        """Read a register of another thread of the warp."""
        registers = self._registers
        values = registers.value(i.operands[1], "b32")
        by, lanes = registers.value(i.operands[2], "s32"), registers.threads % _WARP
        if "bfly" in i.parts:
            source = lanes ^ by
        elif "idx" in i.parts:
            source = by & (_WARP - 1)
        elif "up" in i.parts:
            source = np.maximum(lanes - by, 0)
        else:
            raise UnknownError(i.text)
        first = registers.threads // _WARP * _WARP
        registers.put(i.operands[0].split("|")[0], values[first + source], where)

    def _reduce(self, i: Instruction, where: Mask) -> None:
        """Reduce a register over the threads of each warp that take part."""
        operations: dict[str, Any] = {"min": np.min, "max": np.max, "add": np.sum}
        operation = operations[i.parts[2]]
        values = self._registers.value(i.operands[1], i.type)
        result = np.zeros_like(values)
        for warp in np.flatnonzero(where.reshape(-1, _WARP).any(1)):
            own = slice(warp * _WARP, (warp + 1) * _WARP)
            result[own] = operation(values[own][where[own]])
        self._registers.put(i.operands[0], result, where)


def _halves(both: Values) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
    return (both & 0xFFFF).astype(np.uint16), (both >> 16).astype(np.uint16)


_MEANINGS: dict[str, Any] = {
    "ld": _Block._load,
    "st": _Block._store,
    "ldmatrix": _Block._load_matrix,
    "stmatrix": _Block._store_matrix,
    "mma": _Block._multiply,
    "mov": _Block._move,
    "redux": _Block._reduce,
    "shfl": _Block._shuffle,
}
