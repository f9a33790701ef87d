"""One request and its answer, as handlers use them: the body decoded, the server at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from octavo.serving.adapters.selection import Selection, known, select
from octavo.serving.schema.decode import (
    MAX_FAST_BYTES,
    MAX_FAST_VALUES,
    decode,
    is_large,
    named_in_header,
    unknown_field,
)
from octavo.serving.schema.model_names import AskedModel
from octavo.serving.schema.reader import Unknown
from octavo.serving.schema.rules import rules_of
from octavo.transport.deadline import RequestTask
from octavo.transport.errors import ApiError
from octavo.transport.exchange import ID, HttpExchange

if TYPE_CHECKING:
    from octavo.serving.server import Server

T = TypeVar("T", bound=msgspec.Struct)


class Exchange(HttpExchange):
    """One request and its answer, with the server that answers it."""

    server: Server
    selected: Selection | None = None  # the model or adapter that the request names
    # Whether the request may be one of the journal, whose adapter may have lost its name meanwhile.
    may_be_repeated: bool = False
    unselected: ApiError | None = None  # why nothing was selected, if it may be one

    @property
    def model_name(self) -> str:
        """The name of the model or adapter that answers."""
        return self.server.model_name if self.selected is None else self.selected.name

    async def select(self, request: msgspec.Struct) -> None:
        """Select the model or adapter that a request names; raise ApiError for an unknown one."""
        try:
            await self._select(rules_of(type(request)).asked_model(request))
        except ApiError as error:
            if not (self.may_be_repeated and self.is_named):
                raise
            self.unselected = error.with_traceback(None)  # whose frames refer to this object

    async def _select(self, asked: AskedModel) -> None:
        self.selected = known(self.server, asked)
        if self.selected is None:
            # In a task that ends when the client leaves.
            await RequestTask(self).run(self._find(asked), self.server.config.max_request_seconds)

    async def _find(self, asked: AskedModel) -> None:
        self.selected = await select(self.server, asked)

    async def read(self, kind: type[T]) -> T:
        """Return the decoded body of a route without long texts; refuse a large one."""
        body = await self.body()
        if is_large(body):  # decoding it would hold the event loop
            raise ApiError(
                413,
                f"the body has {len(body)} bytes; this route reads at most {MAX_FAST_BYTES}, and "
                f"{MAX_FAST_VALUES} values",
                code="body_too_large",
            )
        return self.accept(kind, *decode(body, kind))

    def accept(self, kind: type[T], request: T, unknown: tuple[Unknown, ...]) -> T:
        """Return a decoded request; refuse its unknown fields, or name them in a header.

        A request without an x-request-id header has the name that its body gives it.
        """
        name = getattr(request, "request_id", None)
        if not self.is_named and name is not None and ID.fullmatch(name):
            self.is_named, self.request_id = True, name
        if unknown:
            if self.server.config.strict:
                raise unknown_field(unknown[0], kind)
            self.server.metrics.unknown_fields.add(len(unknown))
            self.extra_headers.append((b"x-octavo-unknown-fields", named_in_header(unknown)))
        return request
