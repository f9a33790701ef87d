"""Real engines that are killed, hang, or cannot start: no token lost, repeated or changed."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from octavo.api.outputs import EngineDeadError
from octavo.client import supervisor
from octavo.client.engine_run import State
from octavo.client.errors import EngineStartError
from octavo.client.launcher import ProcessLauncher
from octavo.client.process import make_client
from octavo.core.request import Abort
from octavo.core.stats import RESTART
from octavo.options.engine import EngineArguments
from octavo.wire.commands import NO_ENGINE, Pause, Resume
from tests.client import clients
from tests.client.clients import (
    Caller,
    check,
    error_code,
    eventually,
    patient,
    process_of,
    request,
    run,
    running,
)
from tests.client.fake_engine import HARMLESS, POISON_TOKEN, jump_clock

# One short limit each: an engine that waits for a busy machine must not come near the other.
OFTEN = {"restart_delay_seconds": 0.01, "max_failed_engines": 1000}
SHORT_SILENCE = patient(silence_seconds=1.5, **OFTEN)
SHORT_STEPS = patient(watchdog_seconds=0.3, **OFTEN)
NUM_KILLS = 10


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A closed gate: an engine gives each request two tokens until the file is removed."""
    path = tmp_path / "gate"
    path.touch()
    return path


def test_ten_kills_under_fifty_streams_lose_no_token_and_repeat_none() -> None:
    """Streams follow each other until ten kills have happened."""
    seed = random.Random(4)
    with running("step=0.002") as client:

        async def kill(caller: Caller, waits: bool) -> None:
            await eventually(lambda: client.engines[0].supervisor.state is State.READY)
            num_events = len(caller.events)
            if waits:  # else every engine might be killed before it has produced a token
                await caller.until(lambda: len(caller.events) > num_events or caller.is_done())
            await asyncio.sleep(seed.random() * 0.12)
            vitals = client.members[0].vitals
            num_deaths = vitals.num_deaths
            process_of(client).kill()
            await eventually(lambda: vitals.num_deaths > num_deaths)

        async def world() -> None:
            caller = Caller(client)
            num_kills = 0
            while num_kills < NUM_KILLS:
                run = len(caller.ends) // 50
                requests = [
                    request(f"r{run}-{index}", [index, 1, *range(index % 7)], max_tokens=500)
                    for index in range(50)
                ]
                caller.send(*requests)
                while num_kills < NUM_KILLS and not caller.is_done():
                    await kill(caller, waits=bool(num_kills % 2))
                    num_kills += 1
                await caller.all_ended()
                check(caller, *requests)
            assert client.engines[0].supervisor.restarts.num_restarts == NUM_KILLS
            all_stats = [end.stats for end in caller.ends.values() if end.stats is not None]
            assert len(all_stats) == len(caller.ends)
            assert max(stats.wait_seconds.get(RESTART, 0.0) for stats in all_stats) > 0
            assert {stats.num_output_tokens for stats in all_stats} == {500}

        run(world)


HANGS = {"hang": SHORT_SILENCE, "sleep": SHORT_STEPS, "spin": SHORT_STEPS}


@pytest.mark.parametrize("how", ["abort", "raise", "exit", "bus", *HANGS])
def test_a_poisoned_request_fails_alone_and_others_continue(how: str, gate: Path) -> None:
    poison = request("poison", [1, POISON_TOKEN], max_tokens=50)
    others = [request(f"r{index}", [index], max_tokens=60) for index in range(6)]
    timing = HANGS.get(how, patient(restart_delay_seconds=0.01))
    with running(f"step=0.002&poison=1&how={how}&gate={gate}", timing) as client:

        async def world() -> None:
            caller = Caller(client)
            caller.send(*others[:3], poison, *others[3:])
            # A token that is lost at the first death would count as progress before the second.
            await caller.some_tokens("poison", HARMLESS)
            gate.unlink()
            await caller.all_ended()
            check(caller, *others)
            end = caller.ends["poison"]
            assert end.finish_reason == "error"
            assert end.message is not None
            assert "this request ended the engine" in end.message
            assert ("a file that it had mapped" in end.message) is (how == "bus")
            assert len(caller.tokens["poison"]) == 2
            # Two more tries, and one engine for the rest. A slow engine may be mistaken for one
            # that hangs, and be replaced as well.
            num_restarts = client.engines[0].supervisor.restarts.num_restarts
            assert num_restarts == 3 or (how in HANGS and num_restarts > 3)
            late = request("late")
            caller.send(late)
            await caller.all_ended()
            check(caller, late)

        run(world)


def test_a_stopped_engine_is_silent_and_replaced(gate: Path) -> None:
    one = request("r", max_tokens=300)
    with running(f"gate={gate}", SHORT_SILENCE) as client:

        async def world() -> None:
            caller = Caller(client)
            caller.send(one)
            await caller.some_tokens("r")
            process_of(client).send_signal(signal.SIGSTOP)
            restarts = client.engines[0].supervisor.restarts
            await eventually(lambda: restarts.num_restarts > 0 or not client.is_well())
            gate.unlink()
            await caller.all_ended()
            check(caller, one)
            assert client.engines[0].supervisor.restarts.num_restarts >= 1

        run(world)


def test_jumps_of_the_system_clock_change_nothing(
    gate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jumps are hours long: at each step in the engine, and at each event in the front end."""
    requests = [request(f"r{index}", [index], max_tokens=100) for index in range(10)]
    monkeypatch.setattr(time, "time", time.time)  # restored at the end
    monkeypatch.setattr(time, "time_ns", time.time_ns)
    with running(f"clock=jumps&gate={gate}", patient(restart_delay_seconds=0.01)) as client:

        async def world() -> None:
            caller = Caller(client)
            caller.send(*requests)
            turn = 0
            while not caller.is_done():
                turn += 1
                jump_clock(turn)
                await caller.another_event()
                if turn == 1:  # no request has more than two tokens yet
                    process_of(client).kill()
                    gate.unlink()
            check(caller, *requests)
            assert client.engines[0].supervisor.restarts.num_restarts == 1

        run(world)


def test_the_watchdog_ends_a_step_without_end_and_logs_its_stacks(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Heartbeats continue, since this step holds no lock; they report no progress."""
    poison = request("poison", [POISON_TOKEN])
    with running("poison=1&how=sleep", SHORT_STEPS) as client:

        async def world() -> None:
            caller = Caller(client)
            caller.send(poison)
            await caller.all_ended()
            message = caller.ends["poison"].message
            assert message is not None
            assert "was not done after" in message

        run(world)
    log = capfd.readouterr().err
    assert "most recent call first" in log
    assert "in die" in log


def test_only_the_engine_ends_and_no_other_child() -> None:
    """Processes that the operator's own code has started live on."""
    with subprocess.Popen(["sleep", "1000"]) as other:
        with running() as client:

            async def world() -> None:
                caller = Caller(client)
                process_of(client).kill()
                late = request("late")
                caller.send(late)
                await caller.all_ended()
                check(caller, late)

            run(world)
        assert other.poll() is None
        other.kill()


def test_an_engine_that_cannot_start_says_why() -> None:
    with pytest.raises(EngineStartError, match=r"^no such model: look for another$"):
        clients.start("fail=no such model: look for another")
    with pytest.raises(EngineStartError, match="did not start: its process ended with exit code 7"):
        clients.start("crash=exit")


def test_a_crash_loop_ends_with_a_clear_error_for_every_caller() -> None:
    timing = patient(max_failed_engines=4, restart_delay_seconds=0.01)
    with running("step=0.05", timing) as client:

        async def world() -> None:
            caller = Caller(client)
            caller.send(request("r", max_tokens=5))
            client.engines[0]._arguments = EngineArguments(model="fake?crash=exit")
            process_of(client).kill()
            await caller.until(lambda: caller.death is not None)
            assert "4 engines in a row ended" in str(caller.death)
            assert "exit code 7" in str(caller.death)
            with pytest.raises(EngineDeadError, match="4 engines in a row"):
                client.send([request("late")])
            client.send([Abort("r")])  # cleaning up raises no error

        run(world)


def test_requests_aborts_and_commands_while_there_is_no_engine(tmp_path: Path) -> None:
    old, gone, late = request("old", max_tokens=60), request("gone"), request("late")
    loading = tmp_path / "loading"
    with running(f"step=0.01&loading={loading}") as client:

        async def world() -> None:
            caller = Caller(client)
            caller.send(old)
            await caller.some_tokens("old")
            loading.touch()  # no other engine becomes ready
            process_of(client).kill()
            await eventually(lambda: client.engines[0].supervisor.state is not State.READY)
            assert await error_code(client.command(Pause())) == NO_ENGINE
            caller.send(gone, Abort("gone"), late)
            await caller.until(lambda: "gone" in caller.ends)
            assert caller.ends["gone"].finish_reason == "abort"
            loading.unlink()
            await eventually(lambda: client.snapshot().is_paused)
            assert not caller.tokens["late"]
            assert await error_code(client.command(Resume())) is None
            await caller.all_ended()
            check(caller, old, late)

        run(world)


def test_an_abort_that_the_engine_did_not_answer_before_it_ended() -> None:
    with running("step=0.01") as client:

        async def world() -> None:
            caller = Caller(client)
            caller.send(request("r", max_tokens=1000))
            await caller.some_tokens("r")
            process_of(client).send_signal(signal.SIGSTOP)
            caller.send(Abort("r"))
            process_of(client).kill()
            await caller.all_ended()
            assert caller.ends["r"].finish_reason == "abort"

        run(world)


def test_closing_from_another_thread() -> None:
    client = clients.start()

    async def world() -> None:
        Caller(client)
        await asyncio.to_thread(client.close)
        assert client.engines[0].supervisor.state is State.CLOSED

    run(world)


@pytest.mark.parametrize("does_stop", [True, False])
def test_closing_from_another_thread_does_not_wait_for_a_loop_that_does_not_answer(
    does_stop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "CLOSE_SECONDS", 0.5)
    client = clients.start()
    closing = threading.Thread(target=client.close, daemon=True)
    loop = asyncio.new_event_loop()

    async def world() -> None:
        Caller(client)
        loop.call_soon_threadsafe = lambda *_: None  # type: ignore[assignment, method-assign]
        closing.start()
        if not does_stop:  # but is blocked
            closing.join(clients.LIMIT)
            assert not closing.is_alive()

    loop.run_until_complete(world())
    closing.join(clients.LIMIT)
    assert not closing.is_alive()
    assert client.engines[0].supervisor.state is State.CLOSED
    loop.close()


def test_an_engine_that_breaks_the_protocol_is_replaced(gate: Path) -> None:
    one = request("r", max_tokens=100)
    with running(f"gate={gate}") as client:

        async def world() -> None:
            caller = Caller(client)
            caller.send(one)
            await caller.some_tokens("r")
            assert client.engines[0].supervisor.run is not None
            client.engines[0].supervisor.run.reader._num_read += 1  # as if a frame had been lost
            gate.unlink()
            await caller.all_ended()
            check(caller, one)
            assert client.engines[0].supervisor.restarts.num_restarts == 1

        run(world)


def test_a_client_may_be_closed_before_it_was_attached() -> None:
    client = clients.start()
    process = process_of(client)
    client.close()
    assert process.poll() is not None


def test_a_launched_engine_can_be_awaited_or_closed() -> None:
    arguments = EngineArguments(model="fake?")
    client = make_client(arguments, [ProcessLauncher(clients.FACTORY)], patient())
    client.launch()
    process = process_of(client)
    client.start()
    assert process_of(client) is process
    assert client.is_well()
    client.close()
    other = make_client(arguments, [ProcessLauncher(clients.FACTORY)])
    other.launch()
    launcher = other.engines[0].supervisor.launcher
    assert isinstance(launcher, ProcessLauncher)
    process, path = process_of(other), Path(launcher.address)
    other.close()
    assert process.poll() is not None
    assert not path.parent.exists()
