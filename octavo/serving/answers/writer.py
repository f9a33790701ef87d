"""The base of the dialects' writers: what they do unless their dialect has it otherwise."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from octavo.api.outputs import RequestOutput
from octavo.serving.operation import TokenCounts
from octavo.transport.errors import ApiError


class BaseWriter:
    """The part of a writer that dialects share: a stream has nothing around its answers."""

    def opening(self, counts: TokenCounts) -> Iterable[bytes]:
        """Return nothing: a stream begins with what is first generated."""
        return ()

    def frames(
        self, prompt_index: int, output: RequestOutput, counts: TokenCounts
    ) -> Iterable[bytes]:
        """Raise AssertionError: there is no stream."""
        raise AssertionError("answers of this route are not streamed")

    def closing(self, counts: TokenCounts, explanation: dict[str, Any] | None) -> Iterable[bytes]:
        """Return nothing: a stream ends with the end of its answers."""
        return ()

    def failure(self, error: ApiError) -> bytes:
        """Return an error as its dialect writes it."""
        raise NotImplementedError

    def whole(
        self,
        outputs: list[RequestOutput],
        counts: TokenCounts,
        explanation: dict[str, Any] | None,
    ) -> Iterable[bytes]:
        """Return the body of a response, which has no explanation."""
        return self.body(outputs, counts)

    def body(self, outputs: list[RequestOutput], counts: TokenCounts) -> Iterable[bytes]:
        """Return the parts of the body."""
        raise NotImplementedError
