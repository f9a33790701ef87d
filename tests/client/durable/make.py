"""A small journal with everything that can be in one, and what it says."""

from __future__ import annotations

import asyncio
import os
from array import array
from collections.abc import Callable
from pathlib import Path

from octavo.client.durable.file import JournalFile
from octavo.client.durable.framing import Framing
from octavo.client.durable.reading import Records
from octavo.client.durable.requests import DurableRequest, DurableRequests, Limits
from octavo.client.durable.writer import JournalWriter
from octavo.core.plan import LogprobsPayload, TokenLogprobs
from octavo.core.request import FinishReason, TokenEvent

MODEL = "tiny chain none 300"


def read(data: bytes) -> tuple[Framing | None, list[bytes], int]:
    """Return how a file is framed, the payloads in it, and the number of damaged places."""
    descriptor = os.memfd_create("journal")
    try:
        os.write(descriptor, data)
        records = Records(descriptor)
        payloads = list(records)
        return records.framing, payloads, records.num_damaged
    finally:
        os.close(descriptor)


def opened(path: Path, limits: Limits | None = None, model: str = MODEL) -> DurableRequests:
    """Return the requests of a file, whose writer has not been started."""
    file = JournalFile(path)
    requests = DurableRequests(JournalWriter(file), model, limits)
    requests.load(file.records)
    return requests


def emit(
    requests: DurableRequests,
    request: DurableRequest,
    tokens: tuple[int, ...],
    end: FinishReason | None = None,
    *,
    place: int = 0,
    with_logprobs: bool = False,
) -> None:
    """Record more tokens of one answer."""
    answer = request.answers[place]
    payload = None
    if with_logprobs:
        payload = LogprobsPayload(
            tuple(TokenLogprobs(array("i", [each]), array("f", [-0.5]), 1) for each in tokens)
        )
    event = TokenEvent("any", len(answer.tokens), tokens, end, payload=payload)
    requests.record([(request, answer, event)])


async def write_journal(path: Path, act: Callable[[DurableRequests], None]) -> None:
    """Change the requests of a file, and write it."""
    requests = opened(path)
    requests.writer.start(requests.snapshot())
    act(requests)
    await requests.writer.written()
    await asyncio.to_thread(requests.writer.close)


State = dict[tuple[str, str], tuple[bytes, tuple[tuple[tuple[int, ...], str | None], ...], bool]]


def state_of(requests: DurableRequests) -> State:
    """Return all requests: the heads, the tokens and ends of their answers, whether they rest."""
    found: State = {}
    for each in requests:
        answers = tuple((tuple(one.tokens), one.finish_reason) for one in each.answers)
        found[each.owner, each.request_id] = each.head, answers, each.rested_at is not None
    return found
