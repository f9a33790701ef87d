"""The arithmetic of the memory bill."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from octavo.core.config import KVGroup
from octavo.observe.memory_bill import HEADROOM_BYTES, MemoryBill, difference
from octavo.observe.stored_bytes import StoredBytes, by_type

BILL = MemoryBill(
    stored=(StoredBytes("F16", 2, 60), StoredBytes("F32", 1, 40)),
    weights_bytes=1000,
    step_bytes=150,
    grammar_bytes=50,
    block_bytes=64,
    block_size=16,
    groups=(KVGroup(),),
    chunk_tokens=32,
)


def test_sums() -> None:
    assert BILL.fixed_bytes == 1200
    assert BILL.stored_bytes == 100
    assert BILL.token_bytes == 4.0
    assert BILL.room_for_kv(HEADROOM_BYTES + 1500) == 300
    assert BILL.room_for_kv(0) < 0


@pytest.mark.parametrize(("tokens", "blocks"), [(1, 1), (16, 1), (17, 2), (160, 10)])
def test_a_sequence_takes_whole_blocks(tokens: int, blocks: int) -> None:
    assert BILL.num_blocks(tokens) == blocks
    assert BILL.sequence_bytes(tokens) == blocks * 64


def test_small_blocks_share_a_page() -> None:
    bill = replace(BILL, groups=(KVGroup(block_bytes=4), KVGroup(kind="latent")))
    assert bill.token_bytes == 5.0
    assert [bill.num_blocks(tokens) for tokens in (16, 64, 65)] == [2, 5, 7]


def test_a_window_bounds_what_a_group_of_layers_keeps() -> None:
    bill = replace(BILL, groups=(KVGroup(), KVGroup(48), KVGroup(48)))
    assert bill.token_bytes == 12.0
    assert bill.num_blocks(64) == 12
    # (47 + 32) / 16 blocks, and one where it begins within a block
    assert bill.num_blocks(1600) == 100 + 2 * 6


def test_a_state_does_not_grow() -> None:
    """A sequence has the state that its chunk reads, checkpoints, and those that may be last."""
    bill = replace(BILL, groups=(KVGroup(), KVGroup(kind="state", checkpoint_blocks=4)))
    assert bill.token_bytes == 4.0
    assert [bill.num_blocks(tokens) for tokens in (16, 32, 1600)] == [2, 4, 100 + 4]
    longer = replace(bill, chunk_tokens=320)
    # Of 22 blocks that a chunk touches, 5 are checkpoints.
    assert longer.num_blocks(1600) == 100 + 1 + 5 + 1 + 2


@pytest.mark.parametrize(
    ("kv_bytes", "count"), [(0, 0), (64, 0), (64 * 2, 0), (64 * 3, 1), (64 * 201, 100)]
)
def test_sequences_that_fit(kv_bytes: int, count: int) -> None:
    """One block is reserved as the null block."""
    assert BILL.num_sequences(32, kv_bytes) == count


def test_tensors_are_added_up_by_type() -> None:
    found = by_type([("F32", 5), ("Q8_0", 100), ("F32", 6)])
    assert found == (StoredBytes("Q8_0", 1, 100), StoredBytes("F32", 2, 11))


@pytest.mark.parametrize(
    ("predicted", "measured", "text"),
    [(100, 105, "+5.0 %"), (100, 90, "-10.0 %"), (0, 5, "nothing was predicted")],
)
def test_the_deviation_from_a_prediction(predicted: int, measured: int, text: str) -> None:
    assert difference(predicted, measured) == text
