"""Seeded worlds of the front end's asynchronous API, and planted bugs that they must find."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from octavo.client.commands import CommandsInFlight
from octavo.client.journal.client import JournalClient
from octavo.client.journal.journal import Assignment, Entry
from octavo.client.journal.quarantine import Quarantine
from octavo.client.launcher import Incoming
from octavo.client.liveness import Liveness
from octavo.client.process import ProcessEngine
from octavo.client.supervisor import Supervisor
from octavo.engine.process import EngineLoop
from octavo.wire.commands import BY_NAME
from octavo.wire.message_types import CommandReply, EngineCommand
from tests.sim.shell.one_tokenizer import one_tokenizer
from tests.sim.shell.shell_world import World

NUM_WORLDS = 300


@pytest.fixture(scope="module", autouse=True)
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with one_tokenizer(tmp_path_factory.mktemp("tiny")):
        yield


def world(seed: int) -> World:
    """Return a world that has been run."""
    made = World(seed)
    made.run()
    return made


@pytest.mark.slow
def test_worlds() -> None:
    happened: Counter[str] = Counter()
    for seed in range(NUM_WORLDS):
        try:
            happened.update(world(seed).num_events)
        except BaseException as error:
            error.add_note(f"World({seed})")
            raise
    # An event that never happens is not tested.
    for what in ("killed", "crashed", "stopped", "hung", "babbled", "paused", "asleep"):
        assert happened[what] >= 5, happened
    for what in ("left", "cancelled", "aborted", "closed", "failed", "late frames"):
        assert happened[what] >= 5, happened
    for what in ("result", "unknown_command", "no_engine", "timed_out"):
        assert happened[f"reply: {what}"] >= 5, happened
    assert happened["restarts"] > NUM_WORLDS


def test_a_seed_determines_a_world() -> None:
    assert world(11).num_events == world(11).num_events
    assert world(11).loop.now == world(11).loop.now


# planted bugs


def _forgets_tokens(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: a new engine does not get the first emitted token."""
    submit = Assignment.submit

    def forgetful(self: Assignment, entry: Entry, now: float) -> Any:
        if entry.was_submitted:
            del entry.emitted[:1]
        return submit(self, entry, now)

    patch.setattr(Assignment, "submit", forgetful)


def _forgets_the_state_of_a_sampler(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: a new engine does not get what the sampler keeps beside the tokens."""
    submit = Assignment.submit

    def forgetful(self: Assignment, entry: Entry, now: float) -> Any:
        entry.sampler_state = None
        return submit(self, entry, now)

    patch.setattr(Assignment, "submit", forgetful)


def _accepts_late_frames(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: frames of a dead engine are accepted as its successor's."""
    take = Supervisor._take

    def gullible(self: Supervisor, incoming: Incoming) -> None:
        take(self, replace(incoming, epoch=self._epoch))

    patch.setattr(Supervisor, "_take", gullible)


def _forgets_a_request(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: the newest request is not resubmitted to a new engine."""

    def submit_waiting(self: JournalClient[ProcessEngine]) -> None:
        self._assign([entry for entry in self._journal if entry.number is None][:-1])
        self.members[0].send()

    patch.setattr(JournalClient, "submit_waiting", submit_waiting)


def _never_fails_a_request(patch: pytest.MonkeyPatch) -> None:
    suspect = Quarantine.suspect

    def lenient(self: Quarantine, at_work: Any, was_killed: bool) -> None:
        suspect(self, at_work, was_killed)

    patch.setattr(Quarantine, "suspect", lenient)


def _fails_other_requests(patch: pytest.MonkeyPatch) -> None:
    def harsh(self: Quarantine, at_work: Any, was_killed: bool) -> Any:
        return next(iter(at_work), None)

    patch.setattr(Quarantine, "suspect", harsh)


def _sends_no_aborts(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: aborts are not sent to the engine."""

    def abort(self: JournalClient[ProcessEngine], name: str) -> None:
        entry = self._journal.find(name)
        if entry is not None:
            self._finish(entry, entry.last_event("abort"))

    patch.setattr(JournalClient, "_abort", abort)


def _sees_no_silence(patch: pytest.MonkeyPatch) -> None:
    def blind(self: Liveness, now: float, has_work: bool) -> None:
        return None

    patch.setattr(Liveness, "overdue_reason", blind)


def _blames_the_engine_for_a_sleep(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Liveness, "note_tick", lambda self, now: None)


def _leaves_the_commands_of_a_dead_engine(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CommandsInFlight, "fail_all", lambda self, why: None)


def _gives_a_late_reply_to_another_command(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: a reply goes to the oldest command in flight."""
    take = CommandsInFlight.take

    def take_next(self: CommandsInFlight, message: CommandReply) -> None:
        take(self, structs.replace(message, number=min(self._waiting, default=message.number)))

    patch.setattr(CommandsInFlight, "take", take_next)


def _replies_to_known_commands_alone(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: an engine ignores a command that it does not know."""
    reply = EngineLoop._answer

    def silent(self: EngineLoop, command: EngineCommand) -> None:
        if command.name in BY_NAME:
            reply(self, command)

    patch.setattr(EngineLoop, "_answer", silent)


@pytest.mark.parametrize(
    "plant",
    [
        _forgets_tokens,
        _forgets_the_state_of_a_sampler,
        _accepts_late_frames,
        _forgets_a_request,
        _never_fails_a_request,
        _fails_other_requests,
        _sends_no_aborts,
        _sees_no_silence,
        _blames_the_engine_for_a_sleep,
        _leaves_the_commands_of_a_dead_engine,
        _gives_a_late_reply_to_another_command,
        _replies_to_known_commands_alone,
    ],
)
def test_planted_bugs_are_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    for seed in range(80):
        try:
            world(seed)
        except (AssertionError, TimeoutError):
            return
    raise AssertionError(f"no world of 80 found {plant.__name__}")
