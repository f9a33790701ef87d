"""A spare engine continues all requests, and its own troubles reach no request."""

from __future__ import annotations

import contextlib
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from octavo.client.engine_run import State
from octavo.client.launcher import ChildProcess
from octavo.client.process import ProcessClient
from octavo.client.spare import Spare
from octavo.core.request import Request
from octavo.options.engine import EngineArguments
from octavo.wire.message_types import StartEngine, unpack
from tests.client.clients import (
    Caller,
    eventually,
    patient,
    process_of,
    request,
    run,
    running,
    start,
)
from tests.client.fake_engine import HARMLESS, POISON_TOKEN
from tests.sim.truth import whole_output

AT_ONCE = patient(spare_delay_seconds=0.0, restart_delay_seconds=0.01)


def check(caller: Caller, *requests: Request) -> None:
    """Check that each request got exactly the output of an undisturbed engine."""
    for one in requests:
        tokens, reason = whole_output(one, 4096)
        assert caller.tokens[one.request_id] == tokens, one.request_id
        assert caller.ends[one.request_id].finish_reason == reason


def arguments_in(message: StartEngine) -> EngineArguments:
    """Return the arguments with which an engine is started."""
    return unpack(message.arguments, EngineArguments)


def spare_process(client: ProcessClient) -> Any:
    """Return the process of the spare engine."""
    run = client.engines[0].supervisor.spare.run
    assert run is not None
    assert isinstance(run.process, ChildProcess)
    return run.process.popen


async def spare_ready(client: ProcessClient) -> None:
    await eventually(lambda: client.engines[0].supervisor.spare.facts is not None)


def has_failed(spare: Spare, number: int) -> bool:
    return spare._restarts.num_failed_engines == number


async def ready(client: ProcessClient) -> None:
    await eventually(lambda: client.engines[0].supervisor.state is State.READY)


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A closed gate: an engine gives each request two tokens until the file is removed."""
    path = tmp_path / "gate"
    path.touch()
    return path


def test_the_spare_engine_takes_over_and_another_one_is_started(gate: Path) -> None:
    requests = [request(f"r{index}", [index], max_tokens=60) for index in range(20)]
    with running(f"gate={gate}", AT_ONCE, spare_engine=True) as client:

        async def world() -> None:
            caller = Caller(client)
            caller.send(*requests)
            await caller.some_tokens("r19", 2)
            await spare_ready(client)
            spare = spare_process(client)
            process_of(client).kill()
            await eventually(lambda: process_of_now(client) is spare)
            gate.unlink()
            await caller.all_ended()
            check(caller, *requests)
            assert client.engines[0].supervisor.restarts.num_restarts == 1
            await spare_ready(client)
            assert spare_process(client) is not spare
            assert spare_process(client).poll() is None

        run(world)


def process_of_now(client: ProcessClient) -> Any:
    """Return the process of the current engine, or None between two engines."""
    return None if client.engines[0].supervisor.run is None else process_of(client)


def has_changed(client: ProcessClient, process: Any) -> bool:
    return process_of_now(client) is not process


def test_kills_of_every_engine_in_turn_lose_no_token() -> None:
    with running("step=0.002", AT_ONCE, spare_engine=True) as client:

        async def world() -> None:
            caller = Caller(client)
            requests = [request(f"r{index}", [index], max_tokens=400) for index in range(10)]
            caller.send(*requests)
            for turn in range(6):
                await ready(client)
                if turn % 3:  # else the spare engine is killed while it loads, or has none
                    await spare_ready(client)
                victims = [process_of(client)]
                if turn % 2 and client.engines[0].supervisor.spare.run is not None:
                    victims.append(spare_process(client))
                for victim in victims:
                    victim.kill()
                await eventually(partial(has_changed, client, victims[0]))
            await caller.all_ended()
            check(caller, *requests)

        run(world)


def test_a_spare_engine_that_ends_is_replaced_unnoticed() -> None:
    one = request("r")
    with running("", AT_ONCE, spare_engine=True) as client:

        async def world() -> None:
            caller = Caller(client)
            await spare_ready(client)
            first = spare_process(client)
            first.kill()
            await eventually(
                lambda: client.engines[0].supervisor.spare.run is None or process_changed(first)
            )
            await spare_ready(client)
            caller.send(one)
            await caller.all_ended()
            check(caller, one)
            assert client.engines[0].supervisor.restarts.num_restarts == 0

        def process_changed(first: Any) -> bool:
            return spare_process(client) is not first

        run(world)


def test_a_stopped_spare_engine_is_replaced() -> None:
    timing = patient(spare_delay_seconds=0.0, silence_seconds=1.5, max_failed_engines=1000)
    with running("", timing, spare_engine=True) as client:

        async def world() -> None:
            Caller(client)
            await spare_ready(client)
            first = spare_process(client)
            with contextlib.suppress(ProcessLookupError):  # on a busy machine it is silent anyway
                os.kill(first.pid, signal.SIGSTOP)
            await eventually(lambda: first.poll() is not None)
            await spare_ready(client)
            assert spare_process(client) is not first

        run(world)


def test_an_engine_that_still_loads_takes_over_too(tmp_path: Path) -> None:
    one, loading = request("r"), tmp_path / "loading"
    with running(f"loading={loading}", AT_ONCE, spare_engine=True) as client:
        loading.touch()

        async def world() -> None:
            caller = Caller(client)
            await eventually(lambda: client.engines[0].supervisor.spare.run is not None)
            spare = spare_process(client)
            process_of(client).kill()
            await eventually(lambda: process_of_now(client) is spare)
            assert client.engines[0].supervisor.state is State.STARTING
            caller.send(one)
            loading.unlink()
            await caller.all_ended()
            check(caller, one)
            assert process_of(client) is spare

        run(world)


def test_spare_engines_that_cannot_start_harm_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    timing = patient(spare_delay_seconds=0.0, restart_delay_seconds=0.01, max_failed_engines=3)
    one = request("r")
    with running("", timing, spare_engine=True) as client:
        client.engines[0]._arguments = EngineArguments(
            model="fake?fail=no such file", spare_engine=True
        )

        async def world() -> None:
            caller = Caller(client)
            spare = client.engines[0].supervisor.spare
            await eventually(lambda: spare._restarts.num_failed_engines == 3)
            assert spare.run is None
            caller.send(one)
            await caller.all_ended()
            check(caller, one)
            assert client.engines[0].supervisor.restarts.num_restarts == 0

        run(world)


def test_spare_engines_that_end_again_and_again_are_replaced_only_so_often() -> None:
    timing = patient(spare_delay_seconds=0.0, restart_delay_seconds=0.01, max_failed_engines=3)
    one = request("r")
    with running("", timing, spare_engine=True) as client:

        async def world() -> None:
            caller = Caller(client)
            spare = client.engines[0].supervisor.spare
            for number in (1, 2, 3):
                await spare_ready(client)
                spare_process(client).kill()
                await eventually(partial(has_failed, spare, number))
            assert spare.run is None
            caller.send(one)
            await caller.all_ended()
            check(caller, one)

        run(world)


def test_a_request_that_crashes_engines_is_found_with_a_spare_engine_too(gate: Path) -> None:
    poison = request("poison", [POISON_TOKEN], max_tokens=50)
    others = [request(f"r{index}", [index], max_tokens=60) for index in range(4)]
    settings = f"poison=1&how=exit&step=0.002&gate={gate}"
    with running(settings, AT_ONCE, spare_engine=True) as client:

        async def world() -> None:
            caller = Caller(client)
            await spare_ready(client)
            caller.send(*others[:2], poison, *others[2:])
            await caller.some_tokens("poison", HARMLESS)
            gate.unlink()
            await caller.all_ended()
            check(caller, *others)
            assert caller.ends["poison"].finish_reason == "error"
            assert client.engines[0].supervisor.restarts.num_restarts == 3

        run(world)


def test_closing_ends_both_engines_and_another_loop_may_go_on() -> None:
    client = start("", AT_ONCE, spare_engine=True)
    one = request("r")
    processes: list[Any] = []

    async def world() -> None:
        caller = Caller(client)
        await spare_ready(client)
        processes[:] = process_of(client), spare_process(client)
        caller.send(one)
        await caller.all_ended()
        check(caller, one)

    async def again() -> None:
        caller = Caller(client)
        processes[0].kill()
        await eventually(lambda: process_of_now(client) is processes[1])
        late = request("late")
        caller.send(late)
        await caller.all_ended()
        check(caller, late)
        await spare_ready(client)
        processes.append(spare_process(client))
        client.close()

    run(world)
    run(again)
    assert len(processes) == 3
    assert all(process.poll() is not None for process in processes)


def test_a_spare_engine_has_the_size_of_the_one_that_serves() -> None:
    with running("", AT_ONCE, spare_engine=True) as client:
        arguments = arguments_in(client.engines[0].start_message(client.facts))
        assert arguments.num_gpu_blocks_override == client.facts.num_blocks
        assert arguments.max_model_len == client.facts.max_model_len
        assert arguments_in(client.engines[0].start_message(None)).num_gpu_blocks_override is None
        assert not client.engines[0].start_message(None).is_first


@pytest.mark.parametrize("asked", ["", "fma"])
def test_engines_add_up_as_the_first_one_does(asked: str) -> None:
    """Open streams continue with equal bits, whatever a later engine would measure."""
    with running("", AT_ONCE, accumulation_order=asked) as client:
        assert client.facts.accumulation_order == (asked or "measured")
        for like in (client.facts, None):
            arguments = arguments_in(client.engines[0].start_message(like))
            assert arguments.accumulation_order == client.facts.accumulation_order


def test_without_the_setting_there_is_no_spare_engine() -> None:
    one = request("r", max_tokens=300)
    with running("", AT_ONCE) as client:

        async def world() -> None:
            caller = Caller(client)
            caller.send(one)
            await caller.all_ended()
            assert "spare" not in client.engines[0].supervisor.timers
            assert client.engines[0].supervisor.spare.run is None

        run(world)
