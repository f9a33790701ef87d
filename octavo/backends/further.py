"""The rules for a further model over the slots of a backend, whichever backend it is."""

from __future__ import annotations

from collections.abc import Container

from octavo.backends.base import KVLayout
from octavo.layers import Context, LastStates, Model


def check_further(
    model: Model, owner: str, first: Model, layout: KVLayout, taken: Container[str]
) -> None:
    """Raise ValueError unless a model can compute beside the first one; `taken` have theirs."""
    owners = {group.owner for group in layout.groups if group.owner}
    if owner not in owners and not isinstance(model.features, LastStates | Context):
        raise ValueError(
            f"no group of the KV cache is of {owner!r}, the owner of a further model; the layout "
            f"has those of {sorted(owners) or 'the first model alone'}"
        )
    if owner in taken:
        raise ValueError(f"{owner!r} has a model already")
    if model.spec.vocabulary != first.spec.vocabulary:
        raise ValueError(
            f"the model of {owner!r} has {model.spec.vocabulary} tokens, and the first one "
            f"{first.spec.vocabulary}: it could propose none of the others"
        )
