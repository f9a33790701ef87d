"""The engines behind HTTP: how each server is started, and its memory."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers import http_client, processes
from benchmarks.peers.cases import Case
from benchmarks.peers.engines import EngineError, Metrics
from octavo.env import child_environment

START_SECONDS = 900
PATIENCE_SECONDS = 10
WARM_REQUESTS, WARM_TOKENS = 4, 8
WEIGHED_SECONDS = 2.0  # between two looks at the memory, which a server is held up by


@dataclass
class ServerEngine:
    """A server with OpenAI's completions.

    `command` contains {port}, and {streams} and {context} where the server is configured with
    them. A server that starts slowly is kept from round to round, and stopped in between.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    log: Path = Path(os.devnull)
    kept: bool = False
    version: str = ""
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _port: int = field(default=0, init=False)

    def measure(self, case: Case, seed: int) -> Metrics:
        with self.serving(case) as port:
            warm = case.prompts(-seed - 1)[:WARM_REQUESTS]
            try:
                asyncio.run(http_client.ask(port, warm, WARM_TOKENS, len(warm)))
                return asyncio.run(self._measured(case, seed))
            except (OSError, TimeoutError, http_client.ClientError) as error:
                raise EngineError(f"{error}; the log is {self.log}") from error

    @contextlib.contextmanager
    def serving(self, case: Case) -> Iterator[int]:
        """Start the server, or let it go on; yield its port; stop or end it."""
        if self._process is None:
            self._start(case)
        assert self._process is not None
        processes.go_on(self._process.pid)
        yield self._port
        if self.kept:
            processes.stop(self._process.pid)
        else:
            self.close()

    def close(self) -> None:
        if self._process is not None:
            processes.end(self._process, PATIENCE_SECONDS)
            self._process = None

    async def _measured(self, case: Case, seed: int) -> Metrics:
        assert self._process is not None
        weighing = asyncio.create_task(_weigh(self._process.pid))
        began, used = time.perf_counter(), time.thread_time()
        answers = await http_client.ask(
            self._port, case.prompts(seed), case.output_tokens, case.streams
        )
        client_share = (time.thread_time() - used) / (time.perf_counter() - began)
        weighing.cancel()
        last = processes.memory_mb(self._process.pid)
        most = max([last, *await weighing])
        return {
            **http_client.figures(answers, case.output_tokens),
            "memory_mb": most[0],
            "resident_mb": most[1],
            "client_share": client_share,
        }

    def _start(self, case: Case) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        context = case.streams * 2 * (case.prompt_tokens + case.output_tokens)
        filled = {"port": self._port, "streams": case.streams, "context": context}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [word.format(**filled) for word in self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=child_environment(self.environment),
                start_new_session=True,
            )
        began = time.monotonic()
        while not self._is_ready():
            if self._process.poll() is not None:
                self._process = None
                raise EngineError(f"{self.name} did not start; its log is {self.log}")
            if time.monotonic() - began > START_SECONDS:
                raise EngineError(f"{self.name} was not ready after {START_SECONDS} s")
            time.sleep(0.1)

    def _is_ready(self) -> bool:
        asked = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)
        try:
            asked.request("GET", "/health")
            return asked.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            asked.close()


async def _weigh(process: int) -> list[tuple[float, float]]:
    """Sample the memory until the case ends."""
    found: list[tuple[float, float]] = []
    try:
        while True:
            await asyncio.sleep(WEIGHED_SECONDS)
            found.append(await asyncio.to_thread(processes.memory_mb, process))
    except asyncio.CancelledError:
        return found
