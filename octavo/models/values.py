"""Typed and bounded access to the values of a JSON object, with errors that name the key."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

from octavo.loader.errors import CheckpointError

# Far above the sizes of any real model; larger numbers mean a damaged or hostile config.
MAX_SIZE = 1 << 31


class ConfigurationError(CheckpointError):
    """A config.json that contradicts itself or needs something that is not supported."""


class Values:
    """The values of one config.json, or of an object inside it."""

    def __init__(self, values: Mapping[str, Any], max_len: int | None = None) -> None:
        self.values = values
        # The longest sequence that will be run; None: the model's own limit.
        self._max_len = max_len

    def part(self, key: str) -> Self:
        """Return a nested object, such as text_config."""
        value = self.values.get(key)
        if not isinstance(value, Mapping):
            raise ConfigurationError(f"config: {key} must be an object, is {value!r}")
        return type(self)(value, self._max_len)

    def over(self, defaults: Mapping[str, Any]) -> Self:
        """Return the same values, with defaults for keys that are absent or null."""
        given = {key: value for key, value in self.values.items() if value is not None}
        return type(self)({**defaults, **given}, self._max_len)

    def has(self, key: str) -> bool:
        """Return whether the key is present and not null."""
        return self.values.get(key) is not None

    def integer(self, key: str, default: int | None = None) -> int:
        """Read a size or a count: a whole number that is not negative."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MAX_SIZE:
            raise ConfigurationError(f"config: {key} must be a whole number ≥ 0, is {value!r}")
        return value

    def positive(self, key: str, default: int | None = None) -> int:
        """Read a size that must not be zero."""
        value = self.integer(key, default)
        if value == 0:
            raise ConfigurationError(f"config: {key} must be above 0")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value: Any = self._get(key, default)
        if not _is_finite(value):
            raise ConfigurationError(f"config: {key} must be a finite number, is {value!r}")
        return float(value)

    def boolean(self, key: str, default: bool | None = None) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise ConfigurationError(f"config: {key} must be true or false, is {value!r}")
        return value

    def string(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise ConfigurationError(f"config: {key} must be a string, is {value!r}")
        return value

    def strings(self, key: str) -> tuple[str, ...] | None:
        """Read a list of strings; return None if the key is absent."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ConfigurationError(f"config: {key} must be a list of strings, is {value!r}")
        return tuple(value)

    def numbers(self, key: str) -> tuple[float, ...]:
        """Read a list of finite numbers."""
        value = self.values.get(key)
        if not isinstance(value, list) or not all(map(_is_finite, value)):
            raise ConfigurationError(f"config: {key} must be a list of numbers, is {value!r}")
        return tuple(map(float, value))

    def above(self, key: str, least: float, default: float | None = None) -> float:
        """Read a number that must be above a bound."""
        value = self.number(key, default)
        if value <= least:
            raise ConfigurationError(f"config: {key} must be above {least:g}, is {value:g}")
        return value

    def optional_number(self, key: str) -> float | None:
        """Read a finite number; return None if the key is absent or null."""
        return self.number(key) if self.has(key) else None

    def _get(self, key: str, default: object) -> object:
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise ConfigurationError(f"config: {key} is missing")
            return default
        return value


def _is_finite(value: object) -> bool:
    """Return whether a value is a number that fits a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
