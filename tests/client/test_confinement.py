"""Engines' processes are confined before they get a request, in all their threads."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.confine.filter import why_unavailable
from tests.client.clients import Caller, process_of, request, run, running
from tests.client.fake_engine import POISON_TOKEN
from tests.sim.truth import whole_output

pytestmark = pytest.mark.skipif(
    why_unavailable() is not None, reason="this kernel has no filters of system calls"
)


def test_all_threads_of_an_engine_are_confined() -> None:
    with running() as client:
        process = Path("/proc") / str(process_of(client).pid)
        threads = list((process / "task").iterdir())
        assert len(threads) > 1
        for thread in threads:
            lines = (thread / "status").read_text().splitlines()
            fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
            assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")
        limits = (process / "limits").read_text().splitlines()
        assert next(line for line in limits if line.startswith("Max core")).split()[4:6] == [
            "0",
            "0",
        ]


def test_an_engine_cannot_reach_files_network_or_other_processes() -> None:
    """A request makes the engine try all of them; if one were possible, the engine would end."""
    one = request("r", [1, POISON_TOKEN])
    with running("poison=1&how=escape") as client:

        async def world() -> None:
            caller = Caller(client)
            caller.send(one)
            await caller.all_ended()
            assert caller.tokens["r"] == whole_output(one, 4096)[0]
            assert client.engines[0].supervisor.restarts.num_restarts == 0

        run(world)


def test_an_engine_is_ended_before_the_front_end_when_memory_runs_out() -> None:
    with running() as client:
        mine = int(Path("/proc/self/oom_score_adj").read_text())
        path = Path("/proc") / str(process_of(client).pid) / "oom_score_adj"
        assert int(path.read_text()) > mine


def test_an_engine_does_not_get_the_servers_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OCTAVO_API_KEY", "VLLM_API_KEY", "LLAMA_API_KEY"):
        monkeypatch.setenv(name, "a-secret-key")
    one = request("r", [1, POISON_TOKEN])
    with running("poison=1&how=keys") as client:

        async def world() -> None:
            caller = Caller(client)
            caller.send(one)
            await caller.all_ended()
            assert client.engines[0].supervisor.restarts.num_restarts == 0

        run(world)
