"""The id by which an engine knows an adapter: the digest of its content, and its scale."""

from __future__ import annotations

import re

DIGEST_BYTES = 32
_ID = re.compile(r"(?P<digest>[0-9a-f]{64})(\*(?P<scale>\S{1,32}))?")


def adapter_id(digest: str, scale: float = 1.0) -> str:
    """Return the id of an adapter with this content; a scale of 1 is not written."""
    return digest if scale == 1.0 else f"{digest}*{scale!r}"


def digest_in(name: str) -> str:
    """Return the digest in an id; an empty text if it is none."""
    found = _ID.fullmatch(name)
    return "" if found is None else found["digest"]
