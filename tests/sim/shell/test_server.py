"""Seeded worlds of the whole front end over ASGI, and planted bugs that they must find."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from octavo.client.journal.journal import Assignment, Entry
from octavo.server.lifecycle import ServerLifecycle
from octavo.serving import generation
from octavo.serving.admission import Ticket
from octavo.serving.exchange import Exchange
from octavo.serving.server import Server
from octavo.transport.deadline import RequestTask
from octavo.transport.errors import ApiError, ClientGoneError
from octavo.transport.exchange import ResponseStream
from tests.sim.shell.one_tokenizer import one_tokenizer
from tests.sim.shell.server_world import ServerWorld

NUM_WORLDS = 300
NUM_FOR_PLANTED = 120


@pytest.fixture(scope="module", autouse=True)
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with one_tokenizer(tmp_path_factory.mktemp("tiny")):
        yield


def world(seed: int) -> ServerWorld:
    """Return a world that has been run."""
    made = ServerWorld(seed)
    made.run()
    return made


@pytest.mark.slow
def test_worlds() -> None:
    happened: Counter[str] = Counter()
    for seed in range(NUM_WORLDS):
        try:
            happened.update(world(seed).num_events)
        except BaseException as error:
            error.add_note(f"ServerWorld({seed})")
            raise
    # An event that never happens is not tested.
    for what in ("killed", "crashed", "stopped", "hung", "paused", "asleep", "closed", "ended"):
        assert happened[what] >= 5, happened
    for what in ("hung up", "cut", "aborted", "drained", "retried", "engine_error"):
        assert happened[what] >= 5, happened
    for what in ("queue_full", "tokens", "server_shutdown", "server_shutdown in a stream"):
        assert happened[what] >= 5, happened
    assert happened["engine_not_ready"] >= 5, happened
    assert happened["served"] > 2 * NUM_WORLDS, happened
    assert happened["restarts"] > NUM_WORLDS / 2, happened


def test_a_seed_determines_a_world() -> None:
    assert world(11).num_events == world(11).num_events
    assert world(11).loop.now == world(11).loop.now


# planted bugs


def _ignores_disconnects(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: a disconnect does not abort the request."""

    async def watch(self: RequestTask) -> None:
        await self._exchange._receive()  # type: ignore[misc]

    patch.setattr(RequestTask, "_watch", watch)


def _drops_streams_at_the_end(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: streams that are open at the end of a drain are cut off."""
    stop = RequestTask.stop

    def drop(self: RequestTask, why: Exception) -> None:
        is_end = isinstance(why, ApiError) and why.code == "server_shutdown"
        stop(self, ClientGoneError() if is_end else why)

    patch.setattr(RequestTask, "stop", drop)


def _ends_without_waiting(patch: pytest.MonkeyPatch) -> None:
    async def drain(self: ServerLifecycle) -> None:
        """Return without waiting for any request."""

    patch.setattr(ServerLifecycle, "_drain", drain)


def _admits_while_draining(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Server, "refusal", lambda self: None)


def _keeps_slots(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: a request rejected after its admission keeps its slot."""
    leave = Ticket.leave

    def forget(self: Ticket) -> None:
        if not self._is_admitted or not self._queue.waiting:
            leave(self)

    patch.setattr(Ticket, "leave", forget)


def _keeps_bytes(patch: pytest.MonkeyPatch) -> None:
    admit = Ticket.admit

    def forget(self: Ticket) -> None:
        admit(self)
        self._admission.waiting_bytes += self._num_bytes

    patch.setattr(Ticket, "admit", forget)


def _loses_a_token_at_restarts(patch: pytest.MonkeyPatch) -> None:
    submit = Assignment.submit

    def forgetful(self: Assignment, entry: Entry, now: float) -> Any:
        if entry.was_submitted:
            del entry.emitted[:1]
        return submit(self, entry, now)

    patch.setattr(Assignment, "submit", forgetful)


def _drops_output_for_slow_readers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(generation, "joined", lambda first, second: second)


def _waits_for_readers_forever(patch: pytest.MonkeyPatch) -> None:
    async def write(self: Exchange, body: bytes, *, more: bool = False) -> None:
        self.is_finished = not more
        await self._answer.write(body, more=more)

    patch.setattr(Exchange, "write", write)


def _waits_for_no_reader(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: unread data is buffered without bound."""
    write = Exchange.write

    async def hasty(self: Exchange, body: bytes, *, more: bool = False) -> None:
        task = asyncio.ensure_future(write(self, body, more=more))
        await asyncio.wait([task], timeout=0.0)

    patch.setattr(Exchange, "write", hasty)


def _writes_out_of_order(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: an output is written at once, although an earlier one waits for the task."""
    take = generation.Generation.take

    def hasty(self: generation.Generation, index: int, output: Any) -> None:
        waits = not self._writes_at_once
        self._writes_at_once = self._stream.is_open
        take(self, index, output)
        self._writes_at_once &= not waits

    patch.setattr(generation.Generation, "take", hasty)


def _writes_without_asking(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: an output is written at once, although the reader is too slow."""
    take = generation.Generation.take

    def hasty(self: generation.Generation, index: int, output: Any) -> None:
        exchange = self._exchange
        asks, exchange.must_wait = exchange.must_wait, lambda: False
        take(self, index, output)
        exchange.must_wait = asks

    patch.setattr(generation.Generation, "take", hasty)


def _pings_forever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ResponseStream, "stop_pinging", lambda self: None)


def _keeps_failed_requests(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: failed requests stay in the table of active requests."""
    run = generation.Generation.run

    async def careless(self: generation.Generation) -> None:
        try:
            await run(self)
        except ApiError:
            self._server.active[self._ids[0]] = self._active
            raise

    patch.setattr(generation.Generation, "run", careless)


@pytest.mark.slow
@pytest.mark.parametrize(
    "plant",
    [
        _ignores_disconnects,
        _drops_streams_at_the_end,
        _ends_without_waiting,
        _admits_while_draining,
        _keeps_slots,
        _keeps_bytes,
        _loses_a_token_at_restarts,
        _drops_output_for_slow_readers,
        _waits_for_readers_forever,
        _waits_for_no_reader,
        _writes_out_of_order,
        _writes_without_asking,
        _pings_forever,
        _keeps_failed_requests,
    ],
)
def test_planted_bugs_are_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    for seed in range(NUM_FOR_PLANTED):
        try:
            world(seed)
        except (AssertionError, TimeoutError):
            return
    raise AssertionError(f"no world of {NUM_FOR_PLANTED} found {plant.__name__}")
