"""The shape of the KV cache as the native engine makes it, of all layers or of a stage's."""

from __future__ import annotations

import math
from collections.abc import Sequence

from octavo.backends.base import PAGE_UNIT, KVLayout, KVPages
from octavo.backends.native import _native
from octavo.backends.native.footprint import kv_pages, vector_size
from octavo.backends.native.kv_formats import KvDtype


def cache_groups(
    layout: KVLayout, block_size: int, kv_dtype: KvDtype
) -> tuple[list[_native.CacheGroup], int]:
    """Return the groups of a cache, and the bytes of its pages."""
    pages = kv_pages(layout, block_size, kv_dtype)
    return _groups(layout, block_size, pages), pages.page_bytes


def stage_groups(
    layout: KVLayout, block_size: int, kv_dtype: KvDtype, num_layers: Sequence[int]
) -> tuple[list[_native.CacheGroup], int]:
    """Return the same for a stage that has only so many layers of each group."""
    pairs = zip(layout.groups, num_layers, strict=True)
    own = KVLayout(tuple([group._replace(num_layers=count) for group, count in pairs]))
    return part_groups(own, layout, block_size, kv_dtype)


def part_groups(
    own: KVLayout, layout: KVLayout, block_size: int, kv_dtype: KvDtype
) -> tuple[list[_native.CacheGroup], int]:
    """Return the same for a process that has its own part of each group."""
    whole = kv_pages(layout, block_size, kv_dtype)
    page_bytes = min(whole.page_bytes, _page_bytes(own, whole, block_size, kv_dtype))
    pages = KVPages(page_bytes, whole.blocks_per_page)
    return _groups(own, block_size, pages), page_bytes


def _page_bytes(own: KVLayout, whole: KVPages, block_size: int, kv_dtype: KvDtype) -> int:
    """Return the bytes of a page that has as many blocks of each group as one of all layers.

    All stages have the same tables of blocks.
    """
    unit = PAGE_UNIT if len(own.shapes) > 1 else 1
    step, most = 1, 1
    for (spec, num_layers, _), count in zip(own.groups, whole.blocks_per_page, strict=True):
        width = vector_size(spec, kv_dtype).num_bytes(spec.dim)
        step = math.lcm(step, count * math.lcm(unit, width))
        most = max(most, count * num_layers * spec.block_vectors(block_size) * width)
    return -(-most // step) * step


def _groups(layout: KVLayout, block_size: int, pages: KVPages) -> list[_native.CacheGroup]:
    groups = []
    for number, (spec, num_layers, _) in enumerate(layout.groups):
        group = _native.CacheGroup(num_layers, spec.heads, spec.dim, pages.block_bytes(number))
        group.latent = spec.latent
        group.state = spec.block_vectors(block_size) if spec.is_exact else 0
        groups.append(group)
    return groups
