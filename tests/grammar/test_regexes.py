"""Regexes of ECMAScript and Python in the engine's dialect, against Python's own."""

from __future__ import annotations

import re

import pytest

from octavo.core.structured_outputs import StructuredOutputsParams
from octavo.grammar.regexes import RegexError, literal, translated
from tests.grammar.json_schema.walks import accepts, matcher_of

TEXTS = (
    *("", "a", "b", "ab", "abab", "A", "é", "1", "12", "١", " ", "\n", "\t", "\u2028", "\u00a0"),
    *("-", "_", "a-b", "a.b", "a/b", "a b", "[", "]", "^", "\\", "{", "}", "a{2}", "aa", "&&", "x"),
    *('"', "'", "#", "~", "😀", "a\nb", "abc", "$", "|", "\x00", "\x7f", "a1_", "@", "1.5", "-1.5"),
)
SAME = (
    *("a", "ab", "a|b", "(a|b)+", "(?:ab){2}", "a{2}", "a{1,2}", "a{2,}", "a*?b", "[ab]+?", "a?"),
    *("[a-c]*", "[^a]", "[^ab]*", r"\[", r"[\]]", r"[\[\]]", r"[\^]", "[a^]", "[a-]", "[-a]"),
    *(r"a\.b", r"a/b", "a b", r"\x41", r"\u00e9", r"\\", "'", '"', "#", "~", "&&", "[&][&]"),
    *("é", "😀", "[😀é]", r"\t", r"\n", "^a$", "^(a|b)$", "^$", "(?P<n>a)b", "a|^b$", "[{}]"),
    *(
        r"[+-]?[0-9]+(\.[0-9]+)?",
        r"\{",
        r"a\-b",
        r"[\-a]",
        r"[!-/]",
        "(?i:a)",
        "(?s:.)",
        r"(?s).(?-s:a)",
        r"\$",
    ),
)
# A text that the translation matches is matched by Python too, and not the other way round.
NARROWER = (
    *(
        r"\d+",
        r"\D",
        r"\w+",
        r"\W",
        r"\s",
        r"\S",
        "[\\d]",
        "[^\\d]",
        "[\\w-]+",
        "[^\\w]",
        "[\\s\\S]*",
    ),
    *(".", ".*", "[^\\s]", "[^\\D]", "[^\\W]", "[^\\S]", r"\d{1,2}|\w", "[\\D]", "[\\Wa]"),
)


def ours(regex: str) -> set[str]:
    matcher = matcher_of(StructuredOutputsParams(regex=regex))
    return {text for text in TEXTS if accepts(matcher, text)}


def theirs(regex: str) -> set[str]:
    return {text for text in TEXTS if re.fullmatch(regex, text)}


@pytest.mark.parametrize("regex", SAME)
def test_a_regex_means_the_same(regex: str) -> None:
    assert ours(regex) == theirs(regex)


@pytest.mark.parametrize("regex", NARROWER)
def test_where_dialects_differ_the_text_matches_in_all_of_them(regex: str) -> None:
    found = ours(regex)
    assert found <= theirs(regex)
    assert found or regex in ("[^\\W]", "[^\\S]")


@pytest.mark.parametrize("regex", NARROWER)
def test_where_dialects_differ_plain_text_is_kept(regex: str) -> None:
    plain = {text for text in theirs(regex) if text.isascii() and "\r" not in text}
    assert plain <= ours(regex)


@pytest.mark.parametrize("text", TEXTS[1:])
def test_a_literal_matches_its_text_alone(text: str) -> None:
    matcher = matcher_of(StructuredOutputsParams(choice=(text,)))
    assert {each for each in TEXTS if accepts(matcher, each)} == {text}
    assert re.fullmatch(literal(text), text)


@pytest.mark.parametrize(
    ("regex", "words"),
    [
        ("(?=a(?=b))", "assertions within others"),
        (r"(a)\1", "refers back"),
        (r"\k<n>", "refers back"),
        (r"\Aa", "anchor of Python"),
        ("a^b", "not at an end"),
        ("a$b", "not at an end"),
        ("(^a)+", "^ is in a group that + repeats"),
        ("(?:(^a)b){2}", "^ is in a group that {2} repeats"),
        ("a**", "nothing that it could repeat"),
        ("*a", "nothing that it could repeat"),
        ("a++", "possessive"),
        ("a{3,2}", "backwards"),
        ("(a", "not closed"),
        ("a)", "without a ("),
        ("[a", "a class is not closed"),
        ("[]", "[] matches nothing"),
        ("a\\", "ends with a backslash"),
        (r"\q", "no known escape"),
        (r"\ud800", "is no character"),
        ("(?#a)", "no known kind of group"),
        ("a" * 20_000, "at most 16384"),
    ],
)
def test_a_regex_that_cannot_be_enforced_is_refused(regex: str, words: str) -> None:
    with pytest.raises(RegexError, match=re.escape(words)):
        translated(regex, is_whole=True)


def test_anchors_stay_where_a_regex_is_searched_for() -> None:
    assert translated("^a$", is_whole=False) == "^a$"
    assert translated("^a$", is_whole=True) == "a"


def test_a_utf16_pair_is_one_character() -> None:
    assert translated(r"\ud83d\ude00", is_whole=True) == "😀"
