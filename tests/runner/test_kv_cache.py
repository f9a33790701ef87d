"""The number of blocks that fit in memory, and the error when too few fit."""

import pytest

from octavo.backends.base import KVLayers, KVLayout, UnsupportedKVError
from octavo.core.config import ConfigError, KVGroup
from octavo.layers import KVSpec
from octavo.runner.kv_cache import groups_of, num_blocks_in, readable

# 2 · 3 layers · 16 tokens · 4 heads · 8 numbers · 4 bytes = 12 KiB per block
LAYOUT = KVLayout((KVLayers(KVSpec("full", 4, 8), 3), KVLayers(KVSpec("full", 4, 8, 32), 2)))
BLOCK_BYTES = 12 * 1024


def fitting(budget_bytes: int, layout: KVLayout = LAYOUT, max_num_seqs: int = 100) -> int:
    return num_blocks_in(
        budget_bytes,
        layout,
        block_size=16,
        block_bytes=layout.block_bytes(16, 4),
        max_model_len=100,
        max_num_seqs=max_num_seqs,
        step_tokens=200,
    )


def test_where_nothing_is_kept_the_blocks_are_those_of_a_step() -> None:
    """Each of its texts fills its last block in part; one block more is the null block."""
    layout = KVLayout((KVLayers(KVSpec("none", 4, 8), 1),))
    assert fitting(10_000 * BLOCK_BYTES, layout, max_num_seqs=7) == 7 + 13 + 1


def test_as_many_blocks_as_fit() -> None:
    assert LAYOUT.block_bytes(16, 4) == BLOCK_BYTES
    assert fitting(100 * BLOCK_BYTES) == 100
    assert fitting(101 * BLOCK_BYTES - 1) == 100


def test_never_more_than_could_be_used() -> None:
    """A sequence of 100 tokens needs 7 blocks in each of the two groups."""
    assert fitting(10**12, max_num_seqs=3) == 3 * 14 + 1


def test_one_sequence_must_fit() -> None:
    assert fitting(15 * BLOCK_BYTES) == 15
    with pytest.raises(ConfigError) as caught:
        fitting(15 * BLOCK_BYTES - 1)
    message = str(caught.value)
    assert "may use 180 KiB, which holds 14 blocks of 12 KiB" in message
    assert "max_model_len=100 needs 15 (180 KiB)" in message
    assert "set max_model_len to at most 96" in message


@pytest.mark.parametrize("budget_bytes", [-1, 0, 2 * BLOCK_BYTES])
def test_no_memory_at_all(budget_bytes: int) -> None:
    with pytest.raises(ConfigError, match=r"raise kv_cache_memory_bytes, or lower block_size"):
        fitting(budget_bytes)


def test_a_layout_without_layers_is_refused() -> None:
    with pytest.raises(ConfigError, match="a KV block of 0 bytes"):
        fitting(1000, KVLayout((KVLayers(KVSpec("full", 4, 8), 0),)))


def test_the_layout_determines_the_groups() -> None:
    """Groups of one shape share buffers, so their blocks are equal, whatever their layers."""
    assert groups_of(LAYOUT, 16) == (KVGroup(), KVGroup(32))


def test_each_kind_has_its_own_size_of_block() -> None:
    """A state does not grow with the tokens of a block; a latent row is one vector."""
    layout = KVLayout(
        (
            KVLayers(KVSpec("latent", 1, 48), 4),
            KVLayers(KVSpec("state", 2, 768, checkpoint_blocks=8), 4),
            KVLayers(KVSpec("full", 1, 24), 2, "drafter"),
        )
    )
    assert groups_of(layout, 16) == (
        KVGroup(kind="latent", block_bytes=2),
        KVGroup(kind="state", block_bytes=4, checkpoint_blocks=8),
        KVGroup(block_bytes=1, owner="drafter"),
    )
    assert layout.block_bytes(16, 2) == 4 * 2 * 768 * 2


def test_what_no_backend_can_keep_is_refused_in_one_place() -> None:
    layout = KVLayout((KVLayers(KVSpec("full", 4, 8), 3), KVLayers(KVSpec("latent", 1, 576), 3)))
    with pytest.raises(UnsupportedKVError, match="keep keys and values of one shape alone"):
        _ = layout.kv_heads
    assert (LAYOUT.kv_heads, LAYOUT.head_dim) == (4, 8)


def test_byte_counts_are_readable() -> None:
    assert [readable(n) for n in (0, 1023, 1536, 3 * 2**30, 2**60)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "3 GiB",
        "1.049e+06 TiB",
    ]
