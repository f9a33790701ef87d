"""The rules for a request's fields that its struct does not express; a dialect fills them in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from octavo.serving.schema.model_names import AskedModel, asked_model
from octavo.transport.errors import not_yet

S = TypeVar("S", bound=Struct)


@dataclass(frozen=True, slots=True)
class Unsupported:
    """The values of a field that ask for nothing, and the error for all others.

    Many clients send such fields with values that ask for nothing, which are accepted. Any other
    value is refused by name, since ignoring it would give a wrong answer without a sign.
    """

    is_harmless: Callable[[Any], bool]
    refusal: str
    harmless: str  # the accepted values, for the documentation


@dataclass(frozen=True, slots=True)
class FieldRules:
    """The rules of one dialect; a request's struct refers to them as its `rules`."""

    # Fields that may hold any JSON; their depth is checked after decoding.
    open: frozenset[str] = frozenset()
    # Fields that may hold lists of token ids, whose number is limited before they are built.
    with_lists: frozenset[str] = frozenset()
    # Fields in which unknown names are refused: a misspelt one would change what is asked for.
    closed: frozenset[str] = frozenset()
    unsupported: Mapping[str, Unsupported] = field(default_factory=dict)
    # Words in the names of unknown fields that ask for an unsupported feature.
    unsupported_words: Mapping[str, Unsupported] = field(default_factory=dict)
    # Fields that are accepted with any value, and why: none of them would change an answer.
    ignored: Mapping[str, str] = field(default_factory=dict)
    # Names inside accepted fields that are ignored, of these fields and their values.
    ignored_inside: Callable[[Mapping[str, Any]], Iterable[tuple[str, str, tuple[str, ...]]]] = (
        lambda given: ()
    )
    # Fields that only the prompts are made from, and what is left of them when those are made:
    # a function of the request.
    of_prompts: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    # What the server keeps of a request besides the request itself without its prompts.
    kept: Callable[[Any], bytes] = lambda request: b""
    # Names in other APIs or on other routes, where another spelling would be nearer.
    other_names: Mapping[str, str] = field(default_factory=dict)

    # The names of the model and the adapter that a request has.
    asked_model: Callable[[Any], AskedModel] = asked_model

    form: str = "events"  # of the streams that answer the request
    # Fields of other routes, and where they belong.
    other_routes: Mapping[str, str] = field(default_factory=dict)

    def hint_for(self, unknown: Iterable[str]) -> str:
        """Return a hint for an error if a request is meant for another route."""
        for name in sorted(unknown):
            if name in self.other_routes:
                return f"; {name} belongs to {self.other_routes[name]}"
        return ""

    def check_unsupported(self, given: Mapping[str, Any]) -> None:
        """Raise ApiError for the first field that asks for an unsupported feature."""
        for name, value in given.items():
            if not self.unsupported[name].is_harmless(value):
                raise not_yet(name, self.unsupported[name].refusal)

    def without_prompts(self, request: S) -> S:
        """Return the request without what only its prompts are made from."""
        names = self.of_prompts.keys() & set(request.__struct_fields__)
        left = {name: self.of_prompts[name](request) for name in names}
        return msgspec.structs.replace(request, **left)

    def check_unknown(self, given: Mapping[str, Any]) -> None:
        """Raise ApiError for the first unknown field whose name asks for an unsupported feature."""
        for name, value in given.items():
            for word, rule in self.unsupported_words.items():
                if word in name.lower() and not rule.is_harmless(value):
                    raise not_yet(name[:192], rule.refusal)


_NONE = FieldRules()


def rules_of(kind: type[Struct]) -> FieldRules:
    """Return the rules of a request's struct."""
    rules: FieldRules = getattr(kind, "rules", _NONE)
    return rules
