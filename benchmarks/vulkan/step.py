"""A step as one array of words: counts, tokens, positions, tables, and the rows of each space."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.vulkan.device import Words
from octavo.backends.step import HostBatch
from octavo.program.listing import Space, UnsupportedError

CHUNK = 64  # positions of the cache that a workgroup attends to
SPACES: tuple[Space, ...] = ("Tokens", "Wanted", "Logits", "Hidden")
# What a Select may choose from, and what it makes of that.
SELECTIONS: tuple[tuple[Space, Space], ...] = (
    ("Tokens", "Wanted"),
    ("Tokens", "Logits"),
    ("Tokens", "Hidden"),
    ("Wanted", "Logits"),
    ("Wanted", "Hidden"),
)


class Limits(NamedTuple):
    """The largest step, for which memory is made."""

    rows: int = 32
    sequences: int = 4
    positions: int = 512


class Sizes(NamedTuple):
    """The sizes of a step, from which launches have their numbers of workgroups."""

    rows: dict[Space, int]
    chunks: int  # of the longest sequence


class StepForm:
    """The places of everything in the words of a step."""

    def __init__(self, limits: Limits, block_size: int) -> None:
        self.limits = limits
        self.block_size = block_size
        self.blocks = -(-limits.positions // block_size)
        self.chunks = -(-self.blocks * block_size // CHUNK)
        self.tokens = len(SPACES)
        self.positions = self.tokens + limits.rows
        self.owners = self.positions + limits.rows
        self.tables = self.owners + limits.rows
        first = self.tables + limits.sequences * self.blocks
        self.selections = {
            each: first + number * limits.rows for number, each in enumerate(SELECTIONS)
        }
        self.words = first + len(SELECTIONS) * limits.rows

    def count(self, space: Space) -> int:
        """Return the place of the number of a space's rows."""
        return SPACES.index(space)

    def write(self, batch: HostBatch) -> tuple[Words, Sizes]:
        """Return the words of a step, and its sizes."""
        _refuse(batch)
        count, sequences = len(batch.token_ids), len(batch.row_starts) - 1
        (table,) = batch.tables
        last = int(batch.positions.max(initial=0))
        wanted = np.unique(np.concatenate((batch.logits_rows, batch.hidden_rows)))
        rows: dict[Space, int] = {
            "Tokens": count,
            "Wanted": len(wanted),
            "Logits": len(batch.logits_rows),
            "Hidden": len(batch.hidden_rows),
        }
        too_many = max(rows.values()) > self.limits.rows or sequences > self.limits.sequences
        if too_many or last >= self.blocks * self.block_size:
            raise ValueError(f"a step of {rows}, {sequences} sequences is beyond {self.limits}")
        words = np.full(self.words, 0xFFFFFFFF, np.uint32)
        words[: len(SPACES)] = [rows[space] for space in SPACES]
        words[self.tokens :][:count] = batch.token_ids.view(np.uint32)
        words[self.positions :][:count] = batch.positions
        words[self.owners :][:count] = np.repeat(np.arange(sequences), np.diff(batch.row_starts))
        tables = words[self.tables :][: sequences * self.blocks].reshape(sequences, self.blocks)
        width = min(self.blocks, table.shape[1])
        tables[:, :width] = table[:, :width]
        chosen_rows = {"Wanted": wanted, "Logits": batch.logits_rows, "Hidden": batch.hidden_rows}
        for (source, made), at in self.selections.items():
            chosen: NDArray[Any] = chosen_rows[made]
            if source == "Wanted":
                chosen = np.searchsorted(wanted, chosen)
            words[at:][: len(chosen)] = chosen
        return words, Sizes(rows, last // CHUNK + 1)


def _refuse(batch: HostBatch) -> None:
    """Refuse a step with something that the probe does not compute."""
    if len(batch.tables) != 1:
        raise UnsupportedError("several groups of KV")
    others = (batch.copies, batch.saves, batch.loads, batch.adapter_slots)
    if any(others) or batch.continues is not None:
        raise UnsupportedError("copies, saves, loads, adapters or repeated batches")
    if len(batch.echoes) or len(batch.adapters) or batch.types.any():
        raise UnsupportedError("echoes, adapters or types of rows")
