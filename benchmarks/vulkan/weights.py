"""Matrices on the device: rows in the bytes of their file, which shaders decode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np

from benchmarks.vulkan.device import Device, Memory
from benchmarks.vulkan.sources import ROW_FORMATS
from octavo.backends.stored_rows import StoredRows
from octavo.program.listing import UnsupportedError

UNIT = 8  # inputs that a shader decodes at once; rows of floats are padded to whole units


class Part(NamedTuple):
    """Rows of one format in one array."""

    format: str
    memory: Memory
    first: int  # the matrix's row that is the first one here
    rows: int
    row_words: int


@dataclass(frozen=True, eq=False)
class DeviceMatrix:
    """A weight [outputs, inputs], whose rows may lie in several arrays."""

    parts: tuple[Part, ...]
    outputs: int
    inputs: int
    gated: bool = False
    kind: str = "float"

    @property
    def num_bytes(self) -> int:
        """The size of all rows, with what pads them."""
        return sum(4 * part.rows * part.row_words for part in self.parts)

    @property
    def formats(self) -> str:
        """The names of the formats, for people."""
        return "+".join(dict.fromkeys(part.format for part in self.parts))


def make_matrix(
    device: Device, stored: Sequence[StoredRows], *, gated: bool, most_words: int
) -> DeviceMatrix:
    """Copy rows as they are stored, into as many arrays as their formats and the limit ask for."""
    parts: list[Part] = []
    first = 0
    for (name, inputs), same in groupby(stored, lambda rows: (rows.type, rows.inputs)):
        words = np.concatenate([_words(rows) for rows in same])
        row_words = words.shape[1]
        step = most_words // row_words
        if not step:
            raise UnsupportedError(f"rows of {inputs} inputs, larger than an array of the device")
        for start in range(0, len(words), step):
            own = words[start : start + step]
            memory = device.memory(own.size, own.reshape(-1))
            parts.append(Part(name, memory, first + start, len(own), row_words))
        first += len(words)
    return DeviceMatrix(tuple(parts), first, stored[0].inputs, gated)


def _words(rows: StoredRows) -> np.ndarray:
    """Return rows as words [rows, words]."""
    if rows.type not in ROW_FORMATS:
        raise UnsupportedError(f"rows of the type {rows.type}")
    if rows.columns is not None:
        raise UnsupportedError("inputs in an order of their own")
    stored = np.ascontiguousarray(rows.array if rows.order is None else rows.array[rows.order])
    unit = 4  # bytes: a word, and for floats a whole unit of eight numbers
    if rows.layout.group == 1:
        unit = UNIT * rows.layout.group_bytes
    padded = np.pad(stored, ((0, 0), (0, -stored.shape[1] % unit)))
    return padded.view(np.uint32)
