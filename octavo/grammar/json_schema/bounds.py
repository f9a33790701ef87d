"""Exclusive bounds of numbers, written so that the grammar engine keeps to them.

The engine allows the whole number n beside an exclusive bound n, if the other bound is a fraction
between n and the next whole number away from zero. Such a bound is written as an inclusive one, the
least number beyond n that other bounds can be.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from octavo.grammar.json_schema.scalars import MAX_DIGITS


def keep_exclusive(core: Any) -> None:
    """Rewrite the exclusive bounds in a core that the engine would not keep to.

    The engine merges the bounds of schemas that hold together, which may be anywhere in the core.
    """
    schemas = list(_schemas(core))
    below = {math.floor(each) for each in _fractions(schemas, "maximum", "exclusiveMaximum")}
    above = {math.ceil(each) for each in _fractions(schemas, "minimum", "exclusiveMinimum")}
    for schema in schemas:
        least = schema.get("exclusiveMinimum")
        if least is not None and least >= 0 and least in below:
            del schema["exclusiveMinimum"]
            schema["minimum"] = max(_beyond(least), schema.get("minimum", 0))
        most = schema.get("exclusiveMaximum")
        if most is not None and most <= 0 and most in above:
            del schema["exclusiveMaximum"]
            schema["maximum"] = min(-_beyond(-most), schema.get("maximum", 0))


def _schemas(core: Any) -> Iterator[dict[str, Any]]:
    """Yield a core and those within it that are objects."""
    if not isinstance(core, dict):
        return
    yield core
    for name, value in core.items():
        if name in ("const", "enum"):
            continue
        if isinstance(value, list):
            inner = value
        elif name in ("properties", "patternProperties", "$defs"):
            inner = list(value.values())
        else:
            inner = [value]
        for each in inner:
            yield from _schemas(each)


def _fractions(schemas: list[dict[str, Any]], *names: str) -> Iterator[float]:
    for schema in schemas:
        yield from (schema[name] for name in names if schema.get(name, 0) % 1)


def _beyond(least: int) -> float:
    """Return the least bound above a whole number."""
    return max(float(least + Decimal(1).scaleb(-MAX_DIGITS)), math.nextafter(least, math.inf))
