"""The names of modules that a checkpoint's settings speak of: exact, or by a regex.

A regex comes with the checkpoint, so it must not take a time that grows exponentially, as the one
of the standard library can: it is followed by an automaton, in a time in proportion to the name.
"""

from __future__ import annotations

import re

from octavo.grammar.regexes import RegexError, translated
from octavo.grammar.regular.automata import Automaton
from octavo.grammar.regular.expressions import Algebra, TooLargeError
from octavo.grammar.regular.languages import Language, UnreadableError
from octavo.loader.errors import UnsupportedFormatError, quote

MAX_PATTERNS = 4096  # in one checkpoint; published ones name each module of a hundred layers
MAX_REGEX = 4096  # characters
_BEGIN = re.compile(r"(?<![\\\[])\^")


class NameRegex:
    """A regex that the beginning of a name must match, as Python's `re.match` has it.

    `origin` names the settings that it stands in, for errors.
    """

    def __init__(self, regex: str, origin: str = "quantization_config") -> None:
        self._regex, self._origin = regex, origin
        try:
            if len(regex) > MAX_REGEX:
                raise RegexError(f"it has more than {MAX_REGEX} characters")
            inside = regex.removeprefix("^")
            if _BEGIN.search(inside):
                raise RegexError("^ stands inside it")
            algebra = Algebra()
            language = Language(algebra, translated(f"^(?:{inside})", is_whole=False))
            self._automaton = Automaton(algebra, language.expression, language.num_assertions)
        except (RegexError, TooLargeError, UnreadableError) as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: Exception) -> UnsupportedFormatError:
        return UnsupportedFormatError(
            f"{self._origin}: the regex {quote(self._regex)} of module names cannot be read: "
            f"{error}",
            advice="name the modules there, or use a simpler regex",
        )

    def matches(self, name: str) -> bool:
        try:
            return self._automaton.accepts(name)
        except TooLargeError as error:
            raise self._unreadable(error) from None


class NamePatterns:
    """A list of module names, in which `re:` begins a regex."""

    def __init__(self, patterns: object, key: str) -> None:
        listed = [] if patterns is None else patterns
        if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
            raise UnsupportedFormatError(f"quantization_config: {key} must be a list of names")
        if len(listed) > MAX_PATTERNS:
            raise UnsupportedFormatError(
                f"quantization_config: {key} has {len(listed)} names; at most {MAX_PATTERNS:,} are "
                "read"
            )
        regexes = [each.removeprefix("re:") for each in listed if each.startswith("re:")]
        self._regexes = [NameRegex(each) for each in regexes]
        self._names = frozenset(each for each in listed if not each.startswith("re:"))

    def match(self, name: str) -> bool:
        """Return whether the list has this module."""
        if name in self._names:
            return True
        return any(each.matches(name) for each in self._regexes)

    def has(self, name: str) -> bool:
        """Return whether the list has exactly this entry, such as the name of a class."""
        return name in self._names
