"""An engine that is put to sleep: its process ends, and its requests continue when it wakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.client.engine_run import State
from octavo.core.request import Abort
from tests.client.clients import Caller, eventually, patient, process_of, request, run, running
from tests.sim.truth import whole_output

QUICK = patient(restart_delay_seconds=0.01, spare_delay_seconds=0.0)


@pytest.mark.parametrize("spare", [False, True])
def test_requests_continue_after_sleep_where_they_were(tmp_path: Path, spare: bool) -> None:
    """The engine's end counts as no death, and no request is suspected of it."""
    gate = tmp_path / "gate"
    gate.touch()

    async def world() -> None:
        with running(f"gate={gate}", QUICK, spare_engine=spare) as client:
            caller = Caller(client)
            asked = [request(str(number), (number, 5)) for number in range(1, 5)]
            caller.send(*asked)
            await caller.some_tokens("1", 2)
            if spare:
                await eventually(lambda: client.engines[0].supervisor.spare.is_usable)
            for _ in range(2):
                process = process_of(client)
                client.sleep()
                await eventually(lambda: client.is_sleeping)
                assert process.poll() is not None
                assert client.engines[0].supervisor.spare.run is None
                assert not client.is_well()
                client.sleep()
                client.wake_up()
                await eventually(client.is_well)
            client.sleep()
            client.wake_up()  # before the process has ended
            late = request("late", (9,))
            caller.send(late)
            gate.unlink()
            await caller.all_ended()
            for one in [*asked, late]:
                assert caller.tokens[one.request_id] == whole_output(one, 4096)[0]
            assert client.members[0].vitals.num_deaths == 0

    run(world)


def test_a_sleeping_engine_takes_requests_and_aborts_and_can_be_closed(tmp_path: Path) -> None:
    async def world() -> None:
        with running("", QUICK) as client:
            caller = Caller(client)
            client.sleep()
            await eventually(lambda: client.is_sleeping)
            caller.send(request("ended"), request("kept"))
            caller.send(Abort("ended"))
            await caller.until(lambda: "ended" in caller.ends)
            assert caller.ends["ended"].finish_reason == "abort"
            client.close()
            assert client.engines[0].supervisor.state is State.CLOSED
            client.sleep()
            client.wake_up()
            assert client.engines[0].supervisor.state is State.CLOSED

    run(world)
