"""A native backend whose program returns given rows: the token of a row chooses its logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.backends.base import Floats
from octavo.backends.native import _native
from octavo.backends.native.backend import NativeBackend, NativeOptions
from octavo.backends.native.layout import stride
from octavo.backends.step import Draws, HostBatch, SlotSampling, StepOutput
from octavo.backends.stored_rows import StoredRows


def make_backend(logits: Floats, tier: str = "", threads: int = 1) -> NativeBackend:
    """Make a backend whose logits, and hidden states, are row t of `logits` for token t."""
    backend = NativeBackend(NativeOptions(instruction_set=tier, num_threads=threads))
    program = _native.Program(backend.tier, backend._team)
    store, width = _native.Store(backend._team), logits.shape[1]
    rows = StoredRows.of(logits)
    matrix = store.pack(
        _native.Stored.F32, _native.Format.F32, width, rows.addresses(), rows.rows, []
    )
    store.finish()
    where, space = _native.Where, _native.Space
    table = _native.Ref(where.Scratch, space.Tokens, 0, 0, width, stride(width))
    program.set_scratch(space.Tokens, 4 * stride(width), 0)
    embed = _native.Instruction()
    embed.op, embed.out = _native.Op.Embed, table
    embed.pieces = [_native.Piece(matrix, 0, 0, False)]
    program.append(embed)
    for name in ("Logits", "Hidden"):
        select = _native.Instruction()
        select.op, select.space, select.barrier = _native.Op.Select, getattr(space, name), True
        select.x = table
        select.out = _native.Ref(
            getattr(where, f"{name}Out"), select.space, 0, 0, width, stride(width)
        )
        program.append(select)
    block_bytes = 2 * 16 * 8 * 4
    group = _native.CacheGroup(1, 1, 8, block_bytes)
    backend._is_settled = True
    backend._runner = _native.StepRunner(backend.tier, program, backend._team, width, width, store)
    cache = _native.KvCache(_native.CacheFormat.F32, [group], 2, block_bytes, 16, backend._team)
    backend._runner.use_cache(cache)
    return backend


def make_batch(rows: Sequence[int] | NDArray[Any], hidden: Sequence[int] = ()) -> HostBatch:
    """Make a batch that has these rows of the given logits, each in a sequence of its own."""
    count = len(rows)
    return HostBatch(
        np.array(rows, np.int32),
        np.zeros(count, np.int32),
        np.arange(count + 1, dtype=np.int32),
        (np.ones((count, 1), np.int32),),
        np.arange(count, dtype=np.int32),
        np.array(hidden, np.int32),
    )


def draw(
    logits: Floats,
    samplings: Sequence[SlotSampling],
    tier: str = "",
    threads: int = 1,
    rows: Sequence[int] | NDArray[Any] | None = None,
) -> StepOutput:
    """Draw once from a row for each slot that is opened; slot i has the i-th row, or `rows[i]`."""
    backend = make_backend(logits, tier, threads)
    count = len(samplings)
    each = np.arange(count, dtype=np.int32)
    draws = Draws((), tuple(enumerate(samplings)), each, each)
    return backend.step(make_batch(each if rows is None else rows), draws).collect()


def sampling_of(
    prompt: Sequence[int] = (0,), output: Sequence[int] = (), **fields: Any
) -> SlotSampling:
    """Return a slot's sampling; lists become arrays."""
    tokens = np.array([*prompt, *output], np.int32)
    for name in ("allowed", "stop_ids", "bias_ids", "logprob_ids"):
        if fields.get(name) is not None:
            fields[name] = np.array(fields[name], np.int32)
    if "bias" in fields:
        fields["bias"] = np.array(fields["bias"], np.float32)
    return SlotSampling(tokens, len(prompt), **fields)
