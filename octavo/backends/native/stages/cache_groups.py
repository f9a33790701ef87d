"""The shape of the KV cache as the native engine makes it, of all layers or of a stage's."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.backends.base import KVLayout, KVPages
from octavo.backends.native import _native
from octavo.backends.native.footprint import kv_pages, vector_size
from octavo.backends.native.kv_formats import KvDtype
from octavo.backends.part_layout import part_pages


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
    pages = part_pages(own, whole, block_size, lambda spec: vector_size(spec, kv_dtype))
    return _groups(own, block_size, pages), pages.page_bytes


def _groups(layout: KVLayout, block_size: int, pages: KVPages) -> list[_native.CacheGroup]:
    groups = []
    for number, (spec, num_layers, _) in enumerate(layout.groups):
        group = _native.CacheGroup(num_layers, spec.heads, spec.dim, pages.block_bytes(number))
        group.latent = spec.latent
        group.state = spec.block_vectors(block_size) if spec.is_exact else 0
        groups.append(group)
    return groups
