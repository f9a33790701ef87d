"""KV events as vLLM's readers decode them: their structs, and the notes of an engine as such.

A batch is an array of a time, events and the engine's number; an event is a map whose `type` names
it. A block is named by 64 bits of the digest under which the engine finds it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from octavo.wire.facts import EngineFacts
from octavo.wire.message_types import CacheNote, RemovedBlock, StoredBlocks

# Of the events of a batch, unless it is one alone: half of what a router takes of a message.
MOST_BATCH_BYTES = 1 << 19
# What vLLM calls the memory in which an engine computes, on whatever device it is.
OWN_MEMORY = "GPU"
# vLLM's names of what the layers of a KV group keep.
_KINDS = {"full": "full_attention", "latent": "mla_attention", "state": "mamba"}


class BlockStored(Struct, omit_defaults=True, tag=True):
    """Blocks that are cached from now on, each the successor of the one before it."""

    block_hashes: list[int]
    parent_block_hash: int | None  # of the block before the first
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[list[str] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(Struct, omit_defaults=True, tag=True):
    """Blocks that are cached no more."""

    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(Struct, omit_defaults=True, tag=True):
    """The end of all blocks that were cached."""


KVEvent = BlockStored | BlockRemoved | AllBlocksCleared


class KVEventBatch(Struct, array_like=True, omit_defaults=True):
    """The events of a step, or a part of very many, in order."""

    ts: float
    events: Sequence[KVEvent | Raw]
    data_parallel_rank: int | None = None


ENCODER = msgspec.msgpack.Encoder()


def name_of(digest: bytes) -> int:
    """Return the name of a block in events."""
    return int.from_bytes(digest[:8], "big")


def events_of(notes: Iterable[CacheNote], facts: EngineFacts) -> list[KVEvent]:
    """Return the events that say the same as an engine's notes."""
    return [_event_of(note, facts) for note in notes]


def batches_of(events: Iterable[KVEvent], ts: float, rank: int) -> Iterator[bytes]:
    """Yield the batch of some events, or several, of which none is larger than readers take."""
    part: list[Raw] = []
    size = 0
    for event in events:
        data = ENCODER.encode(event)
        if part and size + len(data) > MOST_BATCH_BYTES:
            yield ENCODER.encode(KVEventBatch(ts, part, rank))
            part, size = [], 0
        part.append(Raw(data))
        size += len(data)
    yield ENCODER.encode(KVEventBatch(ts, part, rank))


def _event_of(note: CacheNote, facts: EngineFacts) -> KVEvent:
    if isinstance(note, RemovedBlock):
        return BlockRemoved([name_of(note.digest)], OWN_MEMORY, note.group)
    if not isinstance(note, StoredBlocks):
        return AllBlocksCleared()
    kind, window = None, None
    if note.group < len(facts.kv_groups):
        kind, window = facts.kv_groups[note.group]
    tokens = array("i", note.tokens)
    return BlockStored(
        block_hashes=[*map(name_of, note.digests)],
        parent_block_hash=None if note.parent is None else name_of(note.parent),
        token_ids=tokens.tolist(),
        block_size=len(tokens) // len(note.digests),
        lora_id=None,
        medium=OWN_MEMORY,
        lora_name=note.lora,
        extra_keys=_keys_of(note),
        group_idx=note.group,
        kv_cache_spec_kind="sliding_window" if window else _KINDS.get(kind or ""),
        kv_cache_spec_sliding_window=window,
    )


def _keys_of(note: StoredBlocks) -> list[list[str] | None] | None:
    """Return what else each block depends on: its adapter, and names of scope and salts."""
    adapter = [] if note.lora is None else [note.lora]
    keys: list[Any] = [
        [*adapter, *[each.hex() for each in of_block]]
        for of_block in note.keys or [()] * len(note.digests)
    ]
    return [each or None for each in keys] if any(keys) else None
