"""The journal's client needs no process: any engine that takes numbered requests will do."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from dataclasses import replace

from octavo.client.commands import COMMAND_SECONDS, replied
from octavo.client.engine import EngineUser
from octavo.client.errors import EngineDeadError
from octavo.client.journal.client import JournalClient
from octavo.client.vitals import EngineVitals
from octavo.core.request import Abort, Request, TokenEvent
from octavo.core.sampling_params import SamplingParams
from octavo.core.snapshot import EngineLoad, EngineSnapshot
from octavo.wire.commands import Command, Pause, Reply
from octavo.wire.message_types import AbortRequests, AddRequests, WireError, WireEvent, WireRequest
from tests.client.clients import run
from tests.client.test_inline import FACTS


class Slots:
    """An engine that is a list of the messages which it has received."""

    facts = FACTS
    is_closed = is_sleeping = False
    closed_reason = "the engine is closed"

    def __init__(self) -> None:
        self.vitals = EngineVitals(0.0)
        self.totals = EngineSnapshot()
        self.load = EngineLoad()
        self.is_ready = True
        self.requests: list[WireRequest] = []
        self.aborted: list[int] = []
        self.num_tokens = 0  # that its user has noted as progress

    def use(self, user: EngineUser) -> None:
        self.user = user

    def attach(self) -> None:
        """Accept the loop: it has no events of its own."""

    def write(self, message: AddRequests | AbortRequests) -> None:
        if isinstance(message, AddRequests):
            self.requests.extend(message.requests)
        else:
            self.aborted.extend(message.numbers)

    def flush(self) -> None:
        """Accept the call: what is written has arrived."""

    def note_work(self) -> None:
        """Accept the call: its steps are not watched."""

    def note_progress(self) -> None:
        self.num_tokens += 1

    def command(self, command: Command, seconds: float = COMMAND_SECONDS) -> asyncio.Future[Reply]:
        return replied(Reply(command.name))

    def is_well(self) -> bool:
        return self.is_ready

    def restart(self) -> None:
        self.is_ready = False

    def sleep(self) -> None:
        self.is_ready = False

    def wake_up(self) -> None:
        self.is_ready = True

    def close(self) -> None:
        self.is_ready = False

    def end(self, last_step: tuple[int, ...] = (), *, was_killed: bool = True) -> None:
        """End, and be followed by an engine that has nothing."""
        self.requests.clear()
        self.is_ready = False
        self.user.on_end(last_step, was_killed=was_killed, reason="it ended")
        self.user.deliver(merge=False)

    def begin(self, epoch: int) -> None:
        """Accept requests again, as an engine that has nothing."""
        self.is_ready = True
        self.user.on_ready(epoch)


def request(name: str) -> Request:
    return Request(name, array("i", [1, 2]), SamplingParams(seed=1, max_tokens=9), 0.0)


def test_requests_continue_in_the_next_engine_behind_what_the_last_one_emitted() -> None:
    async def world() -> None:
        engine = Slots()
        client = JournalClient([engine])
        events: list[TokenEvent] = []

        def deliver(new: Sequence[TokenEvent]) -> None:
            events.extend(new)

        client.attach(deliver, lambda error: None)
        client.send([request("a"), request("b")])
        first, second = engine.requests
        engine.user.on_events([WireEvent(first.number, 0, (7, 8))])
        engine.user.deliver(merge=False)
        assert engine.num_tokens == 1
        assert engine.user.has_requests()
        client.send([Abort("b")])
        assert engine.aborted == [second.number]
        engine.end()  # before it has answered the abort
        assert not engine.user.has_requests()
        client.send([request("late")])
        assert not engine.requests
        assert client.snapshot().load.num_waiting == 2

        engine.begin(2)
        again, late = engine.requests
        assert array("i", again.emitted) == array("i", [7, 8])
        assert (again.resumed, late.resumed) == (True, False)
        engine.user.on_events([WireEvent(first.number, 2, (99,))])  # a late event of the first
        engine.user.on_events([WireEvent(again.number, 2, (9,), "length")])
        engine.user.deliver(merge=False)
        of_a = [event for event in events if event.request_id == "a"]
        assert [event.tokens for event in of_a] == [(7, 8), (9,)]
        assert [event.finish_reason for event in events if event.request_id == "b"] == ["abort"]
        assert await client.command(Pause()) == Reply("pause")

    run(world)


def test_a_request_in_two_steps_in_flight_is_suspected_once_by_each_end() -> None:
    async def world() -> None:
        engine = Slots()
        client = JournalClient([engine])
        events: list[TokenEvent] = []

        def deliver(new: Sequence[TokenEvent]) -> None:
            events.extend(new)

        client.attach(deliver, lambda error: None)
        client.send([request("bad"), request("other")])
        for num_alone in (0, 1, 2):  # it runs alone behind the second end, and fails by the third
            assert not events
            number = engine.requests[0].number
            engine.requests.clear()
            is_found = engine.user.on_end((number, number), was_killed=False, reason="it crashed")
            assert is_found == (num_alone == 2)
            engine.user.on_ready(num_alone + 2)
            assert len(engine.requests) == (2 if num_alone == 0 else 1)
        engine.user.deliver(merge=False)
        assert [(event.request_id, event.finish_reason) for event in events] == [("bad", "error")]

    run(world)


def test_the_others_go_on_without_an_engine_that_does_not_start_again() -> None:
    async def world() -> None:
        first, second = Slots(), Slots()
        client = JournalClient([first, second])
        deaths: list[EngineDeadError] = []
        numbers_ready: list[int] = []
        client.attach(lambda events: None, deaths.append)
        client.watch(lambda: numbers_ready.append(sum(each.is_ready for each in client.members)))
        client.send([request("a"), request("b")])
        assert [len(first.requests), len(second.requests)] == [1, 1]

        first.end((first.requests[0].number,), was_killed=False)
        assert len(second.requests) == 2  # at once
        second.end((second.requests[1].number,), was_killed=False)  # again with "a" in its step
        assert client.snapshot().load.num_waiting == 2
        first.begin(2)
        assert [each.number for each in first.requests] == [3]  # "b": "a" is to run alone
        second.is_closed = True
        second.user.on_give_up("it does not start")
        assert len(first.requests) == 2
        assert not deaths
        assert numbers_ready == [1, 0, 1, 1]

        first.end()
        first.is_closed = True
        first.user.on_give_up("nor does this")
        assert [str(death) for death in deaths] == ["nor does this"]
        assert not client.is_sleeping

    run(world)


def test_one_engine_notes_no_prefixes_for_a_choice_that_is_not_made() -> None:
    async def world() -> None:
        long = replace(request("a"), prompt=array("i", range(100)))
        for count in (1, 2):
            engines = [Slots() for _ in range(count)]
            client = JournalClient(engines)
            client.attach(lambda events: None, lambda error: None)
            client.send([long])
            member = client.members[0]
            entry = client._journal.find("a")
            assert entry is not None
            assert len(entry.prefixes.keys) == (3 if count > 1 else 0)
            assert member.requests.num_waiting_tokens == (100 if count > 1 else 0)
            engines[0].user.on_events([WireEvent(0, 0, (7,) * 30, "stop")])
            assert len(member.prefixes) == (4 if count > 1 else 0)
            assert member.requests.num_waiting_tokens == 0

    run(world)


def test_a_set_is_paused_if_those_that_are_ready_are() -> None:
    async def world() -> None:
        first, second = Slots(), Slots()
        client = JournalClient([first, second])
        client.attach(lambda events: None, lambda error: None)
        first.totals = EngineSnapshot(is_paused=True)
        assert not client.snapshot().is_paused
        second.is_ready = False  # it loads, or has ended for good
        assert client.snapshot().is_paused
        first.is_ready = False
        assert not client.snapshot().is_paused

    run(world)


def test_an_abort_behind_a_request_that_cannot_be_sent_finds_it_ended() -> None:
    class Strict(Slots):
        def write(self, message: AddRequests | AbortRequests) -> None:
            if isinstance(message, AddRequests):
                raise WireError("it is too large")
            super().write(message)

    async def world() -> None:
        engine = Strict()
        client = JournalClient([engine])
        events: list[TokenEvent] = []

        def deliver(new: Sequence[TokenEvent]) -> None:
            events.extend(new)

        client.attach(deliver, lambda error: None)
        client.send([request("a"), Abort("a")])
        await asyncio.sleep(0)
        assert [(each.finish_reason, each.message) for each in events] == [
            ("refused", "it is too large")
        ]
        assert not engine.aborted

    run(world)


def test_a_fork_goes_where_its_parent_is() -> None:
    async def world() -> None:
        first, second = Slots(), Slots()
        client = JournalClient([first, second])
        client.attach(lambda events: None, lambda error: None)
        forks = [replace(request(f"a{place}"), parent_id="a") for place in range(3)]
        client.send([request("a"), *forks, request("b")])
        assert [len(first.requests), len(second.requests)] == [4, 1]
        number = first.requests[0].number
        assert [each.parent for each in first.requests] == [None, number, number, number]
        second.is_ready = first.is_ready = False

    run(world)
