"""The answer to a durable request whose client has not come back yet: it is only recorded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from octavo.api.outputs import RequestOutput
from octavo.serving.answers.writer import BaseWriter
from octavo.serving.exchange import Exchange
from octavo.serving.operation import TokenCounts
from octavo.serving.server import Server
from octavo.transport.answer import KeptAnswer, RequestHead
from octavo.transport.dialect import Dialect
from octavo.transport.errors import ApiError


class SilentWriter(BaseWriter):
    """A writer that writes no events and no body."""

    def frames(
        self, prompt_index: int, output: RequestOutput, counts: TokenCounts
    ) -> Iterable[bytes]:
        """Return nothing: there is no client."""
        return ()

    def failure(self, error: ApiError) -> bytes:
        """Return nothing: the error is logged."""
        return b""

    def body(self, outputs: list[RequestOutput], counts: TokenCounts) -> Iterable[bytes]:
        """Return nothing: there is no client."""
        return ()


class _NoReader(KeptAnswer):
    """An answer without a reader."""

    def write_now(self, part: bytes) -> None:
        """Ignore a part of the answer."""


def without_client(server: Server, owner: str) -> Exchange:
    """Return an exchange for a request of this key, whose answer goes nowhere."""

    def silent(given: Any) -> Any:
        return b""

    dialect = Dialect(silent, "", {}, "", silent)
    exchange = Exchange(server, RequestHead("POST", "", {}), _NoReader(), dialect)
    exchange.owner, exchange.has_client = owner, False
    return exchange
