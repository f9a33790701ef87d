"""The KV cache of a stage: fewer bytes a page, and as many blocks in it as with all layers."""

from __future__ import annotations

from typing import get_args

import pytest

from octavo.backends.base import KVLayers, KVLayout
from octavo.backends.native import _native
from octavo.backends.native.footprint import kv_pages
from octavo.backends.native.kv_formats import KV_FORMATS, KvDtype
from octavo.backends.native.stages.cache_groups import cache_groups, stage_groups
from octavo.layers import KVSpec

LAYOUTS = {
    "alike": KVLayout(
        (KVLayers(KVSpec("full", 2, 16), 4), KVLayers(KVSpec("full", 2, 16, window=32), 5))
    ),
    "unlike": KVLayout((KVLayers(KVSpec("full", 2, 64), 4), KVLayers(KVSpec("full", 1, 32), 3))),
}
LAYERS = [(1, 1), (2, 0), (0, 1), (0, 0), (4, 3)]


def made(groups: list[_native.CacheGroup], page_bytes: int, kv_dtype: KvDtype) -> _native.KvCache:
    """Make a cache of two pages, which is refused if blocks do not fill them."""
    kept_as = getattr(_native.CacheFormat, KV_FORMATS[kv_dtype].name)
    return _native.KvCache(kept_as, groups, 2, page_bytes, 16, _native.Team(1, False))


@pytest.mark.parametrize("kv_dtype", get_args(KvDtype))
@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_one_table_of_blocks_serves_all_stages(
    name: str, layers: tuple[int, int], kv_dtype: KvDtype
) -> None:
    layout = LAYOUTS[name]
    _, whole_bytes = cache_groups(layout, 16, kv_dtype)
    groups, page_bytes = stage_groups(layout, 16, kv_dtype, layers)
    cache = made(groups, page_bytes, kv_dtype)
    assert page_bytes <= whole_bytes
    if layers != (4, 3):
        assert page_bytes < whole_bytes
    if kv_dtype == "float32":  # its blocks have no scales beside them
        per_page = [page_bytes // cache.saved_bytes(group) for group in range(2)]
        assert tuple(per_page) == kv_pages(layout, 16, kv_dtype).blocks_per_page
