"""A client around the engine's, which records the events of durable requests as they pass."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from octavo.client.client import Deliver, Died, EngineClient, EngineState
from octavo.client.commands import COMMAND_SECONDS
from octavo.client.durable.answer import Answer
from octavo.client.durable.requests import DurableRequest, DurableRequests
from octavo.core.request import Abort, Request, TokenEvent
from octavo.core.snapshot import EngineSnapshot
from octavo.wire.commands import Command, Reply
from octavo.wire.facts import EngineFacts


@dataclass(slots=True)
class _Followed:
    """A request whose events are recorded."""

    request: DurableRequest
    answers: Sequence[Answer]
    sequences: list[str] = field(default_factory=list)  # the engine's ids of them


class RecordingClient:
    """Implements `octavo.client.client.EngineClient` over another."""

    def __init__(self, inner: EngineClient, requests: DurableRequests) -> None:
        self._inner = inner
        self._requests = requests
        self._deliver: Deliver = lambda events: None
        # By the caller's id of a request, and then by that of each of its sequences.
        self._followed: dict[str, _Followed] = {}
        self._sequences: dict[str, tuple[DurableRequest, Answer]] = {}

    def follow(self, name: str, request: DurableRequest, answers: Sequence[Answer]) -> None:
        """Record what the sequences of the request called `name` emit, from its submission on."""
        self._followed[name] = _Followed(request, answers)

    def leave(self, name: str) -> None:
        """Record no more of the request called `name`."""
        followed = self._followed.pop(name, None)
        if followed is not None:
            for sequence in followed.sequences:
                self._sequences.pop(sequence, None)

    @property
    def facts(self) -> EngineFacts:
        return self._inner.facts

    @property
    def members(self) -> Sequence[EngineState]:
        return self._inner.members

    def attach(self, deliver: Deliver, died: Died) -> None:
        self._deliver = deliver
        self._inner.attach(self._record, died)

    def watch(self, changed: Callable[[], None]) -> None:
        self._inner.watch(changed)

    def send(self, events: Sequence[Request | Abort]) -> None:
        for event in events:
            if isinstance(event, Request):
                # An id of a sequence is that of its request, and the place among its sequences.
                name, _, place = event.request_id.rpartition("#")
                followed = self._followed.get(name)
                if followed is not None:
                    answer = followed.answers[int(place.rpartition(".")[2])]
                    followed.sequences.append(event.request_id)
                    self._sequences[event.request_id] = followed.request, answer
        self._inner.send(events)

    def command(self, command: Command, seconds: float = COMMAND_SECONDS) -> asyncio.Future[Reply]:
        return self._inner.command(command, seconds)

    def snapshot(self) -> EngineSnapshot:
        return self._inner.snapshot()

    def is_well(self) -> bool:
        return self._inner.is_well()

    @property
    def is_sleeping(self) -> bool:
        return self._inner.is_sleeping

    def restart(self, index: int) -> None:
        self._inner.restart(index)

    def sleep(self) -> None:
        self._inner.sleep()

    def wake_up(self) -> None:
        self._inner.wake_up()

    def close(self) -> None:
        self._inner.close()

    def _record(self, events: Sequence[TokenEvent]) -> None:
        found: list[tuple[DurableRequest, Answer, TokenEvent]] = []
        for event in events:
            followed = self._sequences.get(event.request_id)
            if followed is not None:
                found.append((*followed, event))
                if event.finish_reason is not None:
                    del self._sequences[event.request_id]
        if found:
            self._requests.record(found)
        self._deliver(events)
