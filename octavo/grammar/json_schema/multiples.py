"""The numbers that are no multiples of another, so far as alternatives can list them."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from octavo.grammar.json_schema.joining import any_of
from octavo.grammar.json_schema.keywords import TYPES
from octavo.grammar.json_schema.scalars import MAX_DIGITS
from octavo.grammar.json_schema.values import MAX_NUMBER

NUM_GAPS = 64  # between multiples, in which other numbers are written
Resolve = Callable[[Any], Any]


def between_multiples(core: Any, other: Any, resolve: Resolve) -> Any:
    """Return numbers of a core that are no multiples of what another one's are.

    Whole numbers are multiples of one. They are written between one multiple and the next, so that
    not all can be. None is returned if the other core holds other numbers too.
    """
    core, other = resolve(core), resolve(other)
    if not isinstance(core, dict) or not isinstance(other, dict):
        return None
    step, own = _step(other), _step(core)
    if step is None or not {"number", "integer"} & _types(core):
        return None
    if own is not None and own % step == 0:
        return None  # each of its numbers is a multiple
    lowest = [_exact(core[name]) for name in ("minimum", "exclusiveMinimum") if name in core]
    highest = [_exact(core[name]) for name in ("maximum", "exclusiveMaximum") if name in core]
    least, most = max(lowest, default=None), min(highest, default=None)
    if least is None:
        least = -step * NUM_GAPS / 2 if most is None else most - step * NUM_GAPS
    first = math.floor(least / step)
    last = first + NUM_GAPS
    if most is not None:
        last = min(math.ceil(most / step), last)
    kind = "number" if own is None or own % 1 else "integer"
    return any_of(
        {
            "type": kind,
            "exclusiveMinimum": _number(index * step),
            "exclusiveMaximum": _number((index + 1) * step),
        }
        for index in range(first, last)
        if max(-index, index + 1) * step <= MAX_NUMBER
    )


def _types(core: dict[str, Any]) -> set[str]:
    listed = core.get("type", TYPES)
    return {listed} if isinstance(listed, str) else set(listed)


def _step(core: dict[str, Any]) -> Decimal | None:
    """Return what all numbers of a core are multiples of, if it says so."""
    steps = [] if "number" in _types(core) else [Decimal(1)]
    if "multipleOf" in core:
        steps.append(_exact(core["multipleOf"]))
    step = max(steps, default=None)
    if step is None or step.normalize().as_tuple().exponent < -MAX_DIGITS:  # type: ignore[operator]
        return None
    return step


def _exact(value: float) -> Decimal:
    return Decimal(repr(value))


def _number(value: Decimal) -> float:
    return int(value) if value == int(value) else float(value)
