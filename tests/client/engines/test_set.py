"""Several engines in processes of their own behind one client: deaths, restarts, commands."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from octavo import AsyncLLM
from octavo.api.control import EngineControl
from octavo.client.commands import agreed
from octavo.client.errors import EngineStartError
from octavo.client.launcher import ProcessLauncher
from octavo.client.process import ProcessClient, make_client
from octavo.core.config import ConfigError
from octavo.options.engine import EngineArguments, read_arguments
from octavo.wire.commands import (
    NO_ENGINE,
    TIMED_OUT,
    CommandError,
    Pause,
    Reply,
    Resume,
    SetLogLevel,
)
from octavo.wire.facts import EngineFacts
from octavo.wire.message_types import StartEngine
from tests.client.clients import FACTORY, Caller, eventually, patient, request, run
from tests.sim.truth import whole_output


def start(settings: str = "", count: int = 2, **options: Any) -> ProcessClient:
    """Return a client whose engines are ready."""
    arguments = EngineArguments(model=f"fake?{settings}", data_parallel_size=count, **options)
    launchers = [ProcessLauncher(FACTORY) for _ in range(count)]
    client = make_client(arguments, launchers, patient())
    client.start()
    return client


class Control(EngineControl):
    """The commands of `AsyncLLM` over a client that a caller is attached to."""

    def attach(self) -> None:
        """Accept the call: the caller has attached the client."""


def pids(client: ProcessClient) -> list[int]:
    runs = [engine.supervisor.run for engine in client.engines]
    return [run.process.popen.pid for run in runs]  # type: ignore[union-attr]


def check(caller: Caller, requests: list[Any], most: int) -> None:
    """Require that each request has its right output."""
    for each in requests:
        assert caller.tokens[each.request_id] == whole_output(each, most)[0]


@pytest.mark.slow
def test_what_one_engine_has_begun_the_other_continues_while_it_is_away(tmp_path: Path) -> None:
    gate, loading = tmp_path / "gate", tmp_path / "loading"
    client = start(f"gate={gate}&loading={loading}&slots=64")

    async def world() -> None:
        caller = Caller(client)
        requests = [request(f"r{i}", [3 + i, 5, 7 + i % 3]) for i in range(12)]
        gate.touch()
        caller.send(*requests)
        for each in requests:
            await caller.some_tokens(each.request_id, 2)
        held = [len(member.requests) for member in client.members]
        assert held == [6, 6], "the requests were not divided"
        loading.touch()  # no engine that is started now becomes ready
        victim = pids(client)[0]
        os.kill(victim, signal.SIGKILL)
        await eventually(lambda: not len(client.members[0].requests))
        assert len(client.members[1].requests) == 12
        assert client.is_well()
        assert [member.is_well() for member in client.members] == [False, True]
        gate.unlink()
        await caller.all_ended()
        check(caller, requests, client.facts.max_model_len)
        moved = [
            each for each in caller.ends.values() if each.stats and len(each.stats.engines) > 1
        ]
        assert [each.stats.engines for each in moved if each.stats] == [[0, 1]] * 6
        assert client.members[0].vitals.num_restarts == 0
        loading.unlink()
        await eventually(client.members[0].is_well)
        assert [member.vitals.num_deaths for member in client.members] == [1, 0]

    try:
        run(world)
    finally:
        client.close()


@pytest.mark.slow
def test_engines_are_of_one_size_and_restart_one_after_the_other() -> None:
    client = start("step=0.001&blocks=80")
    before = pids(client)

    async def world() -> None:
        caller = Caller(client)
        requests = [request(f"r{i}", [3 + i, 5], max_tokens=60) for i in range(6)]
        caller.send(*requests)
        await caller.some_tokens("r0")
        changes: list[int] = []
        client.watch(lambda: changes.append(sum(each.is_ready for each in client.members)))
        assert await Control(client).restart() == 2
        assert not set(pids(client)) & set(before)
        assert min(changes) == 1, "both were away at once"
        await caller.all_ended()
        check(caller, requests, client.facts.max_model_len)
        assert [member.vitals.num_deaths for member in client.members] == [0, 0]
        assert [member.vitals.num_restarts for member in client.members] == [1, 1]

    try:
        assert len({engine.facts.num_blocks for engine in client.engines}) == 1
        run(world)
    finally:
        client.close()


@pytest.mark.slow
def test_a_command_goes_to_all_engines_and_has_one_reply() -> None:
    client = start()

    async def world() -> None:
        caller = Caller(client)
        assert (await client.command(Pause())).error is None
        await eventually(lambda: all(each.snapshot().is_paused for each in client.members))
        caller.send(*[request(f"r{i}", [i + 3]) for i in range(4)])
        assert client.snapshot().load.num_waiting == 4
        assert not caller.events
        os.kill(pids(client)[1], signal.SIGKILL)
        await eventually(lambda: client.members[1].vitals.num_restarts == 1)
        await eventually(lambda: client.members[1].snapshot().is_paused)
        assert (await client.command(Resume())).error is None
        await caller.all_ended()
        assert isinstance((await client.command(SetLogLevel(20))).value, int)

    try:
        run(world)
    finally:
        client.close()


@pytest.mark.slow
def test_an_engine_that_loaded_meanwhile_has_the_level_that_was_set(tmp_path: Path) -> None:
    loading = tmp_path / "loading"
    client = start(f"loading={loading}")
    ours, engine = logging.getLogger("octavo"), client.engines[1]
    before = ours.level
    started: list[int] = []
    make_message = engine.start_message

    def note_message(like: EngineFacts | None) -> StartEngine:
        message = make_message(like)
        started.append(message.log_level)
        return message

    async def world() -> None:
        Caller(client)
        loading.touch()
        engine.start_message = note_message  # type: ignore[method-assign]
        os.kill(pids(client)[1], signal.SIGKILL)
        await eventually(lambda: bool(started))
        ours.setLevel(17)
        assert (await client.command(SetLogLevel(17))).error is None  # the reply of the other
        loading.unlink()
        await eventually(engine.is_well)
        assert started != [17]
        assert await engine.command(SetLogLevel(18)) == Reply(17)

    try:
        run(world)
    finally:
        ours.setLevel(before)
        client.close()


@pytest.mark.slow
def test_a_set_with_an_engine_that_cannot_start_is_refused(tmp_path: Path) -> None:
    arguments = EngineArguments(model="fake?", data_parallel_size=2)
    launchers = [ProcessLauncher(FACTORY), ProcessLauncher("tests.client.fake_engine:missing")]
    client = make_client(arguments, launchers)
    with pytest.raises(EngineStartError, match="missing"):
        client.start()
    assert all(engine.is_closed for engine in client.engines)


def failed(code: str, message: str = "") -> Reply:
    return Reply(error=CommandError(code, message))


def test_the_reply_of_several_engines_is_an_error_or_what_the_first_says() -> None:
    done, gone = Reply("done"), failed(NO_ENGINE)
    assert agreed([done]) == agreed([done, Reply("other")]) == agreed([gone, done]) == done
    assert agreed([gone, gone]) == gone
    late = failed(TIMED_OUT, "too late")
    assert agreed([late]) == late
    mixed = agreed([done, gone, late]).error
    assert mixed is not None
    assert mixed.code == TIMED_OUT
    assert mixed.message == "engine 2: too late (engines that did it: 0)"


def test_settings_that_several_engines_cannot_have_are_refused() -> None:
    for options in ({"spare_engine": True}, {"data_parallel_size": 65}):
        with pytest.raises(ConfigError, match="data_parallel_size"):
            read_arguments("fake", {"data_parallel_size": 2, **options})
    with pytest.raises(ConfigError, match="engine='process'"):
        AsyncLLM("fake", data_parallel_size=2)
