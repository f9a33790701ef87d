"""The keywords for constants, numbers and strings."""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import TYPE_CHECKING, Any

from octavo.grammar.json_schema.formats import ENCODINGS, KNOWN, NOTES, NUMBERS, PATTERNS, WIDEST
from octavo.grammar.json_schema.narrowed import WIDENED, narrowed
from octavo.grammar.json_schema.references import Place, step
from octavo.grammar.json_schema.values import MAX_NUMBER
from octavo.grammar.regexes import RegexError, all_translated, translated, widened

if TYPE_CHECKING:
    from octavo.grammar.json_schema.simplify import Simplifier

MAX_DIGITS = 12  # behind the point, of a bound
MAX_MULTIPLE_DIGITS = 9  # of multipleOf
_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
_NUMBER_TEXT = r"^-?(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,17})?$"
_INTEGER_TEXT = r"^(?:0|-?[1-9][0-9]{0,17})$"


def simplify(
    work: Simplifier,
    place: Place,
    given: dict[str, Any],
    types: frozenset[str],
    core: dict[str, Any],
    more: list[Any],
) -> None:
    """Add what these keywords mean to a core."""
    if "type" in given:
        core["type"] = given["type"]
    for name in ("const", "enum"):
        if name in given:
            core[name] = _constant(work, place.path + step(name), given[name])
    _add_numbers(work, place, given, core, more)
    for name in ("minLength", "maxLength"):
        if name in given:
            core[name] = int(given[name])
    if "pattern" in given:
        try:
            _add_pattern(given["pattern"], core, more)
        except RegexError as error:
            work.leave(place, "pattern", str(error))
    if "contentEncoding" in given:
        _add_encoding(work, place, given["contentEncoding"], more)
    if "format" in given:
        _add_format(work, place, given["format"], types, core, more)


def _add_pattern(regex: str, core: dict[str, Any], more: list[Any]) -> None:
    """Require strings to match a regex; raise RegexError if that cannot be enforced."""
    parts, widest = all_translated(regex, is_whole=False), widened(regex)
    if parts == [widest]:
        core["pattern"] = widest
    elif len(parts) == 1:
        more.append({"pattern": parts[0], WIDENED: widest})
    else:
        more.append({"allOf": [{"pattern": part} for part in parts], WIDENED: widest})


def _constant(work: Simplifier, path: str, value: Any) -> Any:
    """Return a constant with its numbers checked."""
    if isinstance(value, list):
        return [_constant(work, path + step(index), each) for index, each in enumerate(value)]
    if isinstance(value, dict):
        return {name: _constant(work, path + step(name), each) for name, each in value.items()}
    if isinstance(value, int | float) and not isinstance(value, bool):
        if abs(value) > MAX_NUMBER:
            raise work.error(path, f"{value!r} is beyond ±{MAX_NUMBER}; write it as a string")
        if value == int(value):
            return int(value)
        if -Decimal(repr(value)).as_tuple().exponent > MAX_DIGITS:  # type: ignore[operator]
            raise work.error(
                path, f"{value!r} has more than {MAX_DIGITS} digits behind the point; round it"
            )
    return value


def _add_numbers(
    work: Simplifier, place: Place, given: dict[str, Any], core: dict[str, Any], more: list[Any]
) -> None:
    bounds = dict(given)
    for name, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(given.get(exclusive), bool):  # as in draft 4
            del bounds[exclusive]
            if given[exclusive] and name in bounds:
                bounds[exclusive] = bounds.pop(name)
    for name in _BOUNDS:
        if name in bounds:
            bound = _bound(work, place, name, bounds[name])
            if bound == bounds[name]:
                core[name] = bound
            else:
                more.append(narrowed({name: bound}))
    if "multipleOf" in given:
        multiple = Decimal(repr(given["multipleOf"])).normalize()
        if multiple <= 0:
            raise work.error(place.path + step("multipleOf"), "it must be above 0")
        if len(multiple.as_tuple().digits) > MAX_MULTIPLE_DIGITS or abs(multiple.adjusted()) > 15:
            work.leave(place, "multipleOf", f"{given['multipleOf']!r} has too many digits")
        else:
            core["multipleOf"] = given["multipleOf"]


def _bound(work: Simplifier, place: Place, name: str, value: Any) -> int | float:
    """Return a bound as near to the given one as the engine can hold, and never looser."""
    is_lower = name.endswith("inimum")
    if abs(value) > MAX_NUMBER:
        if (value > 0) == is_lower:
            raise work.error(
                place.path + step(name),
                f"{value!r} leaves only numbers beyond ±{MAX_NUMBER}, which programs round",
            )
        return -MAX_NUMBER if is_lower else MAX_NUMBER
    exact = Decimal(repr(value))
    rounding = ROUND_CEILING if is_lower else ROUND_FLOOR
    rounded = exact.quantize(Decimal(1).scaleb(-MAX_DIGITS), rounding) if exact % 1 else exact
    return int(rounded) if rounded == int(rounded) else float(rounded)


def _add_encoding(work: Simplifier, place: Place, name: str, more: list[Any]) -> None:
    """Add that a string is encoded in this way."""
    regex = ENCODINGS.get(name.lower())
    if regex is None:
        known = ", ".join(ENCODINGS)
        work.leave(place, "contentEncoding", f"{name[:64]!r} cannot be enforced; known are {known}")
    elif regex:
        # Readers may ignore it, so that its opposite allows no string.
        more.append({"pattern": translated(regex, is_whole=False), WIDENED: ""})


def _add_format(
    work: Simplifier,
    place: Place,
    name: str,
    types: frozenset[str],
    core: dict[str, Any],
    more: list[Any],
) -> None:
    if "integer" in types and "number" not in types and (bounds := NUMBERS.get(name)):
        more.append(narrowed({"minimum": bounds[0], "maximum": bounds[1]}))
    if "string" not in types or name in NOTES:
        return
    name = KNOWN.get(name, name)
    if name in KNOWN:
        core["format"] = name
    elif name in PATTERNS:
        regex = translated(PATTERNS[name], is_whole=False)
        more.append({"pattern": regex, WIDENED: WIDEST.get(name, "")})
    elif name in NUMBERS:
        if types == {"string"}:
            text = _NUMBER_TEXT if NUMBERS[name] is None else _INTEGER_TEXT
            more.append({"pattern": translated(text, is_whole=False), WIDENED: ""})
    else:
        work.leave(place, "format", f"the format {name[:64]!r} cannot be enforced")
