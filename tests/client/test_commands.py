"""A command gets exactly one reply: the engine's, or an error when there can be none."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.client.commands import MAX_IN_FLIGHT, CommandsInFlight
from octavo.client.engine_run import State
from octavo.client.inline import InlineClient
from octavo.client.process import ProcessClient
from octavo.core.config import CoreConfig
from octavo.core.engine import EngineCore
from octavo.core.snapshot import EngineView
from octavo.wire import message_types as messages
from octavo.wire.commands import (
    NO_ENGINE,
    TIMED_OUT,
    TOO_MANY,
    UNKNOWN_COMMAND,
    UNSENDABLE,
    WRONG_ARGUMENTS,
    Command,
    CommandError,
    Look,
    Pause,
    Reply,
    ResetPrefixCache,
    Resume,
    SetLogLevel,
)
from octavo.wire.message_types import CommandReply, WireError, pack
from tests.client.clients import Caller, error_code, eventually, process_of, request, run, running
from tests.client.fake_engine import WAITING
from tests.client.test_inline import FACTS
from tests.core.make import KEY, Wire, Worker
from tests.sim.truth import whole_output


class LoadAdapter(Command, frozen=True):
    """A command of a front end that is newer than its engine."""

    name = "load_adapter"

    place: str


class LogLike(Command, frozen=True):
    """A command whose arguments are not those that the engine knows."""

    name = "set_log_level"

    level: str


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The gate of the client's engine: while the file exists, each request gets two tokens."""
    return tmp_path_factory.mktemp("gate") / "gate"


async def waits_at(gate: Path) -> None:
    """Wait until the engine waits inside a step, where it handles no command."""
    waiting = gate.with_name(WAITING)
    await eventually(lambda: waiting.stat().st_size > 0)
    os.truncate(waiting, 0)


@pytest.fixture(scope="module")
def client(gate: Path) -> Iterator[ProcessClient]:
    with running(f"gate={gate}") as client:
        yield client


def test_replies_have_values_and_errors_of_the_engine(client: ProcessClient) -> None:
    level = logging.getLogger("octavo").getEffectiveLevel()

    async def world() -> None:
        Caller(client)
        assert await client.command(SetLogLevel(37)) == Reply(level)
        assert await client.command(SetLogLevel(level)) == Reply(37)
        view = (await client.command(Look())).value
        assert isinstance(view, EngineView)
        assert (view.sequences, set(view.occupancy.used)) == ((), {0})
        for command in (Pause(), ResetPrefixCache(), Resume()):
            assert await client.command(command) == Reply()
        assert await error_code(client.command(LoadAdapter("/adapters/sql"))) == UNKNOWN_COMMAND
        assert await error_code(client.command(LogLike("loud"))) == WRONG_ARGUMENTS

    run(world)


def test_commands_and_requests_keep_their_order(client: ProcessClient) -> None:
    prompt = [3] * 30

    async def world() -> None:
        caller = Caller(client)
        caller.send(request("first", prompt))
        await caller.all_ended()
        reset = client.command(ResetPrefixCache())
        caller.send(request("second", prompt))
        await caller.all_ended()
        assert reset.done()
        stats = caller.ends["second"].stats
        assert stats is not None
        assert stats.num_cached_tokens == 0

    run(world)


def test_a_command_that_takes_too_long_fails_and_its_late_reply_is_ignored(
    client: ProcessClient, gate: Path
) -> None:
    gate.touch()
    held = request("held")

    async def world() -> None:
        caller = Caller(client)
        caller.send(held)
        await waits_at(gate)
        late = client.command(SetLogLevel(33), seconds=0.01)
        assert await error_code(late) == TIMED_OUT
        again = client.command(SetLogLevel(34))
        assert not again.done()
        gate.unlink()
        assert await again == Reply(33)
        await caller.all_ended()
        assert caller.tokens["held"] == whole_output(held, 4096)[0]

    run(world)


def test_the_death_of_an_engine_is_the_reply_to_each_command_in_flight(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    held = request("held")
    with running(f"gate={gate}") as client:

        async def world() -> None:
            caller = Caller(client)
            caller.send(held)
            await waits_at(gate)
            replies = [client.command(each) for each in (ResetPrefixCache(), Pause())]
            process_of(client).kill()
            assert [await error_code(each) for each in replies] == [NO_ENGINE, NO_ENGINE]
            while client.engines[0].supervisor.state is not State.READY:
                assert await error_code(client.command(ResetPrefixCache())) == NO_ENGINE
                await asyncio.sleep(0.01)
            gate.unlink()
            await eventually(lambda: client.snapshot().is_paused)  # also the next engine
            assert await client.command(Resume()) == Reply()
            await caller.all_ended()
            assert caller.tokens["held"] == whole_output(held, 4096)[0]

        run(world)


def test_the_end_of_the_client_is_the_reply_to_each_command_in_flight(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    with running(f"gate={gate}") as client:

        async def world() -> None:
            caller = Caller(client)
            caller.send(request("held"))
            await waits_at(gate)
            reply = client.command(Pause())
            client.close()
            assert await error_code(reply) == NO_ENGINE
            assert await error_code(client.command(Resume())) == NO_ENGINE

        run(world)


def test_a_command_that_is_too_large_to_send_is_an_error(
    client: ProcessClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def world() -> None:
        Caller(client)
        with monkeypatch.context() as patch:
            patch.setattr(messages, "MAX_FRAME_BYTES", 2000)
            reply = client.command(LoadAdapter("x" * 3000))
        assert await error_code(reply) == UNSENDABLE
        assert await error_code(client.command(LoadAdapter("\ud800"))) == UNSENDABLE
        assert await client.command(Resume()) == Reply()

    run(world)


# the commands in flight, without an engine


def test_only_so_many_commands_are_in_flight() -> None:
    async def world() -> None:
        commands = CommandsInFlight()
        sent: list[int] = []
        replies = [
            commands.send(Pause(), 60.0, lambda number, command: sent.append(number))
            for _ in range(MAX_IN_FLIGHT + 1)
        ]
        assert sent == list(range(MAX_IN_FLIGHT))
        assert await error_code(replies.pop()) == TOO_MANY
        commands.take(CommandReply(5))
        assert await replies[5] == Reply()
        commands.fail_all("it ended")
        assert len(commands) == 0
        codes = [await error_code(each) for each in replies]
        assert (codes.count(NO_ENGINE), codes.count(None)) == (MAX_IN_FLIGHT - 1, 1)

    run(world)


def test_a_reply_goes_to_its_own_command_alone() -> None:
    async def world() -> None:
        commands = CommandsInFlight()
        first, second, left = (
            commands.send(SetLogLevel(1), 60.0, lambda number, command: None) for _ in range(3)
        )
        left.cancel()
        commands.take(CommandReply(1, pack(7)))
        commands.take(CommandReply(1, pack(8)))  # a second reply is none
        assert not first.done()
        assert await second == Reply(7)
        commands.take(CommandReply(2, pack(9)))
        error = CommandError("no_room", "all slots are taken")
        commands.take(CommandReply(0, error=error))
        assert await first == Reply(error=error)

    run(world)


@pytest.mark.parametrize("reply", [CommandReply(1), CommandReply(0), CommandReply(0, pack("x"))])
def test_a_reply_that_cannot_be_one_breaks_the_protocol(reply: CommandReply) -> None:
    """A reply to no command that was sent is wrong, and so is a value of another type."""

    async def world() -> None:
        commands = CommandsInFlight()
        waiting = commands.send(SetLogLevel(1), 60.0, lambda number, command: None)
        with pytest.raises(WireError):
            commands.take(reply)
        commands.fail_all("it broke the protocol")
        assert await error_code(waiting) == NO_ENGINE

    run(world)


# an engine in this process


class FailingCore(EngineCore):
    """An engine whose step fails once it has been paused."""

    def step(self, wait: bool = True) -> Any:
        if self.scheduler.paused:
            raise ZeroDivisionError("a bug")
        return super().step(wait)


def inline(kind: type[EngineCore] = EngineCore) -> InlineClient:
    config = CoreConfig(num_blocks=40, max_model_len=64)
    return InlineClient(kind(config, Wire(Worker(config)), time.monotonic, KEY), FACTS)


def test_an_engine_in_this_process_replies_too(caplog: Any) -> None:
    caplog.set_level(17, "octavo")  # restores the level afterwards

    async def world() -> None:
        client = inline()
        client.attach(lambda events: None, lambda error: None)
        assert await client.command(SetLogLevel(31)) == Reply(17)
        assert await client.command(Pause()) == Reply()
        client.close()
        assert await error_code(client.command(Resume())) == NO_ENGINE

    run(world)


def test_the_failure_of_an_engine_in_this_process_is_the_reply() -> None:
    async def world() -> None:
        client = inline(FailingCore)
        died: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        client.attach(lambda events: None, died.set_result)
        first, second = client.command(Pause()), client.command(Pause())
        await died
        assert first.done()
        assert second.done()
        assert await error_code(client.command(Pause())) == NO_ENGINE
        client.close()

    run(world)
