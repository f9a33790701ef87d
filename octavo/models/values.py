"""Reads values out of a JSON object: typed, bounded, with errors that say what is wrong where."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

from octavo.loader.errors import CheckpointError

# No real model comes near; a config beyond it is damaged or hostile.
MAX_SIZE = 1 << 31


class ConfigurationError(CheckpointError):
    """A config.json that contradicts itself, or asks for what is not supported."""


class Values:
    """The values of one config.json (or of one part of it)."""

    def __init__(self, values: Mapping[str, Any], max_len: int | None = None) -> None:
        self.values = values
        # The longest sequence that will be run; None: as long as the model can.
        self._max_len = max_len

    def part(self, key: str) -> Self:
        """A nested object, such as text_config."""
        value = self.values.get(key)
        if not isinstance(value, Mapping):
            raise ConfigurationError(f"config: {key} must be an object, is {value!r}")
        return type(self)(value, self._max_len)

    def over(self, defaults: Mapping[str, Any]) -> Self:
        """The same, with a value for each key that is not there or null."""
        said = {key: value for key, value in self.values.items() if value is not None}
        return type(self)({**defaults, **said}, self._max_len)

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return self.values.get(key) is not None

    def integer(self, key: str, default: int | None = None) -> int:
        """A size or a count: a whole number, not negative."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MAX_SIZE:
            raise ConfigurationError(f"config: {key} must be a whole number ≥ 0, is {value!r}")
        return value

    def positive(self, key: str, default: int | None = None) -> int:
        """A size that cannot be zero."""
        value = self.integer(key, default)
        if value == 0:
            raise ConfigurationError(f"config: {key} must be above 0")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number."""
        value: Any = self._get(key, default)
        if not _is_finite(value):
            raise ConfigurationError(f"config: {key} must be a finite number, is {value!r}")
        return float(value)

    def boolean(self, key: str, default: bool | None = None) -> bool:
        """True or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise ConfigurationError(f"config: {key} must be true or false, is {value!r}")
        return value

    def string(self, key: str, default: str | None = None) -> str:
        """A text."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise ConfigurationError(f"config: {key} must be a string, is {value!r}")
        return value

    def strings(self, key: str) -> tuple[str, ...] | None:
        """A list of texts; None if the key is not there."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ConfigurationError(f"config: {key} must be a list of strings, is {value!r}")
        return tuple(value)

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of finite numbers."""
        value = self.values.get(key)
        if not isinstance(value, list) or not all(map(_is_finite, value)):
            raise ConfigurationError(f"config: {key} must be a list of numbers, is {value!r}")
        return tuple(map(float, value))

    def above(self, key: str, least: float, default: float | None = None) -> float:
        """A number beyond a bound."""
        value = self.number(key, default)
        if value <= least:
            raise ConfigurationError(f"config: {key} must be above {least:g}, is {value:g}")
        return value

    def optional_number(self, key: str) -> float | None:
        """A finite number, or None if the key is not there or null."""
        return self.number(key) if self.has(key) else None

    def _get(self, key: str, default: object) -> object:
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise ConfigurationError(f"config: {key} is missing")
            return default
        return value


def _is_finite(value: object) -> bool:
    """Whether it is a number that fits a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
