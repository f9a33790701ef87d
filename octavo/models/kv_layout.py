"""Groups a model's attention layers by what they keep, so that all share one pool of blocks.

Layers with the same window make a group. If one kind has several times as many layers as
another (Gemma 3 has five windowed ones to each full one), it makes several groups of the smaller
number: a block serves as many layers as a group has, so groups of unlike size would waste it.
"""

from __future__ import annotations

from octavo.backends.base import KVLayout
from octavo.layers import CausalLM, PagedAttention
from octavo.models.config_reader import ConfigurationError


def place_layers(model: CausalLM) -> KVLayout:
    """Give every attention layer its (group, number), and say what the groups are."""
    layers = [layer for _, layer in model.walk() if isinstance(layer, PagedAttention)]
    shapes = {(layer.kv_heads, layer.head_dim) for layer in layers}
    if len(shapes) != 1:
        raise ConfigurationError(f"attention layers keep KV of different shapes: {sorted(shapes)}")
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
