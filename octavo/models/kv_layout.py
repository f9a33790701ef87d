"""Grouping of a model's attention layers by their KV, so that all share one pool of blocks.

Layers with the same window form a group. If one kind has several times as many layers as another
(Gemma 3 has five windowed layers for each full one), it forms several groups of the smaller size:
a block has space for as many layers as the largest group, so groups of unequal size waste memory.
"""

from __future__ import annotations

from octavo.backends.base import KVLayout
from octavo.layers import CausalLM, PagedAttention
from octavo.models.config_reader import ConfigurationError


def place_layers(model: CausalLM) -> KVLayout:
    """Set every attention layer's (group, index), and return the layout of the groups."""
    layers = [layer for _, layer in model.walk() if isinstance(layer, PagedAttention)]
    shapes = {(layer.kv_heads, layer.head_dim) for layer in layers}
    if len(shapes) != 1:
        raise ConfigurationError(
            f"attention layers have KV of different shapes (heads, dimensions): {sorted(shapes)}; "
            "all must be alike"
        )
    kinds: dict[int | None, list[PagedAttention]] = {}
    for layer in layers:
        kinds.setdefault(layer.window, []).append(layer)
    size = min(map(len, kinds.values()))
    windows: list[int | None] = []
    largest = 0
    for window, members in kinds.items():
        num_groups = -(-len(members) // size)
        per_group = -(-len(members) // num_groups)
        largest = max(largest, per_group)
        for begin in range(0, len(members), per_group):
            for number, layer in enumerate(members[begin : begin + per_group]):
                layer.place = (len(windows), number)
            windows.append(window)
    kv_heads, head_dim = shapes.pop()
    return KVLayout(tuple(windows), largest, kv_heads, head_dim)
