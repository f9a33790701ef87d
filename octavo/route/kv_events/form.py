"""KV events as vLLM and Octavo publish them, decoded with a bound on each field.

Newer servers write an event as a map with a `type`, older ones as an array that begins with it.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

MOST_BLOCKS = 1 << 16  # of an event
MOST_BLOCK_TOKENS = 8192

# Numbers in msgpack have 64 bits at most.
Hash = int | Annotated[bytes, Meta(max_length=64)]
Hashes = Annotated[list[Hash], Meta(max_length=MOST_BLOCKS)]
Token = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
Size = Annotated[int, Meta(ge=1, le=MOST_BLOCK_TOKENS)]
Name = Annotated[str, Meta(max_length=512)]
Group = Annotated[int, Meta(ge=0, le=63)]
# Of any kind: they are compared as they are written.
Keys = Annotated[list[list[msgspec.Raw] | None], Meta(max_length=MOST_BLOCKS)]


class BlockStored(Struct, tag=True):
    """Blocks that are cached from now on, each the successor of the one before it."""

    block_hashes: Hashes
    parent_block_hash: Hash | None
    token_ids: list[Token]
    block_size: Size
    lora_id: int | None = None
    medium: Name | None = None
    lora_name: Name | None = None
    extra_keys: Keys | None = None
    group_idx: Group | None = None
    kv_cache_spec_kind: Name | None = None


class BlockRemoved(Struct, tag=True):
    """Blocks that are cached no more."""

    block_hashes: Hashes
    medium: Name | None = None
    group_idx: Group | None = None


class AllBlocksCleared(Struct, tag=True):
    """The end of all blocks that were cached."""


class _StoredArray(BlockStored, array_like=True, tag="BlockStored"):
    pass


class _RemovedArray(BlockRemoved, array_like=True, tag="BlockRemoved"):
    pass


class _ClearedArray(AllBlocksCleared, array_like=True, tag="AllBlocksCleared"):
    pass


KVEvent = BlockStored | BlockRemoved | AllBlocksCleared


class _Batch(Struct, array_like=True):
    ts: float
    events: list[KVEvent]


class _ArrayBatch(Struct, array_like=True):
    ts: float
    events: list[_StoredArray | _RemovedArray | _ClearedArray]


_DECODERS = (msgspec.msgpack.Decoder(_Batch), msgspec.msgpack.Decoder(_ArrayBatch))


class NoBatchError(ValueError):
    """Bytes that are no batch of events."""


def read_batch(data: bytes) -> list[KVEvent]:
    """Return the events of a batch; raise NoBatchError if it is none."""
    for decoder in _DECODERS:
        try:
            events: list[KVEvent] = [*decoder.decode(data).events]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        for event in events:
            if isinstance(event, BlockStored):
                _check(event)
        return events
    raise NoBatchError("it is no batch of KV events")


def _check(event: BlockStored) -> None:
    if len(event.token_ids) != event.block_size * len(event.block_hashes):
        raise NoBatchError("blocks with another number of tokens than they have places")
