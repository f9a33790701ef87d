"""The number of blocks that fit in memory, and the error when too few fit."""

import pytest

from octavo.backends.base import KVLayers, KVLayout, KVPages, VectorSize
from octavo.core.config import ConfigError, CoreConfig, KVGroup
from octavo.core.kv.manager import KVManager
from octavo.layers import KVSpec
from octavo.observe.memory_bill import MemoryBill
from octavo.runner.kv_cache import groups_of, longest_in, num_blocks_in, pages_for, readable

# 2 · 3 layers · 16 tokens · 4 heads · 8 numbers · 4 bytes = 12 KiB per block
LAYOUT = KVLayout((KVLayers(KVSpec("full", 4, 8), 3), KVLayers(KVSpec("full", 4, 8, 32), 2)))
BLOCK_BYTES = 12 * 1024


def pages_of(layout: KVLayout, number_bytes: int = 4, scale_bytes: int = 0) -> KVPages:
    return layout.pages(16, lambda spec: VectorSize(8 * number_bytes, scale_bytes))


def bill_of(layout: KVLayout, chunk_tokens: int = 200) -> MemoryBill:
    pages = pages_of(layout)
    groups = groups_of(layout, pages)
    return MemoryBill((), 0, 0, 0, pages.whole_bytes, 16, groups, chunk_tokens)


def fitting(budget_bytes: int, layout: KVLayout = LAYOUT, max_num_seqs: int = 100) -> int:
    return num_blocks_in(
        budget_bytes,
        layout,
        bill_of(layout),
        max_model_len=100,
        max_num_seqs=max_num_seqs,
        step_tokens=200,
    )


def test_where_nothing_is_kept_the_blocks_are_those_of_a_step() -> None:
    """Each of its texts fills its last block in part; one block more is the null block."""
    layout = KVLayout((KVLayers(KVSpec("none", 4, 8), 1),))
    assert fitting(10_000 * BLOCK_BYTES, layout, max_num_seqs=7) == 7 + 13 + 1


def test_as_many_blocks_as_fit() -> None:
    assert pages_of(LAYOUT) == KVPages(BLOCK_BYTES, (1, 1))
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
    """Groups of one shape have blocks of one size, whatever their layers."""
    assert groups_of(LAYOUT, pages_of(LAYOUT)) == (KVGroup(), KVGroup(32))


def test_each_kind_has_its_own_size_of_block() -> None:
    """A state does not grow with the tokens of a block; a latent row is one vector."""
    layout = KVLayout(
        (
            KVLayers(KVSpec("latent", 1, 48), 4),
            KVLayers(KVSpec("state", 2, 768, checkpoint_blocks=8), 4),
            KVLayers(KVSpec("full", 1, 24), 2, "drafter"),
        )
    )
    pages = pages_of(layout, 2)
    assert pages == KVPages(4 * 2 * 768 * 2, (2, 1, 4))
    assert groups_of(layout, pages) == (
        KVGroup(kind="latent", block_bytes=2),
        KVGroup(kind="state", block_bytes=4, checkpoint_blocks=8),
        KVGroup(block_bytes=1, owner="drafter"),
    )
    assert CoreConfig(9, 99, groups=groups_of(layout, pages)).blocks_per_page == (2, 1, 4)


def test_a_states_numbers_may_be_longer_than_those_of_keys() -> None:
    """The backend says how many bytes a number of each kind takes."""
    layout = KVLayout((KVLayers(KVSpec("state", 1, 512), 3), KVLayers(KVSpec("full", 1, 64), 2)))
    pages = layout.pages(16, lambda spec: VectorSize(32 if spec.kind == "state" else 16))
    assert pages == KVPages(2 * 2 * 16 * 64 * 2, (1, 1))
    assert (3 * 512 * 4, pages.block_bytes(0)) == (6144, 8192)


@pytest.mark.parametrize("heads", range(1, 9))
@pytest.mark.parametrize("dim", [24, 56, 80, 96, 128, 192, 576])
def test_blocks_of_any_shapes_share_pages(heads: int, dim: int) -> None:
    """Blocks fit, begin where vectors do, and a page is hardly larger than its largest block."""
    groups = (
        KVLayers(KVSpec("full", 8, 128), 30),
        KVLayers(KVSpec("full", heads, dim, 1024), 7),
        KVLayers(KVSpec("latent", 1, 576), 5),
    )
    pages = pages_of(KVLayout(groups), 2, 4)
    sizes = [each.num_layers * each.spec.block_vectors(16) * each.spec.dim * 2 for each in groups]
    assert pages.page_bytes <= max(sizes) * 1.07
    for number, (group, size) in enumerate(zip(groups, sizes, strict=True)):
        block_bytes = pages.block_bytes(number)
        assert block_bytes * pages.blocks_per_page[number] == pages.page_bytes
        assert size <= block_bytes
        assert pages.blocks_per_page[number] >= 0.66 * (max(sizes) // size)
        assert block_bytes % (group.spec.dim * 2) == block_bytes % 64 == 0


def test_small_blocks_need_fewer_pages() -> None:
    """A page has one block of the first group, or four of the second."""
    assert [pages_for(blocks, (1, 4)) for blocks in (0, 1, 4, 5)] == [0, 2, 5, 7]


@pytest.mark.parametrize(
    "small",
    [
        KVSpec("full", 1, 8),
        KVSpec("full", 1, 8, window=32),
        KVSpec("state", 4, 24, checkpoint_blocks=4),
    ],
)
def test_the_longest_sequence_takes_the_pages_that_there_are(small: KVSpec) -> None:
    """Earlier states and blocks behind a window take none; the core counts the same."""
    layout = KVLayout((KVLayers(KVSpec("full", 4, 8), 3), KVLayers(small, 2)))
    for chunk_tokens in (16, 200):
        bill = bill_of(layout, chunk_tokens)
        assert max(bill.blocks_per_page) > 1
        config = CoreConfig(9, 99, groups=bill.groups, max_num_batched_tokens=chunk_tokens)
        manager = KVManager(config, b"key")
        for num_pages in range(-1, 60):
            longest = longest_in(num_pages, bill, 16 * 200 - 3)
            assert bill.num_blocks(longest) == manager.peak_pages(longest)
            assert bill.num_blocks(longest + 1) > num_pages
            assert longest == 0 or bill.num_blocks(longest) <= num_pages
    assert longest_in(1000, bill, 16 * 200 - 3) == 16 * 200


def test_a_sequence_of_states_needs_little_memory() -> None:
    """One of 100 tokens would need 15 pages, if each block had its state, and fits in 12."""
    state = KVSpec("state", 12, 64, checkpoint_blocks=4)
    layout = KVLayout((KVLayers(KVSpec("full", 4, 8), 3), KVLayers(state, 4)))
    bill = bill_of(layout, 32)
    assert bill.blocks_per_page == (1, 1)

    def fit(num_pages: int) -> int:
        budget = num_pages * bill.block_bytes
        return num_blocks_in(
            budget, layout, bill, max_model_len=100, max_num_seqs=100, step_tokens=32
        )

    assert fit(12) == 12
    with pytest.raises(ConfigError, match="set max_model_len to at most 96"):
        fit(11)


def test_byte_counts_are_readable() -> None:
    assert [readable(n) for n in (0, 1023, 1536, 3 * 2**30, 2**60)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "3 GiB",
        "1.049e+06 TiB",
    ]
