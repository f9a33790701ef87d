"""Scales the rows of an embedding while they are looked up."""

from __future__ import annotations

from octavo.program.listing import Listing
from octavo.program.passes.rewriting import pairs, replace


def scale_embeddings(listing: Listing) -> None:
    """Scale an embedding's rows as they are looked up."""
    for embed, scale in pairs(listing, "Embed", "Scale"):
        if embed.factor == 1.0:
            embed.factor = scale.factor
            replace(listing, scale, by=embed)
