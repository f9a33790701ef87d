"""The languages of strings: which are in one core and another, and which are not in one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from octavo.grammar.json_schema.formats import WIDEST
from octavo.grammar.json_schema.narrowed import WIDENED
from octavo.grammar.regexes import literal
from octavo.grammar.regular.automata import Automaton
from octavo.grammar.regular.expressions import Algebra, TooLargeError
from octavo.grammar.regular.languages import Language, UnreadableError, outside

MAX_DEPTH = 8
MAX_VALUES = 64  # of an enum
Resolve = Callable[[Any], Any]


@lru_cache(maxsize=256)
def not_found(regex: str) -> str | None:
    """Return a regex of the strings in which this one is not found; None if it is not computed.

    None is also returned if there is no such string.
    """
    algebra = Algebra()
    try:
        language = Language(algebra, regex, widens=True)
        if language.num_assertions:
            regex_of_it = Automaton(algebra, language.expression, language.num_assertions).regex()
            if regex_of_it is None:
                return "^(?s:.)*$"
            language = Language(algebra, f"^(?:{regex_of_it})$")
        made = Automaton(algebra, outside(algebra, language.expression)).regex()
    except (TooLargeError, UnreadableError):
        return None
    return None if made is None else f"^(?:{made})$"


def are_apart(left: Any, right: Any, resolve: Resolve) -> bool:
    """Return whether certainly no string is in two cores."""
    regexes = tuple(sorted({*_regexes(left, resolve, 0), *_regexes(right, resolve, 0)}))
    return len(regexes) > 1 and _have_none_in_common(regexes)


@lru_cache(maxsize=1024)
def _have_none_in_common(regexes: tuple[str, ...]) -> bool:
    algebra = Algebra()
    try:
        languages = [Language(algebra, regex, widens=True) for regex in regexes]
        if any(each.num_assertions for each in languages):
            return False
        root = algebra.all_of([each.expression for each in languages])
        return Automaton(algebra, root).is_empty()
    except (TooLargeError, UnreadableError):
        return False


def _regexes(core: Any, resolve: Resolve, depth: int) -> Iterator[str]:
    """Yield regexes that are found in all strings of a core; there may be others."""
    core = resolve(core)
    if not isinstance(core, dict) or depth > MAX_DEPTH:
        return
    if WIDENED in core:
        yield core[WIDENED]
        return
    if "pattern" in core:
        yield core["pattern"]
    if "format" in core:
        yield WIDEST.get(core["format"], "")
    values = [core["const"]] if "const" in core else core.get("enum", ())
    texts = [value for value in values if isinstance(value, str)]
    if 0 < len(texts) <= MAX_VALUES:
        yield f"^(?:{'|'.join(map(literal, texts))})$"
    least, most = core.get("minLength", 0), core.get("maxLength")
    if least or most is not None:
        yield f"^(?s:.){{{least},{'' if most is None else most}}}$"
    for part in core.get("allOf", ()):
        yield from _regexes(part, resolve, depth + 1)
