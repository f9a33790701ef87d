"""A regex that is searched for is written as one for the whole text, with the same matches."""

from __future__ import annotations

import re

import pytest

from octavo.formats.lark import whole

TEXTS = (
    "",
    "a",
    "b",
    "ab",
    "ba",
    "xax",
    "xa",
    "ax",
    "bx",
    "xb",
    "a$",
    "a\\",
    "\\",
    "a/b",
    "/",
    "^a",
)


@pytest.mark.parametrize(
    "regex",
    [
        *("a", "^a", "a$", "^a$", "^a|b$", "^a$|^b$", "a|^b", "(^a|b$)", "(?:^a)", "(a)|(b)"),
        *("^(a|b)$", "(a|b)$", "((^a)|b$)", r"a\$", r"a\\$", r"\\$", r"^\^a$", "[$]$", "[|^]a"),
        *("a/b", r"a\/b", "[/]", "^[^/]$", "", "^", "$", "^$", "|a", "(?i:A)$", r"[\]|]|^b"),
    ],
)
def test_the_whole_text_matches_where_a_search_finds_something(regex: str) -> None:
    made = whole(regex)
    assert re.search(r"(?<!\\)(\\\\)*/", made) is None, "it can stand between slashes"
    for text in TEXTS:
        found = re.search(regex, text) is not None
        assert (re.fullmatch(made, text) is not None) == found, (made, text)
