"""The simplification of a schema to what the grammar engine enforces as the standard says.

The result is a schema in few keywords ("core"). Every text that has the core's shape is valid
under the schema; the reverse holds as far as the core can express it. What cannot be expressed is
refused or, if the request asks for that, left out with a warning.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from octavo.core.structured_outputs import ShapeError
from octavo.grammar.json_schema import arrays, bounds, combinations, objects, scalars
from octavo.grammar.json_schema.keywords import ALL, EXTENSIONS, KEYWORDS
from octavo.grammar.json_schema.narrowed import without_marks
from octavo.grammar.json_schema.references import DanglingError, Place, References, step
from octavo.grammar.json_schema.values import CHECKS, type_of
from octavo.nearest import nearest

MAX_DEPTH = 64  # of a schema
MAX_SCHEMAS = 20_000  # in one document, each as often as it is used
MAX_WARNINGS = 64
LeftOut = tuple[tuple[str | int, ...], str, str]  # keys of a place, a keyword, and why


class Simplified(NamedTuple):
    """A schema in the core's keywords, and what of the original is not enforced."""

    core: Any
    warnings: list[tuple[str, str]]  # the place, and what is not done


def simplified(
    document: Any,
    field: str,
    *,
    path: str = "",
    strict: bool = True,
    closes: bool = False,
    left_out: tuple[LeftOut, ...] = (),
) -> Simplified:
    """Return the core of a schema; raise ShapeError with the field and the path that are wrong.

    With `closes`, objects have no properties beside those listed. Unless `strict`, what cannot be
    enforced is left out, and so is `left_out`.
    """
    work = Simplifier(document, field, path, strict=strict, closes=closes, left_out=left_out)
    try:
        return Simplified(work.whole(), work.warnings)
    except RecursionError:
        raise work.error("", "its references lead too deep") from None


class Simplifier:
    """The simplification of one document."""

    def __init__(
        self,
        document: Any,
        field: str,
        path: str,
        *,
        strict: bool,
        closes: bool,
        left_out: tuple[LeftOut, ...] = (),
    ) -> None:
        self._left_out = {(keys, name): why for keys, name, why in left_out}
        self.closes = closes
        self.warnings: list[tuple[str, str]] = []
        self._strict = strict
        self._field = field
        self._path = path
        self._references = References(document)
        self._names: dict[tuple[str | int, ...], str] = {}  # of definitions, by the original's keys
        self._places: dict[str, Place] = {}  # of the originals, by name
        self._definitions: dict[str, Any] = {}  # simplified, by name
        self._num_schemas = 0
        self._depth = 0

    @property
    def root(self) -> Place:
        """The place of the whole document."""
        return self._references.root

    def whole(self, place: Place | None = None) -> Any:
        """Return the core of the whole document, or of one place with all that it refers to."""
        core = self.schema(place or self.root)
        while waiting := self._places.keys() - self._definitions.keys():
            for name in sorted(waiting, key=int):
                self.definition(name)
        if self._definitions and isinstance(core, dict):
            core = {**core, "$defs": self._definitions}
        core = without_marks(core)
        bounds.keep_exclusive(core)
        return core

    def schema(self, place: Place) -> Any:
        """Return the core of the schema at a place."""
        if isinstance(place.schema, bool):
            return place.schema
        if not isinstance(place.schema, dict):
            raise self.error(place.path, "a schema is an object, true or false")
        self._num_schemas += 1
        self._depth += 1
        try:
            if self._depth > MAX_DEPTH:
                raise self.error(place.path, f"it is nested more than {MAX_DEPTH} deep")
            if self._num_schemas > MAX_SCHEMAS:
                raise self.error(place.path, f"the schema has more than {MAX_SCHEMAS} parts")
            return self._object(place)
        finally:
            self._depth -= 1

    def definition(self, name: str) -> Any:
        """Return the core that a reference stands for; None within itself."""
        if name not in self._definitions:
            self._definitions[name] = None
            depth, self._depth = self._depth, 0
            self._definitions[name] = self.schema(self._places[name])
            self._depth = depth
        return self._definitions[name]

    def resolved(self, core: Any) -> Any:
        """Return what a core that is only a reference stands for; None within itself."""
        for _ in range(MAX_DEPTH):
            if not isinstance(core, dict) or core.keys() != {"$ref"}:
                return core
            core = self.definition(core["$ref"].rpartition("/")[2])
        return None

    def error(self, path: str, what: str) -> ShapeError:
        """Return the error of a place in the document."""
        return ShapeError(what, self._field, self._path + path)

    def leave(self, place: Place, keyword: str, why: str, hint: str = "") -> None:
        """Leave a keyword out, with a warning; raise ShapeError if nothing may be left out."""
        error = self.error(place.path + step(keyword), why + hint)
        if self._strict:
            raise error
        if len(self.warnings) < MAX_WARNINGS:
            place_text = f"{error.field}{error.path}"
            warning = (place_text, f"{why}; it is left out{hint}")
            if warning not in self.warnings:
                self.warnings.append(warning)

    def _object(self, place: Place) -> Any:
        given = self._checked(place)
        types = _types(given)
        given = {
            name: value
            for name, value in given.items()
            if not (of := KEYWORDS[name].of)
            or of in types
            or (of == "number" and "integer" in types)
        }
        for name in given:
            if KEYWORDS[name].fate == "refused":
                self.leave(place, name, f"{name} cannot be enforced")
        core: dict[str, Any] = {}
        more: list[Any] = []  # cores that must hold as well
        for name in ("$ref", "$dynamicRef", "$recursiveRef"):
            if name in given:
                core_of_reference = {"$ref": self._reference(place, name)}
                more.append(core_of_reference)
        scalars.simplify(self, place, given, types, core, more)
        arrays.simplify(self, place, given, core, more)
        objects.simplify(self, place, given, core, more)
        combinations.simplify(self, place, given, core, more)
        objects.close_unevaluated(self, place, given, core, more)
        if not more:
            return core
        if not core and len(more) == 1:
            return more[0]
        return {**core, "allOf": more}

    def _checked(self, place: Place) -> dict[str, Any]:
        """Return the keywords that restrict something, with their values checked."""
        given = {}
        for name, value in place.schema.items():
            if self._left_out and (why := self._left_out.get((place.keys, name))) is not None:
                self.leave(place, name, why)
                continue
            keyword = KEYWORDS.get(name)
            if keyword is None:
                if not name.startswith(EXTENSIONS):
                    near = nearest(name, KEYWORDS)
                    hint = f"; did you mean {near[0]!r}?" if near else ""
                    self.leave(place, name, "the keyword is unknown", hint)
                continue
            is_right, expected = CHECKS[keyword.value]
            if not is_right(value):
                raise self.error(
                    place.path + step(name), f"{_short(value)} is not {expected}, which it must be"
                )
            if keyword.fate != "note":
                given[name] = value
        return given

    def _reference(self, place: Place, keyword: str) -> str:
        """Return the reference to the definition that a reference of the document becomes."""
        reference = place.schema[keyword]
        resolve = self._references.resolve
        if keyword != "$ref":
            resolve = self._references.resolve_dynamic
        try:
            target = resolve(reference, place.base)
        except (DanglingError, ValueError) as error:
            raise self.error(place.path + step(keyword), str(error)) from None
        name = self._names.get(target.keys)
        if name is None:
            name = self._names[target.keys] = str(len(self._names))
            self._places[name] = target
        return f"#/$defs/{name}"


def _types(given: dict[str, Any]) -> frozenset[str]:
    """Return the types that a value can have, as far as the schema itself says so."""
    types = ALL
    if "type" in given:
        listed = given["type"]
        types = frozenset([listed] if isinstance(listed, str) else listed)
        if "number" in types:
            types |= {"integer"}
    for values in ([given["const"]] if "const" in given else None, given.get("enum")):
        if values is not None:
            types &= {type_of(value) for value in values} | (
                {"number"} if any(type_of(value) == "integer" for value in values) else set()
            )
    return types


def _short(value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 64 else f"{text[:64]}…"
