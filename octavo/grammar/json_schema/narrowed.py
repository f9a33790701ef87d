"""The mark of a core that allows less than the part of the schema that it stands for.

Nothing may be concluded from what such a core does not allow: its opposite would allow too much,
and what it excludes the schema may not.
"""

from __future__ import annotations

from typing import Any

_MARK = "x-narrowed"
# In a core of strings: a regex that is found in each string that any reader of the schema allows.
WIDENED = "x-widened"
# In a core that was written as an opposite: what it is the opposite of.
_OPPOSITE = "x-opposite"
_MARKS = frozenset({_MARK, WIDENED, _OPPOSITE})


def narrowed(core: Any, opposite: Any = None) -> Any:
    """Return a core with the mark, and with what it is the opposite of, if it is one."""
    if not isinstance(core, dict):
        return core
    return {**core, _MARK: True} | ({} if opposite is None else {_OPPOSITE: opposite})


def opposite_of_narrowed(core: dict[str, Any]) -> Any:
    """Return what a core with the mark is the opposite of; None if nothing is known."""
    return core.get(_OPPOSITE)


def is_narrowed(core: Any) -> bool:
    """Return whether a core has the mark."""
    return isinstance(core, dict) and _MARK in core


def has_narrowed(core: Any) -> bool:
    """Return whether a core, or one that it consists of, has the mark."""
    if isinstance(core, list):
        return any(map(has_narrowed, core))
    if not isinstance(core, dict):
        return False
    return _MARK in core or any(
        has_narrowed(value) for name, value in core.items() if name not in ("const", "enum")
    )


def without_marks(core: Any) -> Any:
    """Return a core without the marks in it; constants, which may look like them, are kept."""
    if not isinstance(core, dict):
        return core
    return {name: _without(name, value) for name, value in core.items() if name not in _MARKS}


def _without(name: str, value: Any) -> Any:
    if name in ("const", "enum"):
        return value
    if isinstance(value, list):
        return [without_marks(each) for each in value]
    if name in ("properties", "patternProperties", "$defs") and isinstance(value, dict):
        return {key: without_marks(each) for key, each in value.items()}
    return without_marks(value)
