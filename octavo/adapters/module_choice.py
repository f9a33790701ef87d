"""The modules that an adapter's settings speak of, as PEFT understands their names and regexes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Generic, TypeVar

from octavo.loader.errors import UnsupportedFormatError, quote
from octavo.quant.module_names import MAX_PATTERNS, NameRegex

ORIGIN = "adapter_config.json"
MAX_REGEXES = 256  # in one field
_PLAIN = re.compile(r"[\w\-]+(?:\.[\w\-]+)*")

Kept = TypeVar("Kept")


class ByModule(Generic[Kept]):
    """Values for modules: each is for those whose names end in a pattern; the first one applies."""

    def __init__(self, values: Mapping[str, Kept], key: str) -> None:
        _refuse_many(values, key)
        self._plain: dict[str, tuple[int, Kept]] = {}
        self._regexes: list[tuple[int, NameRegex, Kept]] = []
        for place, (pattern, value) in enumerate(values.items()):
            if _PLAIN.fullmatch(pattern):
                self._plain[pattern] = place, value
            else:
                self._regexes.append((place, _at_end(pattern, key), value))
        if len(self._regexes) > MAX_REGEXES:
            raise _too_many(key, "regexes", len(self._regexes), MAX_REGEXES)

    def find(self, module: str, default: Kept) -> Kept:
        """Return the value for a module."""
        found = [self._plain[end] for end in _ends(module) if end in self._plain]
        place, value = min(found, key=lambda pair: pair[0], default=(len(self), default))
        for each, regex, of_regex in self._regexes:
            if each < place and regex.matches(module):
                return of_regex
        return value

    def __len__(self) -> int:
        return len(self._plain) + len(self._regexes)


class Names:
    """A list of names that modules may end in, or a regex that whole names must match."""

    def __init__(self, names: list[str] | str, key: str) -> None:
        self._regex: NameRegex | None = None
        self._names: frozenset[str] = frozenset()
        if isinstance(names, str):
            self._regex = NameRegex(f"(?:{names})$", f"{ORIGIN}: {key}")
        else:
            _refuse_many(names, key)
            self._names = frozenset(names)

    def match(self, module: str) -> bool:
        if self._regex is not None:
            return self._regex.matches(module)
        return any(end in self._names for end in _ends(module))


class Layers:
    """The blocks that an adapter is limited to, by their numbers in the modules' names."""

    def __init__(self, numbers: list[int] | int, patterns: list[str] | str | None) -> None:
        self._numbers = frozenset([numbers] if isinstance(numbers, int) else numbers)
        listed = [patterns] if isinstance(patterns, str) and patterns else patterns or []
        if len(listed) > MAX_REGEXES:
            raise _too_many("layers_pattern", "names", len(listed), MAX_REGEXES)
        self._patterns = [_at_end(each, "layers_pattern") for each in listed]

    def match(self, module: str) -> bool:
        number = next(self._numbers_in(module), None)
        return not self._numbers or number in self._numbers

    def _numbers_in(self, module: str) -> Iterator[int]:
        """Yield the numbers that may be the block's, the first of which is."""
        words = module.split(".")
        for place, word in enumerate(words[:-1]):
            if place and word.isascii() and word.isdigit():
                before = ".".join(words[:place])
                if not self._patterns or any(each.matches(before) for each in self._patterns):
                    yield int(word[:18])


def _ends(module: str) -> Iterator[str]:
    """Yield a name, and what is left of it without its first words."""
    while module:
        yield module
        module = module.partition(".")[2]


def _at_end(pattern: str, key: str) -> NameRegex:
    """Return a regex for the last words of a name."""
    origin = f"{ORIGIN}: {key}"
    if not pattern:
        raise UnsupportedFormatError(f"{origin} has an empty name")
    if pattern.startswith("^"):
        return NameRegex(f"(?:{pattern[1:]})$", origin)
    return NameRegex(rf"(?:.*\.)?(?:{pattern})$", origin)


def _refuse_many(patterns: Iterable[str], key: str) -> None:
    """Refuse lists that no adapter needs."""
    num = len(list(patterns))
    if num > MAX_PATTERNS:
        raise _too_many(key, "names", num, MAX_PATTERNS)


def _too_many(key: str, what: str, num: int, most: int) -> UnsupportedFormatError:
    return UnsupportedFormatError(
        f"{ORIGIN}: {quote(key)} has {num:,} {what}; at most {most:,} are read"
    )
