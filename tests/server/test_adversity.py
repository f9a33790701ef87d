"""A full disk, a clock that jumps and ten times the load do not affect any answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.tiny import make_model
from tests.server.engine import ChainRunner, FakeEngine
from tests.server.http.test_socket import Gate, get, post, wait_until
from tests.server.make import LIMIT, Client, events, serving

ROOT = Path(__file__).parents[2]
PROGRAM = """
import logging, sys
logging.basicConfig(level="DEBUG", format="%(message)s")
from octavo.options.engine import EngineArguments
from octavo.api.async_llm import AsyncLLM
from octavo.client.launcher import ProcessLauncher
from octavo.client.process import make_client
from octavo.client.restart_policy import Timing
from octavo.server.lifecycle import _say_ready, run
from tests.client import clients
from tests.server.make import patient

arguments = EngineArguments(model="fake?step=0.01", tokenizer=sys.argv[1])
client = make_client(arguments, [ProcessLauncher(clients.FACTORY)], clients.patient())
client.start()
llm = AsyncLLM.over(client, arguments)

def tell(life):
    with open(sys.argv[2], "w") as file:
        print(life.port, file=file)
    _say_ready(life)

code = run(patient(port=0), llm, tell)
llm.close()
sys.exit(code)
"""


def is_ready(port: int) -> bool:
    """Return whether the server is ready."""
    return get(port, "/health/ready").status_code == 200


def engine_of(number: int) -> int:
    """Return the engine's process among the children of a server, or 0 if there is none."""
    for task in Path(f"/proc/{number}/task").iterdir():
        children: list[str] = []
        with contextlib.suppress(OSError):  # a thread that has just ended
            children = (task / "children").read_text().split()
        for child in map(int, children):
            with contextlib.suppress(OSError):  # a process that has just ended
                if b"octavo.engine.process" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return child
    return 0


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
def test_a_full_disk_changes_nothing(tmp_path: Path) -> None:
    """A stream is complete though the log cannot be written and the engine dies."""
    port_file = tmp_path / "port"
    with Path("/dev/full").open("w") as full:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(make_model(tmp_path)), str(port_file)],
            cwd=ROOT,
            stdout=full,
            stderr=full,
        )
    try:
        wait_until(lambda: port_file.exists() and port_file.read_text().endswith("\n"))
        port = int(port_file.read_text())
        wait_until(lambda: is_ready(port))
        body = {"prompt": [5, 6], "max_tokens": 60, "ignore_eos": True, "return_token_ids": True}
        whole = post(port, "/v1/completions", body).json()
        os.kill(first := engine_of(process.pid), signal.SIGKILL)
        wait_until(lambda: engine_of(process.pid) not in (0, first))
        wait_until(lambda: is_ready(port))
        streamed = post(port, "/v1/completions", {**body, "stream": True})
        parts = [choice for event in events(streamed.text) for choice in event["choices"]]
        tokens = [token for part in parts for token in part["token_ids"] or ()]
        assert tokens == whole["choices"][0]["token_ids"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT) == 0
    finally:
        process.kill()
        process.wait()


# the clock


def test_a_clock_that_jumps_by_hours_changes_nothing(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers differ at most in `created` when the clock jumps at each reading."""

    async def ask(client: Client) -> list[Any]:
        fields = {"max_tokens": 30, "temperature": 0, "deadline_ms": 60_000}
        answers = await asyncio.gather(*(client.complete(**fields) for _ in range(5)))
        assert (await client.get("/health/ready")).status_code == 200
        return [(each["choices"], each["usage"]["completion_tokens"]) for each in answers]

    async def main() -> None:
        async with serving(directory) as client:
            calm = await ask(client)
            looks = iter(range(10**6))

            def jumping() -> float:
                return 1e9 + 3600.0 * (-1) ** next(looks) * (1 + next(looks) % 7)

            monkeypatch.setattr(time, "time", jumping)
            assert await ask(client) == calm
            assert client.server.metrics.disconnects.value() == 0

    asyncio.run(main())


# overload


@pytest.mark.parametrize("stream", [False, True])
def test_excess_requests_are_rejected_before_any_200(directory: Path, stream: bool) -> None:
    """Requests beyond the limits are rejected, and no others; every admitted one is complete."""
    gate = Gate()
    engine = FakeEngine(directory, runner=ChainRunner(gate), max_num_seqs=4)
    limits = {"max_running_sequences": 4, "max_waiting_requests": 6}

    async def main() -> None:
        async with serving(directory, engine, **limits) as client:
            order: list[int] = []

            async def ask(index: int) -> httpx.Response:
                body = {"prompt": [2 + index], "max_tokens": 12, "temperature": 0, "stream": stream}
                response = await client.post("/v1/completions", json=body)
                order.append(response.status_code)
                return response

            admission = client.server.admission
            asked = [asyncio.ensure_future(ask(index)) for index in range(4)]
            while admission.num_admitted < 4:
                await asyncio.sleep(0.001)
            asked += [asyncio.ensure_future(ask(index)) for index in range(4, 100)]
            while len(order) < 90:
                await asyncio.sleep(0.001)
            assert order == [429] * 90
            gate.is_open.set()
            responses = await asyncio.gather(*asked)
            served = [each for each in responses if each.status_code == 200]
            assert len(served) == 10
            for each in responses:
                assert each.status_code == 200 or int(each.headers["retry-after"]) >= 1
            for each in served:
                parts = events(each.text) if stream else [json.loads(each.text)]
                assert parts[-1]["choices"][0]["finish_reason"] == "length"
            assert (admission.num_open, admission.num_admitted, admission.waiting_bytes) == (
                0,
                0,
                0,
            )

    asyncio.run(main())
