"""The part of a KV cache that one of several processes has, over the same tables of blocks."""

from __future__ import annotations

import math
from collections.abc import Callable

from octavo.backends.base import PAGE_UNIT, KVLayout, KVPages, VectorSize
from octavo.layers import KVLayer, KVSpec, Model


def rank_layout(layout: KVLayout, model: Model) -> KVLayout:
    """Return the layout with what the layers of a rank keep, once they are narrowed to its share.

    Groups and the places of layers in them are those of the whole model, since all ranks have the
    same tables of blocks.
    """
    layers = [layer for _, layer in model.walk() if isinstance(layer, KVLayer)]
    kept = {layer.place[0]: layer.kv_spec for layer in layers if layer.kv_spec.kind != "none"}
    if not kept:  # of the running step alone, in a form that all layers share
        kept = {0: layers[0].kv_spec}
    groups = [group._replace(spec=kept[number]) for number, group in enumerate(layout.groups)]
    return KVLayout(tuple(groups))


def part_pages(
    own: KVLayout, whole: KVPages, block_size: int, size_of: Callable[[KVSpec], VectorSize]
) -> KVPages:
    """Return pages that have as many blocks of each group as those of the whole cache."""
    unit = PAGE_UNIT if len(own.shapes) > 1 else 1
    step, most = 1, 1
    for (spec, num_layers, _), count in zip(own.groups, whole.blocks_per_page, strict=True):
        width = size_of(spec).num_bytes(spec.dim)
        step = math.lcm(step, count * math.lcm(unit, width))
        most = max(most, count * num_layers * spec.block_vectors(block_size) * width)
    return KVPages(min(whole.page_bytes, -(-most // step) * step), whole.blocks_per_page)
