"""The formats of strings: what each allows is valid for its readers."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable
from random import Random
from typing import Any

import pydantic
import pytest
from pydantic import networks

from octavo.core.structured_outputs import StructuredOutputsParams
from tests.grammar.json_schema.walks import accepts, matcher_of, walk

TEXTS = 20  # of each type
CASES: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = [
    (
        "uri-reference",
        ("", "/a/b", "a/b?c=d:e#f", "../a", "//host:80/a", "http://a/b", "mailto:a@b.c", "?a", "#"),
        (":a", "0a:b", "a_b:c", "//a:b/c", "//a@b:c", "%g0", "a b", "//"),
    ),
    (
        "uuid4",
        ("12345678-1234-4234-8234-123456789abc",),
        ("12345678-1234-1234-8234-123456789abc", "12345678-1234-4234-1234-123456789abc"),
    ),
    ("mac", ("00:1a:2B:3c:4d:5e",), ("00-1a-2b-3c-4d-5e", "00:1a")),
    ("e164", ("+41446681800",), ("41446681800", "+0123456789", "+1234567890123456")),
    ("ulid", ("01ARZ3NDEKTSV4RRFFQ69G5FAV",), ("81ARZ3NDEKTSV4RRFFQ69G5FAV", "01ARZ3")),
    ("cidrv4", ("10.0.0.1/8",), ("10.0.0.1", "10.0.0.1/33", "256.0.0.1/8")),
    ("cidrv6", ("::/0", "fe80::1/64"), ("fe80::1", "::/129", "1:2:3:4:5:6:7:8:9/1")),
    ("ipv4network", ("10.0.0.0/8", "1.2.3.4"), ("10.0.0.1/8", "10.1.0.0/8")),
    ("nanoid", ("V1StGXR8_Z5jdHi6B-myT",), ("V1StGXR8",)),
    ("cuid2", ("tz4a98xxat96iws9zmbrgj3a",), ("1z4a98xxat96iws9zmbrgj3a",)),
    ("base64url", ("", "YWJj"), ("YQ", "YQ==", "+/+/")),
    ("color", ("#00fF99",), ("#00f", "red")),
    ("path", ("", "/a b"), ()),
]
TYPES: list[Any] = [
    *(pydantic.UUID1, pydantic.UUID3, pydantic.UUID4, pydantic.UUID5, pydantic.UUID6),
    *(pydantic.UUID7, pydantic.UUID8, pydantic.IPvAnyAddress, networks.IPvAnyInterface),
    *(networks.IPvAnyNetwork, ipaddress.IPv4Network, ipaddress.IPv4Interface),
    *(ipaddress.IPv6Network, ipaddress.IPv6Interface, pydantic.Base64UrlBytes),
]


@pytest.mark.parametrize(("name", "allowed", "others"), CASES, ids=[name for name, *_ in CASES])
def test_a_format_allows_its_texts_and_no_others(
    name: str, allowed: tuple[str, ...], others: tuple[str, ...]
) -> None:
    matcher = matcher_of(StructuredOutputsParams(json={"type": "string", "format": name}))
    assert [text for text in allowed if not accepts(matcher, json.dumps(text))] == []
    assert [text for text in others if accepts(matcher, json.dumps(text))] == []


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_texts_of_the_formats_of_pydantic_are_valid_for_it(kind: Any) -> None:
    adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(kind)
    matcher = matcher_of(StructuredOutputsParams(json=adapter.json_schema()))
    read: Callable[[str], object] = adapter.validate_json
    for seed in range(TEXTS):
        text = walk(matcher, Random(seed))
        assert text is not None
        read(text)  # else it raises an error that has the text
