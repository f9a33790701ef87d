"""Grouping of a model's layers by what they keep, so that all share one pool of memory.

Layers that keep the same form a group. If one kind has several times as many layers as another
of the same shape (Gemma 3 has five windowed layers for each full one), it forms several groups of
the smaller size: a block has space for as many layers as the largest group, so groups of unequal
size waste memory.
"""

from __future__ import annotations

from octavo.backends.base import DRAFTER, KVLayers, KVLayout
from octavo.layers import Context, KVLayer, KVSpec, Model


def place_layers(model: Model, drafter: Model | None = None) -> KVLayout:
    """Set every layer's (group, index), and return the layout of the groups.

    The groups of a drafter, a second model over the same tokens, follow those of the model. What is
    made of the model's hidden states, rows or keys and values, is the model's: it computes them
    with its own.
    Layers that keep nothing have no place, unless no layer keeps anything.
    """
    groups = _place(model, "", 0)
    if drafter is not None:
        owner = "" if isinstance(drafter.features, Context) else DRAFTER
        groups += _place(drafter, owner, len(groups))
    return KVLayout(tuple(groups or [KVLayers(_kept_nowhere(model), 1)]))


def _kept_nowhere(model: Model) -> KVSpec:
    """Return the form of the keys and values that only the running step has."""
    specs = {layer.kv_spec for _, layer in model.walk() if isinstance(layer, KVLayer)}
    return specs.pop() if len(specs) == 1 else KVSpec("none")


def _place(model: Model, owner: str, first_group: int) -> list[KVLayers]:
    kinds: dict[KVSpec, list[KVLayer]] = {}
    for _, layer in model.walk():
        if isinstance(layer, KVLayer) and layer.kv_spec.kind != "none":
            kinds.setdefault(layer.kv_spec, []).append(layer)
    groups: list[KVLayers] = []
    for spec, members in kinds.items():
        like = [len(each) for other, each in kinds.items() if _shape(other) == _shape(spec)]
        num_groups = -(-len(members) // min(like))
        per_group = -(-len(members) // num_groups)
        for begin in range(0, len(members), per_group):
            part = members[begin : begin + per_group]
            for number, layer in enumerate(part):
                layer.place = (first_group + len(groups), number)
            groups.append(KVLayers(spec, len(part), "" if spec.kind == "row" else owner))
    return groups


def _shape(spec: KVSpec) -> tuple[str, int, int]:
    return spec.kind, spec.heads, spec.dim
