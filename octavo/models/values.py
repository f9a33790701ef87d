"""Typed and bounded access to the values of a JSON object, with errors that name the key."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

from octavo.loader.errors import CheckpointError, quote
from octavo.models.bounds import LEAST, MAX_SIZE, MOST, RANGES

_MOST_ITEMS = 20
_LONGEST_TEXT = 120


class ConfigurationError(CheckpointError):
    """A config.json that contradicts itself or needs something that is not supported."""


class Values:
    """The values of one config.json, or of an object inside it.

    `stored_names` has the names under which another kind of file states the same values.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        max_len: int | None = None,
        stored_names: Mapping[str, str] | None = None,
    ) -> None:
        self.values = values
        # The longest sequence that will be run; None: the model's own limit.
        self._max_len = max_len
        self._stored_names = stored_names

    def part(self, key: str) -> Self:
        """Return a nested object, such as text_config."""
        value = self.values.get(key)
        if not isinstance(value, Mapping):
            raise self._wrong(key, "an object", value)
        return type(self)(value, self._max_len, self._stored_names)

    def over(self, defaults: Mapping[str, Any]) -> Self:
        """Return the same values, with defaults for keys that are absent or null."""
        given = {key: value for key, value in self.values.items() if value is not None}
        return type(self)({**defaults, **given}, self._max_len, self._stored_names)

    def has(self, key: str) -> bool:
        """Return whether the key is present and not null."""
        return self.values.get(key) is not None

    def integer(self, key: str, default: int | None = None) -> int:
        """Read a size or a count: a whole number that is not negative."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self._wrong(key, "a whole number ≥ 0", value)
        most = MOST.get(key, MAX_SIZE - 1)
        if value > most:
            raise self._wrong(key, f"at most {most:,}", value)
        return value

    def positive(self, key: str, default: int | None = None) -> int:
        """Read a size that must not be zero."""
        value, least = self.integer(key, default), LEAST.get(key, 1)
        if value < least:
            raise self._wrong(key, "above 0" if least == 1 else f"at least {least}", value)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value: Any = self._get(key, default)
        if not _is_finite(value):
            raise self._wrong(key, "a finite number", value)
        self._check_range(key, value)
        return float(value)

    def _check_range(self, key: str, value: float) -> None:
        least, most = RANGES.get(key, (-math.inf, math.inf))
        if not least <= value <= most:
            raise ConfigurationError(
                f"{self.name_of(key)} must be from {least:g} to {most:g}, is {value:g}"
            )

    def boolean(self, key: str, default: bool | None = None) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false", value)
        return value

    def string(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, "a string", value)
        return value

    def strings(self, key: str) -> tuple[str, ...] | None:
        """Read a list of strings; return None if the key is absent."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(key, "a list of strings", value)
        return tuple(value)

    def numbers(self, key: str) -> tuple[float, ...]:
        """Read a list of finite numbers."""
        value = self.values.get(key)
        if not isinstance(value, list) or not all(map(_is_finite, value)):
            raise self._wrong(key, "a list of numbers", value)
        for item in value:
            self._check_range(key, item)
        return tuple(map(float, value))

    def above(self, key: str, least: float, default: float | None = None) -> float:
        """Read a number that must be above a bound."""
        value = self.number(key, default)
        if value <= least:
            raise ConfigurationError(f"{self.name_of(key)} must be above {least:g}, is {value:g}")
        return value

    def optional_number(self, key: str) -> float | None:
        """Read a finite number; return None if the key is absent or null."""
        return self.number(key) if self.has(key) else None

    def _get(self, key: str, default: object) -> object:
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise ConfigurationError(f"{self.name_of(key)} is missing")
            return default
        return value

    def name_of(self, key: str) -> str:
        """Name a key for a message as the user finds it in the file."""
        if self._stored_names is None:
            return f"config: {key}"
        return f"metadata {quote(self._stored_names.get(key, key))}"

    def _wrong(self, key: str, wanted: str, value: object) -> ConfigurationError:
        return ConfigurationError(f"{self.name_of(key)} must be {wanted}, is {shown(value)}")


def shown(value: object) -> str:
    """Return a value of a file for a message: cut to a readable length, on one line."""
    if isinstance(value, str):
        return quote(value)
    # Only the beginning of a long list or object is written out.
    if isinstance(value, list) and len(value) > _MOST_ITEMS:
        return f"a list of {len(value):,}"
    if isinstance(value, Mapping) and len(value) > _MOST_ITEMS:
        return f"an object of {len(value):,} keys"
    text = f"{value:,}" if type(value) is int else repr(value)
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"


def _is_finite(value: object) -> bool:
    """Return whether a value is a number that fits a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
