"""Submits one prompt of a durable request again, behind what its answers have already."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from octavo.api.async_llm import AsyncLLM
from octavo.api.continuation import Meter
from octavo.api.requests import CheckedRequest
from octavo.api.sinks import Sink
from octavo.client.durable.answer import Answer


class LateMeter:
    """A meter that counts nothing before it is on, of tokens that were counted when they came.

    The lengths and the mean latency of a request that was generated in parts are not observed.
    """

    __slots__ = ("_inner", "is_on")

    def __init__(self, inner: Meter) -> None:
        self._inner = inner
        self.is_on = False

    def add(self, num_tokens: int, seconds: float | None) -> None:
        if self.is_on:
            self._inner.add(num_tokens, seconds)

    def end(self, num_tokens: int, seconds: float) -> None:
        """Ignore the end, whose figures concern the whole of the answer."""


async def resubmit(
    llm: AsyncLLM, checked: CheckedRequest, sink: Sink, name: str, answers: Sequence[Answer]
) -> None:
    """Repeat the answers of one prompt as outputs; then let the engine continue them."""
    meter = None if checked.meter is None else LateMeter(checked.meter)
    past = [answer.replayed() for answer in answers]
    await llm.resubmit(replace(checked, meter=meter), sink, name, past)
    if meter is not None:
        meter.is_on = True
