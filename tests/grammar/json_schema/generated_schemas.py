"""Schemas that hypothesis generates: any of the common keywords together, and nested."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

NAMES = st.sampled_from(["a", "b", "name", "é", "x y"])
COUNTS = st.integers(0, 4)
NUMBERS = st.one_of(st.integers(-1000, 1000), st.decimals(-9, 9, places=2).map(float))
TYPES = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-99, 99), st.text(max_size=4))
PLAIN: dict[str, st.SearchStrategy[Any]] = {
    "type": st.one_of(TYPES, TYPES, st.lists(TYPES, min_size=1, max_size=3, unique=True)),
    "enum": st.lists(SCALARS, min_size=1, max_size=4),
    "const": SCALARS,
    "minLength": COUNTS,
    "maxLength": COUNTS,
    "minimum": NUMBERS,
    "exclusiveMaximum": NUMBERS,
    "minItems": COUNTS,
    "maxItems": COUNTS,
    "required": st.lists(NAMES, max_size=2),
    "title": st.text(max_size=5),
    "format": st.sampled_from(["date", "uuid", "email", "ipv4", "date-time"]),
    "pattern": st.sampled_from(["^a", "b$", "^[0-9]+$"]),
}


def _some(keywords: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    """Return schemas of at most four of these keywords."""
    chosen = st.lists(st.sampled_from(sorted(keywords)), max_size=4, unique=True)
    return chosen.flatmap(
        lambda names: st.fixed_dictionaries({name: keywords[name] for name in names})
    )


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    listed = st.lists(inner, min_size=1, max_size=2)
    return _some(
        PLAIN
        | {
            "items": inner,
            "prefixItems": listed,
            "properties": st.dictionaries(NAMES, inner, max_size=4),
            "additionalProperties": inner,
            "anyOf": listed,
            "allOf": listed,
            "oneOf": listed,
            "not": _some({"type": TYPES, "const": SCALARS}),
        }
    )


SCHEMAS = st.recursive(st.one_of(st.booleans(), _some(PLAIN)), _nested, max_leaves=8)


def generated_schemas(count: int, first: int = 0) -> list[Any]:
    """Return so many schemas; the same ones for the same number `first`."""
    made: list[Any] = []

    @seed(first)
    @settings(
        max_examples=count,
        database=None,
        phases=[Phase.generate],
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(SCHEMAS)
    def collect(schema: Any) -> None:
        made.append(schema)

    collect()
    return made[:count]
