"""Regexes with assertions, and the strings outside a regex, against Python's own."""

from __future__ import annotations

import re
from itertools import product
from random import Random

import pytest

from octavo.core.structured_outputs import StructuredOutputsParams
from octavo.grammar.json_schema.strings import not_found
from octavo.grammar.regexes import RegexError, all_translated, translated, widened
from tests.grammar.json_schema.walks import accepts, matcher_of

SHORT = ["".join(each) for length in range(5) for each in product("ab-1", repeat=length)]
TEXTS = [
    *SHORT,
    "foo",
    "a foo b",
    "xfoo",
    "foobar",
    "é",
    "éa",
    "a\n",
    "\n",
    "a1_",
    "Ab1-",
    "Abc12345",
]
WRITTEN = (
    r"^(?=.*[A-Z])(?=.*\d).{3,}$",
    r"^(?!foo)[a-z]+$",
    r"\bfoo\b",
    r"^\w+\b",
    r"^(?!.*--)[a-z-]+(?<!-)$",
    r"^(?!-)[a-z0-9-]{1,10}(?<!-)$",
    r"a(?=b)|^1",
    r"(?<=a)b",
    r"(?<!a)b",
    r"^(?:a(?!b)|b)*$",
    r"a\B",
    r"^(?!\d)",
    r"^(?=[^-]*-?[^-]*$)[ab1-]+$",
    r"^(?!(?:a|b)$).+$",
    r"^(?!a|b)1+|^(?=b)b{2}$",
)


def plain(regex: str) -> str:
    """Return a translated regex as Python writes it."""
    longer = re.sub(r"\\u\{([0-9A-F]+)\}", lambda found: f"\\U{int(found[1], 16):08X}", regex)
    return longer.replace(r"\p{Nd}", r"\d").replace("$", r"\Z")


def found_by_all(parts: list[str], *, is_whole: bool = False) -> set[str]:
    """Return the texts that all regexes match."""
    match = re.fullmatch if is_whole else re.search
    return {text for text in TEXTS if all(match(plain(part), text) for part in parts)}


def random_regex(random: Random, depth: int = 3) -> str:
    """Return a regex in which assertions may stand anywhere."""
    kind = random.randrange(9) if depth else 0
    if kind <= 1:
        return random.choice(("a", "b", "-", "[ab]", "[^a]", "[b1]"))
    first, second = random_regex(random, depth - 1), random_regex(random, depth - 1)
    match kind:
        case 2 | 3:
            return first + second
        case 4:
            return f"(?:{first}|{second})"
        case 5:
            return f"(?:{first}){random.choice('*?')}"
        case 6 | 7:
            simple = random.choice(("a", "b", "ab", "[b1]a?", ".*b", "$", "-|a"))
            return f"{first}(?{random.choice(('=', '!'))}{simple}){second}"
    simple = random.choice(("a", "b", "ab", "[b1]", "^", "^.", "-"))
    return f"{first}(?<{random.choice(('=', '!'))}{simple}){second}"


@pytest.mark.parametrize("regex", WRITTEN)
def test_what_is_asserted_holds_and_nothing_plain_is_lost(regex: str) -> None:
    theirs = {text for text in TEXTS if re.search(regex, text)}
    ours = found_by_all(all_translated(regex, is_whole=False))
    assert ours <= theirs
    assert {text for text in theirs if text.isascii() and "\n" not in text} <= ours
    assert found_by_all([translated(regex, is_whole=False)]) == ours, "one regex means the same"


@pytest.mark.parametrize("is_whole", [False, True])
def test_random_regexes_with_assertions_mean_what_python_says(is_whole: bool) -> None:
    num_read = 0
    match = re.fullmatch if is_whole else re.search
    for number in range(250):
        regex = random_regex(Random(number))
        try:
            parts = all_translated(regex, is_whole=is_whole)
        except RegexError as error:
            if "no text matches it" in str(error):
                assert not any(match(regex, text) for text in TEXTS)
            continue
        num_read += "(?" in regex
        theirs = {text for text in TEXTS if match(regex, text) and "\n" not in text}
        assert found_by_all(parts, is_whole=is_whole) - {"a\n", "\n"} == theirs, regex
    assert num_read > 100


@pytest.mark.parametrize(
    "regex",
    [*WRITTEN[1:], "^a", "b$", "a|b", r"\d", r"^\w+$", ".", r"^\s*$", "^(?s:.)$", "^[a-b]{2,3}$"],
)
def test_strings_in_which_a_regex_is_not_found(regex: str) -> None:
    """No dialect finds it there, and of plain strings none is left out."""
    outside = not_found(widened(regex))
    assert outside is not None
    ours = found_by_all([outside])
    theirs = {text for text in TEXTS if not re.search(regex, text)}
    assert ours <= theirs
    assert {text for text in theirs if text.isascii() and "\n" not in text} <= ours


def test_no_string_is_outside_of_all() -> None:
    assert not_found("") is None
    assert not_found(r"\p{L}") is None, "it is not computed"


def test_a_text_with_assertions_is_enforced() -> None:
    matcher = matcher_of(StructuredOutputsParams(regex=r"(?=.*\d)(?!1)[ab1]{2,4}(?<!b)"))
    assert accepts(matcher, "ab1")
    assert not any(accepts(matcher, text) for text in ("1a", "aa", "a1b", "a1a1a"))
    matcher = matcher_of(StructuredOutputsParams(json={"pattern": r"^(?=.*\d)\w+\b$"}))
    assert accepts(matcher, '"ab1"')
    assert accepts(matcher, "17")
    assert not any(accepts(matcher, text) for text in ('"ab"', '"1-"'))


@pytest.mark.parametrize(
    "regex",
    ["(?=a(?!b))a", "^" + "(?:a(?!b)|b)" * 9, "(?=.*a)(?i:b)", r"(?<=\p{L})a", "(?<=b)a{2000}c"],
)
def test_assertions_that_are_not_computed_are_refused(regex: str) -> None:
    with pytest.raises(RegexError, match="its assertions cannot be enforced"):
        all_translated(regex, is_whole=False)
