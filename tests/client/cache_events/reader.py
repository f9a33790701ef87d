"""A reader of KV events that decodes them with vLLM's structs, and asks again for those it missed.

The structs have the names and the fields that vLLM 0.32 documents.
"""

from __future__ import annotations

from typing import Any

import msgspec
import zmq

from tests.client.clients import LIMIT

Block = tuple[int, int]  # KV group, name


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[Any]
    data_parallel_rank: int | None = None


class KVCacheEvent(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    pass


class BlockStored(KVCacheEvent):
    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None


class BlockRemoved(KVCacheEvent):
    block_hashes: list[bytes | int]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(KVCacheEvent):
    pass


class KVEventBatch(EventBatch):
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


_DECODER = msgspec.msgpack.Decoder(KVEventBatch)


class Reader:
    """The blocks of one engine, as the events say that were read so far."""

    def __init__(self, endpoint: str, replay_endpoint: str | None = None) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._events = self._context.socket(zmq.SUB)
        self._events.set(zmq.SUBSCRIBE, b"")
        self._events.set(zmq.RCVHWM, 0)
        self._events.connect(endpoint)
        self._replays = self._context.socket(zmq.DEALER)
        if replay_endpoint is not None:
            self._replays.connect(replay_endpoint)
        self.blocks: dict[Block, tuple[int, ...]] = {}  # with all tokens up to their ends
        self.ranks: dict[int | None, None] = {}
        self.batches: list[KVEventBatch] = []
        self.number = -1  # of the newest batch that was applied
        self.num_gaps = 0
        self.num_clears = 0

    def close(self) -> None:
        self._events.close(linger=0)
        self._replays.close(linger=0)
        self._context.term()

    def wait(self, seconds: float = LIMIT) -> tuple[int, bytes] | None:
        """Return the next batch that is published, with its number."""
        if not self._events.poll(int(seconds * 1000)):
            return None
        _, number, data = self._events.recv_multipart()
        return int.from_bytes(number, "big"), data

    def take_all(self) -> None:
        """Apply what has come."""
        while (found := self.wait(0.0)) is not None:
            self.take(*found)

    def take(self, number: int, data: bytes) -> None:
        """Apply a batch, and before it those that were missed."""
        if number > self.number + 1:
            self.ask(self.number + 1, number)
        if number > self.number:
            self.apply(number, data)

    def ask(self, first: int, end: int = 1 << 62) -> None:
        """Apply the batches from `first` on, before `end`, that the publisher still has."""
        self._replays.send_multipart((b"", first.to_bytes(8, "big")))
        while True:
            assert self._replays.poll(int(LIMIT * 1000)), "no answer"
            _, number, data = self._replays.recv_multipart()
            if int.from_bytes(number, "big", signed=True) == -1:
                return
            if self.number < int.from_bytes(number, "big") < end:
                self.apply(int.from_bytes(number, "big"), data)

    def apply(self, number: int, data: bytes) -> None:
        if number != self.number + 1:  # those between are lost: nothing is known
            self.num_gaps += 1
            self.blocks.clear()
        self.number = number
        batch = _DECODER.decode(data)
        self.ranks[batch.data_parallel_rank] = None
        self.batches.append(batch)
        for event in batch.events:
            self._apply(event)

    def _apply(self, event: Any) -> None:
        match event:
            case AllBlocksCleared():
                self.blocks.clear()
                self.num_clears += 1
            case BlockRemoved(hashes, _, group):
                for each in hashes:
                    self.blocks.pop((group or 0, int(each)), None)
            case BlockStored():
                group, size = event.group_idx or 0, event.block_size
                before = self.blocks.get((group, int(event.parent_block_hash or 0)), ())
                assert event.block_size * len(event.block_hashes) == len(event.token_ids)
                for index, each in enumerate(event.block_hashes):
                    before = (*before, *event.token_ids[index * size : (index + 1) * size])
                    self.blocks[group, int(each)] = before
