"""Decodes the body of a request into its struct, and reports its unknown fields."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from octavo.serving.schema.by_field import (
    MAX_LISTS,
    MAX_NESTING,
    MAX_OPEN_VALUES,
    decode_by_field,
    extent,
)
from octavo.serving.schema.near_names import near_name
from octavo.serving.schema.reader import Unknown, most_values
from octavo.serving.schema.rules import rules_of
from octavo.transport.errors import ApiError, invalid

T = TypeVar("T", bound=msgspec.Struct)

_MAX_NAMES_IN_HEADER = 16
_MAX_NAME_CHARACTERS = 192
# A larger body is decoded field by field at once. The fast decoder may build millions of objects
# before it refuses a hostile body, which would then be paid for in addition to the slow decoder.
MAX_FAST_BYTES = 256 * 1024
MAX_FAST_VALUES = 1 << 14  # in a body that the event loop decodes: one may take 64 bytes and more


def decode(body: bytes, kind: type[T]) -> tuple[T, tuple[Unknown, ...]]:
    """Return the request and its unknown fields; raise ApiError for a body that is not valid.

    One call of msgspec decodes the whole of a small body. The structs forbid unknown fields, so
    that a success proves that there are none. A body that is refused, or larger than
    `MAX_FAST_BYTES`, is read field by field.
    """
    if len(body) <= MAX_FAST_BYTES:
        decoder, open_fields, list_fields = _decoder(kind)
        try:
            request: T = decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
        else:
            if _is_bounded(request, open_fields, list_fields):
                return request, ()
    request, unknown = decode_by_field(body, kind)
    closed = rules_of(kind).closed
    if closed and (inside := tuple(each for each in unknown if _outer(each.path) in closed)):
        raise unknown_field(inside[0], kind)
    return request, unknown


def _outer(path: str) -> str:
    """Return the field of the request that a path leads into; "" for a field of the request."""
    outer, dot, _ = path.partition(".")
    return outer if dot else ""


def is_large(body: bytes) -> bool:
    """Return whether a body is too large to be decoded in the event loop."""
    return len(body) > MAX_FAST_BYTES or most_values(body) > MAX_FAST_VALUES


def _is_bounded(request: Any, open_fields: Sequence[str], list_fields: Sequence[str]) -> bool:
    """Return whether the values whose bounds msgspec cannot express are within them."""
    for name in open_fields:
        value = getattr(request, name)
        depth, num_values = (0, 0) if value is None else extent(value)
        if depth > MAX_NESTING or num_values > MAX_OPEN_VALUES:
            return False
    for name in list_fields:
        value = getattr(request, name)
        if type(value) is list and sum([type(each) is list for each in value]) > MAX_LISTS:
            return False
    return True


@lru_cache(maxsize=64)
def _decoder(
    kind: type[T],
) -> tuple[msgspec.json.Decoder[T], tuple[str, ...], tuple[str, ...]]:
    assert kind.__struct_config__.forbid_unknown_fields, "a decode must prove that all are known"
    names = kind.__struct_fields__
    decoder = msgspec.json.Decoder(kind)
    rules = rules_of(kind)
    return (
        decoder,
        tuple(rules.open.intersection(names)),
        tuple(rules.with_lists.intersection(names)),
    )


def unknown_field(unknown: Unknown, kind: type[msgspec.Struct]) -> ApiError:
    """Return the error for an unknown field, with the name that was probably meant."""
    path, name, known = unknown
    other = rules_of(kind).other_names.get(name)
    hint = f"; did you mean {other!r}?" if other in known else near_name(name, known)
    return invalid(f"unknown field {path[:192]!r}{hint}", path[:192], "unknown_parameter")


def named_in_header(unknown: tuple[Unknown, ...]) -> bytes:
    """Return the first unknown fields for a header, with what is unsafe there as %XX."""
    paths = [each.path[:_MAX_NAME_CHARACTERS] for each in unknown[:_MAX_NAMES_IN_HEADER]]
    return ",".join(quote(path, safe="[]:") for path in paths).encode()
