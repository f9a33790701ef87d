"""The resolution of references within a schema: pointers, anchors, and identifiers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from octavo.grammar.json_schema.keywords import KEYWORDS

_PLAIN = re.compile(r"[A-Za-z_$][\w$-]*\Z", re.ASCII)
MAX_INDEXED = 1 << 16  # schemas of one document


class DanglingError(ValueError):
    """A reference that leads nowhere."""


@dataclass(frozen=True, slots=True)
class Place:
    """A schema, the path to it from the document's root, and the URI that its references extend."""

    schema: Any
    path: str  # as errors show it: long keys are shortened
    base: str
    keys: tuple[str | int, ...] = ()  # from the root to it, which no other place has

    def step(self, *keys: str | int) -> Place:
        """Return the place of a schema within this one."""
        schema, path = self.schema, self.path
        for key in keys:
            schema, path = schema[key], path + step(key)
        return Place(schema, path, base_of(schema, self.base), self.keys + keys)


def step(key: str | int) -> str:
    """Return a step of a path as errors show it."""
    if isinstance(key, int):
        return f"[{key}]"
    return f".{key}" if _PLAIN.match(key) else f"[{key[:64]!r}]"


def base_of(schema: Any, base: str) -> str:
    """Return the URI that references in a schema extend."""
    own = schema.get("$id") if isinstance(schema, dict) else None
    return urldefrag(urljoin(base, own))[0] if isinstance(own, str) else base


class References:
    """The places of a document that references can lead to."""

    def __init__(self, document: Any) -> None:
        self.root = Place(document, "", base_of(document, ""))
        self._resources = {"": self.root, self.root.base: self.root}
        self._anchors: dict[tuple[str, str], Place] = {}
        self._dynamic: dict[str, list[Place]] = {}
        for place in self._all():
            schema = place.schema
            if isinstance(schema.get("$id"), str):
                self._resources.setdefault(place.base, place)
            for keyword in ("$anchor", "$dynamicAnchor"):
                name = schema.get(keyword)
                if isinstance(name, str):
                    self._anchors.setdefault((place.base, name), place)
                    if keyword == "$dynamicAnchor":
                        self._dynamic.setdefault(name, []).append(place)
            if schema.get("$recursiveAnchor") is True:
                self._dynamic.setdefault("#", []).append(place)

    def resolve(self, reference: str, base: str) -> Place:
        """Return the place that a reference leads to; raise DanglingError if there is none."""
        uri, fragment = urldefrag(urljoin(base, reference) if reference[:1] != "#" else reference)
        resource = self._resources.get(uri or base)
        if resource is None:
            raise DanglingError(
                f"{reference[:200]!r} leads out of the schema, which cannot be followed; put what "
                "it refers to under $defs"
            )
        fragment = unquote(fragment)
        if not fragment:
            return resource
        if not fragment.startswith("/"):
            anchored = self._anchors.get((resource.base, fragment))
            if anchored is None:
                raise DanglingError(f"there is no anchor {fragment[:200]!r}")
            return anchored
        place = resource
        for part in fragment[1:].split("/"):
            place = _descend(place, part.replace("~1", "/").replace("~0", "~"), reference)
        return place

    def resolve_dynamic(self, reference: str, base: str) -> Place:
        """Return the only place that a dynamic reference can mean."""
        name = "#" if reference == "#" else reference.removeprefix("#")
        places = self._dynamic.get(name, [])
        if len(places) > 1:
            raise DanglingError(f"{reference[:200]!r} can mean {len(places)} places; use $ref")
        return places[0] if places else self.resolve(reference, base)

    def _all(self) -> Iterator[Place]:
        """Yield all places with schemas that are objects."""
        waiting = [self.root]
        for _ in range(MAX_INDEXED):
            if not waiting:
                return
            place = waiting.pop()
            if not isinstance(place.schema, dict):
                continue
            yield place
            waiting += places_within(place)


def places_within(place: Place) -> Iterator[Place]:
    """Yield the places of the schemas directly within the one at a place."""
    for key, value in place.schema.items():
        kind = KEYWORDS[key].value if key in KEYWORDS else "any"
        if key in ("$defs", "definitions"):
            kind = "schemas by name"
        if isinstance(value, dict) and kind in ("schemas by name", "schema or names"):
            yield from (place.step(key, name) for name in value)
        elif isinstance(value, dict) and kind in ("schema", "schema or list"):
            yield place.step(key)
        elif isinstance(value, list) and kind in ("schemas", "schema or list"):
            yield from (place.step(key, index) for index in range(len(value)))


def _descend(place: Place, part: str, reference: str) -> Place:
    schema = place.schema
    if isinstance(schema, dict) and part in schema:
        return place.step(part)
    if isinstance(schema, list) and part.isdecimal() and int(part[:9]) < len(schema):
        return place.step(int(part[:9]))
    raise DanglingError(f"{reference[:200]!r} leads nowhere: there is no {part[:64]!r}")
