"""The field at a place of a JSON text, whole or damaged."""

from __future__ import annotations

import json

import pytest

from octavo.text.tokenizer_files import field_at

TEXT = b'{"a": {"b": [1, "x,y", {"c\\"d": 2}]},\n "e": [[0], [1, 2]], "f": 3}'


@pytest.mark.parametrize(
    ("word", "field"),
    [
        (b"1", "a.b[0]"),
        (b'"x,y"', "a.b[1]"),
        (b"2}", 'a.b[2].c\\"d'),
        (b"0]", "e[0][0]"),
        (b"2]]", "e[1][1]"),
        (b"3}", "f"),
        (b'"a"', ""),
    ],
)
def test_the_value_at_a_place_has_its_path(word: bytes, field: str) -> None:
    at = TEXT.index(word)
    line = TEXT.count(b"\n", 0, at) + 1
    column = at - (TEXT.rfind(b"\n", 0, at) + 1)
    assert field_at(TEXT, line, column) == field


def test_any_place_of_any_text_has_some_field() -> None:
    damaged = TEXT.replace(b"]", b"").replace(b'"', b"", 3)
    for text in (TEXT, damaged, b"", b"\xff\xfe", b"]}]}", b'{"' + b"k" * 500 + b'": 1}'):
        for line in (1, 2, 9):
            for column in (0, 1, 7, 40, 10**8):
                assert len(field_at(text, line, column)) < 100


def test_keys_are_cut() -> None:
    text = json.dumps({"k" * 500: 1}).encode()
    assert field_at(text, 1, len(text)) in ("k" * 60, "")
    assert field_at(text, 1, len(text) - 2) == "k" * 60
