"""The fields in the bodies of a batch that its routes do not know, each reported once.

The server names them in a header, which a file of results does not have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from octavo.serving.batches.lines import RequestLine
from octavo.serving.schema.decode import unknown_field
from octavo.serving.schema.reader import Unknown
from octavo.serving.schema.rules import rules_of
from octavo.transport.route import Route

MOST_NAMED = 10
_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class UnknownFields:
    """The warnings about one file."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._kinds: Mapping[str, type[msgspec.Struct]] = {
            each.path: each.request for each in routes if each.method == "POST" and each.request
        }
        self._known: dict[str, frozenset[str]] = {}  # by route
        self._named: set[tuple[str, str]] = set()  # routes and fields
        self.warnings: list[str] = []

    def note(self, number: int, line: RequestLine) -> None:
        """Take a valid line of this number."""
        kind = self._kinds[line.url]
        for name in sorted(_decode(line.body).keys() - self._known_of(line.url, kind)):
            place = line.url, name
            if place in self._named or len(self.warnings) >= MOST_NAMED:
                continue
            self._named.add(place)
            error = unknown_field(Unknown(name, name, kind.__struct_encode_fields__), kind)
            self.warnings.append(f"line {number}: body: {error.message} (it has no effect)")

    def _known_of(self, url: str, kind: type[msgspec.Struct]) -> frozenset[str]:
        if url not in self._known:
            rules = rules_of(kind)
            names = {*kind.__struct_encode_fields__, *rules.ignored, *rules.unsupported}
            self._known[url] = frozenset(names)
        return self._known[url]
