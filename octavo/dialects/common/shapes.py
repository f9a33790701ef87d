"""From the fields that describe the shape of an answer to the neutral one, and back for errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from octavo.core.structured_outputs import ShapeError, StructuredOutputsParams
from octavo.dialects.common.schema.shapes import ResponseFormat, ShapeFields, StructuredOutputs
from octavo.serving.schema.near_names import not_among
from octavo.transport.errors import invalid

NEUTRAL = "structured_outputs"
_FORMATS = ("text", "json_object", "json_schema", "structural_tag")
_OF_TGI = ("json", "regex")  # beside which the shape is in `value`
# The fields that hold a shape themselves, with the neutral name of what they hold.
_PLAIN = {
    "guided_json": "json",
    "guided_json_object": "json_object",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "grammar": "grammar",
    "json_schema": "json",
    "regex": "regex",
    "ebnf": "grammar",
    "structural_tag": "structural_tag",
}


@dataclass(frozen=True, slots=True)
class _Asked:
    """One way in which a request describes a shape, and where each part of it stands."""

    field: str  # of the request
    values: Mapping[str, Any]  # of StructuredOutputsParams
    places: Mapping[str, str]  # of those values, by their neutral names


def shape_of(request: ShapeFields) -> StructuredOutputsParams | None:
    """Return the shape that a request asks for; raise ApiError with the field that is wrong."""
    asked = list(_asked(request))
    if request.guided_whitespace_pattern and not (asked and asked[0].field == "guided_json"):
        name = "guided_whitespace_pattern"
        raise invalid(f"{name} describes the whitespace of guided_json, which is missing", name)
    if not asked:
        return None
    if len(asked) > 1:
        names = " and ".join(each.field for each in asked)
        raise invalid(
            f"{names} describe a shape each, and an answer has one; send one of them",
            asked[1].field,
        )
    (one,) = asked
    values = dict(one.values)
    try:
        msgspec.msgpack.encode(values)  # the form in which it is stored and sent
        return StructuredOutputsParams(**{name: _text(value) for name, value in values.items()})
    except OverflowError:
        name = one.field
        raise invalid(f"{name}: a number has more than 64 bits; send it as text", name) from None
    except ShapeError as error:
        param = f"{one.places.get(error.field, one.field)}{error.path}"
        raise invalid(f"{param}: {error.what}", param) from None


def shape_at(field: str, path: str = "", **values: Any) -> StructuredOutputsParams:
    """Return the shape that is at a path in a field; raise ApiError, with its place, if wrong."""
    place = f"{field}{path}"
    try:
        msgspec.msgpack.encode(values)  # the form in which it is stored and sent
        return StructuredOutputsParams(**values)
    except OverflowError:
        raise invalid(f"{place}: a number has more than 64 bits", field) from None
    except ShapeError as error:
        raise invalid(f"{place}{error.path}: {error.what}", f"{place}{error.path}") from None


def own_places(request: ShapeFields) -> Mapping[str, str]:
    """Return the places in the request where its shape is described, by their neutral names."""
    asked = next(_asked(request), None)
    if asked is None:  # the grammar is of calls alone
        return {}
    names = (each.name for each in msgspec.structs.fields(StructuredOutputs))
    places = {f"{NEUTRAL}.{name}": asked.places.get(name, asked.field) for name in names}
    return {NEUTRAL: asked.field, **places}


def _text(value: Any) -> Any:
    """Return an object as JSON text, which is how shapes are stored."""
    return msgspec.json.encode(value).decode() if isinstance(value, dict) else value


def _asked(request: ShapeFields) -> Iterator[_Asked]:
    """Yield each way in which a request describes a shape."""
    for field, neutral in _PLAIN.items():
        value = getattr(request, field)
        if value is None or value is False or value in ("", []):
            continue
        values = {neutral: value}
        if field == "guided_json" and request.guided_whitespace_pattern:
            values["whitespace_pattern"] = request.guided_whitespace_pattern
        places = {neutral: field, "whitespace_pattern": "guided_whitespace_pattern"}
        yield _Asked(field, values, places)
    if request.structured_outputs is not None:
        yield from _of_structured_outputs(request.structured_outputs)
    if request.response_format is not None:
        yield from _of_response_format(request.response_format)


def _of_structured_outputs(given: StructuredOutputs) -> Iterator[_Asked]:
    field = "structured_outputs"
    values = {}
    for each in msgspec.structs.fields(StructuredOutputs):
        value = getattr(given, each.name)
        if each.name != "disable_fallback" and value != each.default:
            values[each.name] = value
    yield _Asked(field, values, {name: f"{field}.{name}" for name in values})


def _of_response_format(given: ResponseFormat) -> Iterator[_Asked]:
    field = "response_format"
    of_type: Mapping[str, Callable[[ResponseFormat], _Asked]] = {
        "json_object": _of_json_object,
        "json_schema": _of_json_schema,
        "structural_tag": _of_structural_tag,
        "json": _of_json_object,
        "regex": _of_regex,
    }
    is_of_tgi = given.type in _OF_TGI and given.value is not None
    if given.type not in _FORMATS and not is_of_tgi:
        raise not_among(f"{field}.type", _FORMATS, given.type)
    if given.type in of_type:
        yield of_type[given.type](given)


def _of_json_object(given: ResponseFormat) -> _Asked:
    field = "response_format"
    if given.body is not None:
        return _Asked(field, {"json": given.body}, {"json": f"{field}.schema"})
    if given.value is not None:
        return _Asked(field, {"json": given.value}, {"json": f"{field}.value"})
    return _Asked(field, {"json_object": True}, {})


def _of_regex(given: ResponseFormat) -> _Asked:
    field = "response_format.value"
    if not isinstance(given.value, str):
        raise invalid(f"{field} must be the regular expression, as a string", field)
    return _Asked("response_format", {"regex": given.value}, {"regex": field})


def _of_json_schema(given: ResponseFormat) -> _Asked:
    field = "response_format"
    described = given.json_schema
    if described is None or described.body is None:
        missing = "json_schema" if described is None else "json_schema.schema"
        hint = "" if given.body is None else "; schema belongs under json_schema"
        raise invalid(f"{field}.{missing} is missing{hint}", f"{field}.{missing}")
    values = {"json": described.body, "strict": described.strict is not False}
    return _Asked(field, values, {"json": f"{field}.json_schema.schema"})


def _of_structural_tag(given: ResponseFormat) -> _Asked:
    field = "response_format"
    tags = {
        name: getattr(given, name)
        for name in ("structures", "triggers", "format")
        if getattr(given, name) is not None
    }
    return _Asked(field, {"structural_tag": tags}, {"structural_tag": field})
