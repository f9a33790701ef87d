"""The part of a writer whose answers are never streamed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from octavo.api.outputs import RequestOutput
from octavo.serving.operation import TokenCounts

_WHOLE = "answers of this route are not streamed"


class WholeWriter:
    """The methods for streams, which nothing may call."""

    def opening(self, counts: TokenCounts) -> Iterable[bytes]:
        """Raise AssertionError: there is no stream."""
        raise AssertionError(_WHOLE)

    def frames(
        self, prompt_index: int, output: RequestOutput, counts: TokenCounts
    ) -> Iterable[bytes]:
        """Raise AssertionError: there is no stream."""
        raise AssertionError(_WHOLE)

    def closing(self, counts: TokenCounts, explanation: dict[str, Any] | None) -> Iterable[bytes]:
        """Raise AssertionError: there is no stream."""
        raise AssertionError(_WHOLE)
