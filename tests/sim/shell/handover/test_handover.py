"""Seeded worlds of several engines, each of which continues what others began, and planted bugs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from octavo.api.control import EngineControl
from octavo.client.commands import COMMAND_SECONDS, CommandsInFlight, joined
from octavo.client.journal.client import JournalClient
from octavo.client.journal.journal import Assignment, Entry
from octavo.client.journal.member import Member
from octavo.client.journal.quarantine import Quarantine
from octavo.client.process import ProcessEngine
from octavo.core.kv.digests import PrefixDigests
from octavo.core.request import Request
from octavo.engine.commands import Later
from octavo.engine.tensor_files import TensorFiles
from octavo.routing import KnownPrefixes
from tests.sim.shell.handover.handover_world import HandoverWorld
from tests.sim.shell.one_tokenizer import one_tokenizer

NUM_WORLDS = 300
NUM_FOR_PLANTED = 120
OFTEN = (
    ("restarted", "rolled", "moved", "no other", "same names", "loaded"),
    ("killed", "crashed", "stopped", "hung", "babbled", "paused", "asleep"),
    ("paused and drained", "paused and killed", "all paused", "aborted on the way"),
    ("left", "cancelled", "aborted", "closed", "failed", "late frames", "restarts"),
    tuple(
        f"reply: {code}"
        for code in ("result", "no_engine", "timed_out", "name_in_use", "not_loaded", "not_found")
    ),
)


@pytest.fixture(scope="module", autouse=True)
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with one_tokenizer(tmp_path_factory.mktemp("tiny")):
        yield


def world(seed: int) -> HandoverWorld:
    """Return a world that has been run."""
    made = HandoverWorld(seed)
    try:
        made.run()
    except BaseException as error:
        error.add_note(f"HandoverWorld({seed})")
        raise
    return made


@pytest.mark.slow
def test_worlds() -> None:
    happened: Counter[str] = Counter()
    for seed in range(NUM_WORLDS):
        happened.update(world(seed).num_events)
    for whats in OFTEN:  # what never happens is not tested
        for what in whats:
            assert happened[what] >= 10, happened
    assert happened["moved"] > NUM_WORLDS / 8


@pytest.mark.parametrize("seed", [11, 22, 77])
def test_a_seed_determines_a_world(seed: int) -> None:
    once, again = world(seed), world(seed)
    assert once.num_events == again.num_events
    assert once.loop.now == again.loop.now


# planted bugs


def _numbers_begin_again(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: two engines have different requests of one number."""
    lose = Assignment.lose

    def losing(self: Assignment, now: float) -> list[Entry]:
        self._journal._next_number = 0
        return lose(self, now)

    patch.setattr(Assignment, "lose", losing)


def _forgets_tokens(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: another engine does not get the last emitted token."""
    submit = Assignment.submit

    def forgetful(self: Assignment, entry: Entry, now: float) -> Any:
        if entry.was_submitted:
            del entry.emitted[-1:]
        return submit(self, entry, now)

    patch.setattr(Assignment, "submit", forgetful)


def _trusts_what_a_dead_engine_ran(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: what ended one engine is not suspect in the other."""

    def suspect(self: Quarantine, at_work: Any, was_killed: bool) -> None:
        self.isolated = None

    patch.setattr(Quarantine, "suspect", suspect)


def _continues_what_was_aborted(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: the other engine gets requests whose abort was on its way."""
    on_end = Member.on_end

    def forgetful(self: Member[Any], *which: Any) -> bool:
        for entry in self.requests._by_number.values():
            entry.is_abort_requested = False
        return on_end(self, *which)

    patch.setattr(Member, "on_end", forgetful)


def _has_a_key_of_its_own(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: each engine draws its key of digests."""
    init = ProcessEngine.__init__

    def drawing(self: ProcessEngine, *which: Any, **more: Any) -> None:
        init(self, *which, **more)
        self._cache_key = bytes([which[5]]) * 32

    patch.setattr(ProcessEngine, "__init__", drawing)


def _names_continued_kv_differently(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: the KV of a request that another engine has begun has a name of its own."""
    root = PrefixDigests.root

    def other_root(self: PrefixDigests, request: Request) -> bytes:
        changed = replace(request, cache_scope="resumed") if request.resumed else request
        return root(self, changed)

    patch.setattr(PrefixDigests, "root", other_root)


def _names_only_the_last_block(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: the name of a block does not depend on the blocks before it."""
    of = PrefixDigests.of

    def forgetful(self: PrefixDigests, sequence: Any, count: int) -> list[bytes]:
        for done in range(len(sequence.digests), count):
            rest, sequence.digests = sequence.digests, [b""] * done
            rest.append((b"" if done else b"0") + of(self, sequence, done + 1)[-1])
            sequence.digests = rest
        digests: list[bytes] = sequence.digests
        return digests

    patch.setattr(PrefixDigests, "of", forgetful)


def _forgets_the_pause(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: the next engine is not paused."""
    on_ready = ProcessEngine.on_ready

    def forgetful(self: ProcessEngine, epoch: int) -> None:
        was_paused, self._is_paused = self._is_paused, False
        on_ready(self, epoch)
        self._is_paused = was_paused

    patch.setattr(ProcessEngine, "on_ready", forgetful)


def _loses_commands_of_a_dead_engine(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CommandsInFlight, "fail_all", lambda self, why: None)


def _forgets_to_reply_to_a_failed_load(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Later, "refuse", lambda self, error: None)


def _takes_files_in_their_order(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: a file that has been read goes to the load that waits longest."""
    take = TensorFiles.take

    def in_order(self: TensorFiles) -> None:
        answers = self._reader.take()
        numbers: Sequence[int] = list(self._reading)
        pairs = [(number, answer) for number, (_, answer) in zip(numbers, answers, strict=False)]
        taker = self._reader.take
        self._reader.take = lambda: pairs  # type: ignore[method-assign]
        try:
            take(self)
        finally:
            self._reader.take = taker  # type: ignore[method-assign]

    patch.setattr(TensorFiles, "take", in_order)


def _leaves_requests_to_their_engine(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: what an engine has lost waits until it is back, although others are ready."""
    patch.setattr(JournalClient, "on_end", lambda self: None)


def _gives_a_request_to_two(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: what moves is given to two engines."""
    accept = Member.accept

    def twice(self: Member[Any], entry: Entry) -> None:
        keeper: Any = self._keeper
        if entry.was_submitted and entry.holder is None:
            for other in keeper.members:
                if other is not self and other.is_open:
                    accept(other, entry)
                    other.send()
                    entry.holder = None
                    break
        accept(self, entry)

    patch.setattr(Member, "accept", twice)


def _lets_others_run_beside_a_suspect(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: an engine in which a suspect runs alone is given other requests too."""
    patch.setattr(Member, "is_open", property(lambda self: self.engine.is_ready))


def _commands_the_first_alone(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: a command goes to the first engine, which replies for all."""

    def command(self: JournalClient[Any], command: Any, seconds: float = COMMAND_SECONDS) -> Any:
        return joined([self.engines[0].command(command, seconds)])

    patch.setattr(JournalClient, "command", command)


def _restarts_all_at_once(patch: pytest.MonkeyPatch) -> None:
    async def wait_for_none(self: EngineControl) -> None:
        pass

    patch.setattr(EngineControl, "_until_all_run", wait_for_none)


def _forgives_what_moves(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: a request that ended one engine is not suspect in the next one."""
    accept = Member.accept

    def forgiving(self: Member[Any], entry: Entry) -> None:
        entry.crash_points = 0
        accept(self, entry)

    patch.setattr(Member, "accept", forgiving)


def _makes_each_of_its_own_size(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: engines do not follow the first one's size."""
    patch.setattr(ProcessEngine, "follow", lambda self, facts: None)


def _counts_tokens_that_wait_twice(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: a prompt waits in an engine for ever, as the choice sees it."""
    patch.setattr(Assignment, "_begin", lambda self, entry: None)


def _believes_in_what_a_dead_engine_had(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: the view of an engine's cache outlives the engine."""
    patch.setattr(KnownPrefixes, "clear", lambda self: None)


def _gives_requests_to_the_silent(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: an engine without a sign of life gets requests as any other."""
    patch.setattr(Member, "is_well", lambda self: True)


def _views_grow(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: more is remembered of an engine than it can have."""

    def note(self: KnownPrefixes, keys: list[int]) -> None:
        self._keys.update(dict.fromkeys(keys))

    patch.setattr(KnownPrefixes, "note", note)


@pytest.mark.parametrize(
    "plant",
    [
        _numbers_begin_again,
        _forgets_tokens,
        _trusts_what_a_dead_engine_ran,
        _continues_what_was_aborted,
        _has_a_key_of_its_own,
        _names_continued_kv_differently,
        _names_only_the_last_block,
        _forgets_the_pause,
        _loses_commands_of_a_dead_engine,
        _forgets_to_reply_to_a_failed_load,
        _takes_files_in_their_order,
        _leaves_requests_to_their_engine,
        _gives_a_request_to_two,
        _lets_others_run_beside_a_suspect,
        _commands_the_first_alone,
        _restarts_all_at_once,
        _forgives_what_moves,
        _makes_each_of_its_own_size,
        _counts_tokens_that_wait_twice,
        _believes_in_what_a_dead_engine_had,
        _gives_requests_to_the_silent,
        _views_grow,
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
