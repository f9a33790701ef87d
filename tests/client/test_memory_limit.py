"""A real control group: its limit is seen, and an engine that it ends is replaced."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.clients import Caller, process_of, request, run, running
from tests.client.fake_engine import POISON_TOKEN
from tests.sim.truth import whole_output

pytestmark = pytest.mark.slow

LIMIT_BYTES = 200 << 20
ROOT = Path(__file__).parents[2]
GROUPS = Path("/sys/fs/cgroup")
REPORT = "from octavo.observe.machine import memory; print(memory())"


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group with little memory, below that of this process."""
    own = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        own[controllers] = path.lstrip("/")
    for controller, top, limit in (
        ("memory", GROUPS / "memory", "memory.limit_in_bytes"),
        ("", GROUPS, "memory.max"),
    ):
        if controller not in own:
            continue
        made = top / own[controller] / f"octavo-test-{os.getpid()}"
        with contextlib.suppress(OSError):
            made.mkdir()
            try:
                (made / limit).write_text(str(LIMIT_BYTES))
                yield made
                return
            finally:
                made.rmdir()
    pytest.skip("this user may make no control group with a limit of memory")


def test_the_limit_of_a_control_group_is_what_an_engine_may_use(group: Path) -> None:
    script = f'echo $$ > {group}/cgroup.procs && exec {sys.executable} -c "{REPORT}"'
    ran = subprocess.run(["sh", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert f"total={LIMIT_BYTES}, " in ran.stdout
    assert "limited_by='the container'" in ran.stdout


def test_an_engine_that_takes_too_much_memory_is_ended_and_its_requests_continue(
    group: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first engine is in the group, and the kernel ends it; the second is not in it."""
    hungry, other = request("hungry", [POISON_TOKEN], max_tokens=5), request("other", [1])
    with running("poison=1&how=fill&step=0.001") as client:
        (group / "cgroup.procs").write_text(str(process_of(client).pid))

        async def world() -> None:
            caller = Caller(client)
            caller.send(hungry, other)
            await caller.all_ended()
            for one in (hungry, other):
                assert caller.tokens[one.request_id] == whole_output(one, 4096)[0]
            assert client.engines[0].supervisor.restarts.num_restarts == 1

        run(world)
    assert "ended by SIGKILL, and the kernel has ended a process because memory" in caplog.text
