"""The search for the keyword because of which a schema cannot be compiled.

The engine says of a schema that it is too large or too complex, or that no text has its shape, and
not where. So the parts of the schema are compiled by themselves, down to the smallest that fails,
and of its keywords those that usually cost most are left out, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from octavo.core.structured_outputs import ShapeError
from octavo.grammar.json_schema.narrowed import has_narrowed
from octavo.grammar.json_schema.references import Place, places_within, step
from octavo.grammar.json_schema.simplify import LeftOut, Simplified, Simplifier, simplified
from octavo.grammar.protocol import GrammarError

MAX_TRIALS = 32  # of one schema
MAX_LEFT_OUT = 8  # keywords of one schema
# The keywords that may cost much or contradict others; those that usually do come first.
_SUSPECTS = (
    *("allOf", "oneOf", "anyOf", "if", "not", "dependentSchemas", "dependencies", "contains"),
    *("uniqueItems", "minProperties", "maxProperties", "patternProperties", "propertyNames"),
    *("pattern", "format", "contentEncoding", "minLength", "maxLength", "minItems", "maxItems"),
    *("multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "const", "enum"),
    *("unevaluatedProperties", "additionalProperties", "required", "prefixItems", "items"),
    *("$ref", "$dynamicRef", "properties", "type"),
)
Try = Callable[[Any], None]  # compile a core, or raise GrammarError


def compilable(
    document: Any, field: str, try_core: Try, *, path: str, strict: bool, closes: bool
) -> Simplified:
    """Return the core of a schema that compiles; raise ShapeError for the keyword at fault.

    Unless `strict`, keywords that make the schema too large or too complex are left out.
    """
    left_out: list[LeftOut] = []
    while True:
        made = simplified(
            document, field, path=path, strict=strict, closes=closes, left_out=tuple(left_out)
        )
        try:
            try_core(made.core)
        except GrammarError as error:
            search = _Search(document, field, path, closes, try_core, tuple(left_out))
            place, keyword = search.find(error)
            is_empty, what = error.is_empty, str(error)
            if is_empty and keyword and search.is_narrowed(place):
                is_empty = False
                what = (
                    f"only a part of what {keyword} allows is written, and none of it is left here"
                )
            if strict or is_empty or not keyword or len(left_out) == MAX_LEFT_OUT:
                at = place.path + (step(keyword) if keyword else "")
                raise ShapeError(what, field, path + at) from None
            left_out.append((place.keys, keyword, what))
        else:
            return made


class _Search:
    """The trials of the parts of one schema."""

    def __init__(
        self,
        document: Any,
        field: str,
        path: str,
        closes: bool,
        try_core: Try,
        left_out: tuple[LeftOut, ...],
    ) -> None:
        self._work = (document, field, path)
        self._closes = closes
        self._try_core = try_core
        self._left_out = left_out
        self._num_trials = 0

    def find(self, error: GrammarError) -> tuple[Place, str]:
        """Return the place and the keyword at fault; the keyword is empty if it is not found."""
        place = Simplifier(*self._work, strict=False, closes=self._closes).root
        while inner := next(self._failing(place, error), None):
            place = inner
        suspects = [name for name in _SUSPECTS if name in place.schema]
        for name in suspects:
            if not self._fails(place, error, without=name):
                return place, name
        return place, suspects[0] if suspects else ""

    def is_narrowed(self, place: Place) -> bool:
        """Return whether the core of a part allows less than the part, so that more may be."""
        work = Simplifier(*self._work, strict=False, closes=self._closes, left_out=self._left_out)
        return has_narrowed(work.schema(place))

    def _failing(self, place: Place, error: GrammarError) -> Iterator[Place]:
        for inner in places_within(place):
            if isinstance(inner.schema, dict) and self._fails(inner, error):
                yield inner

    def _fails(self, place: Place, error: GrammarError, without: str = "") -> bool:
        """Return whether a part fails by itself, as the whole does; False after many trials."""
        if self._num_trials == MAX_TRIALS:
            return False
        self._num_trials += 1
        left_out = self._left_out
        if without:
            left_out += ((place.keys, without, ""),)
        work = Simplifier(*self._work, strict=False, closes=self._closes, left_out=left_out)
        try:
            self._try_core(work.whole(place))
        except ShapeError:
            return False
        except GrammarError as caught:
            return caught.is_empty == error.is_empty
        return False
