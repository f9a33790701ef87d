"""The values of flags as users write them, by the words that stand for them in `--help`."""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from octavo.core.config import ConfigError

_SIZE = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>[kmgt]?)(?P<binary>i?)b?", re.IGNORECASE)
_UNITS = " kmgt"


def byte_count(text: str) -> int:
    """Parse `4GiB`, `500MB`, `1.5G` or a number of bytes. Without a B, units are binary."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a size: write bytes, or a number and a unit, as in 4GiB"
        )
    is_decimal = text.strip().lower().endswith("b") and not match["binary"]
    exponent = _UNITS.index(match["unit"].lower() or " ")
    return int(float(match["number"]) * (1000 if is_decimal else 1024) ** exponent)


def seconds(text: str) -> float:
    """Parse a finite, non-negative time."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, as in 2.5")
    return value


def token_count(text: str) -> int:
    """Parse `4096`, `32k` (thousands) or `32K` (multiples of 1024), as vLLM does."""
    units = {"k": 1000, "K": 1024, "m": 1000**2, "M": 1024**2}
    factor = units.get(text[-1:], 1)
    digits = text[:-1] if text[-1:] in units else text
    try:
        return round(float(digits) * factor) if factor > 1 else int(digits)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of tokens: write it as in 4096 or 32k"
        ) from None


def sequence_length(text: str) -> int | None:
    """Parse a number of tokens; `auto` and -1 are None, the maximum, as in vLLM."""
    return None if text in ("auto", "-1") else token_count(text)


def name_or_none(text: str) -> str | None:
    """Return a name; `none` is None, as in vLLM."""
    return None if text.lower() == "none" else text


def json_object(text: str) -> dict[str, Any]:
    """Return the object that a text holds."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"{text[:200]!r} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text[:200]!r} must be a JSON object")
    return value


def traced_parts(text: str) -> tuple[str, ...]:
    """Parse `model,worker` or `all`, as vLLM does."""
    parts = tuple(text.split(","))
    unknown = [part for part in parts if part not in ("model", "worker", "all")]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of model, worker and all")
    return parts


# The reader of a value, by its placeholder. A flag with another placeholder takes a text.
READERS: Mapping[str, Callable[[str], Any]] = {
    "SIZE": byte_count,
    "SECONDS": seconds,
    "TOKENS": token_count,
    "COUNT": int,
    "NUMBER": int,
    "SHARE": float,
    "PATH": Path,
    "FILE": Path,
    "DIR": Path,
}


def settings_of(given: object, name: str, example: str) -> Mapping[str, Any]:
    """Return the settings that a user gave for an option, as a mapping or as JSON of one."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{name}: it is not valid JSON: {error}") from None
    if not isinstance(given, Mapping):
        raise ConfigError(f"{name}: it is {str(given)[:100]!r}; it must be a mapping, {example}")
    return given
