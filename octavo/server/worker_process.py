"""One prompt worker: its process, the socket to it, and the jobs that it was sent."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from octavo import env
from octavo.server.settings import ServerSettings
from octavo.text.prompt_worker import LENGTH, MAX_FRAME_BYTES, PreparedPrompt, Refused

START_SECONDS = 60.0  # for a worker to read its tokenizer
SPARE_SECONDS = 1.0  # a worker ends itself so long after the server should have killed it
# A worker is killed so long after its client has left: most jobs end sooner, and a new worker takes
# ten times as long to start.
LEFT_SECONDS = 0.05
_CHUNK_BYTES = 1 << 18

_decoder: msgspec.msgpack.Decoder[PreparedPrompt | Refused]
_decoder = msgspec.msgpack.Decoder(PreparedPrompt | Refused)
Result = PreparedPrompt | Refused | Exception


class WorkerDiedError(Exception):
    """A worker that could not start, or from which no valid answer came."""


class WorkerLateError(Exception):
    """A worker that had not answered within a job's limit of time."""


@dataclass(slots=True)
class SentJob:
    """A job on its way through a worker, which answers it once."""

    owner: str
    frame: bytes  # with its length in front
    seconds: float  # the limit of time, from when the job before it was answered
    answer: asyncio.Future[Result]
    worker: Worker | None = None  # that has it
    num_deaths: int = 0  # of workers that were doing it

    def end(self, result: Result) -> None:
        """Set the answer, unless the client has left."""
        if not self.answer.done():
            self.answer.set_result(result)


class Worker:
    """One process that runs `octavo.text.prompt_worker`, and the jobs that it was sent.

    It answers them in order. Several are sent ahead, so that it does not wait for the event loop
    between two of them.
    """

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket) -> None:
        self._process = process
        self._connection = connection
        self._loop: asyncio.AbstractEventLoop | None = None  # that it is attached to
        self._is_ready = False
        self._received = bytearray()
        self._unsent = bytearray()
        self._is_blocked = False  # until the socket takes more of it
        self._timer: asyncio.TimerHandle | None = None  # of the first job
        self._on_answer: Callable[[Worker], None] = lambda worker: None
        self.jobs: deque[SentJob] = deque()  # sent, and not answered
        self._started: asyncio.Future[None]
        self.ended: asyncio.Future[Exception]  # the reason why no further answer will come

    @classmethod
    def launch(cls, config: ServerSettings, path: str) -> Worker:
        """Start a process that reads the tokenizer at `path`, without waiting for it."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        limit = max(config.template_seconds, config.tokenize_seconds) + SPARE_SECONDS
        # -P: a model's directory may be the current one, and must not provide modules.
        arguments = ("-P", "-m", "octavo.text.prompt_worker", str(limit), path)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env=env.environment_without_secrets(),
                start_new_session=True,  # a Ctrl-C at the terminal is for the server to handle
            )
        return cls(process, ours)

    async def become_ready(self, on_answer: Callable[[Worker], None]) -> None:
        """Wait until the process has read its tokenizer; raise WorkerDiedError if it cannot.

        `on_answer` is called after each answer, in the event loop that runs now.
        """
        self._loop = loop = asyncio.get_running_loop()
        self._on_answer = on_answer
        self.ended, self._started = loop.create_future(), loop.create_future()
        loop.add_reader(self._connection, self._read)
        if self._is_ready:
            return
        either: set[asyncio.Future[Any]] = {self.ended, self._started}
        try:
            async with asyncio.timeout(START_SECONDS):
                await asyncio.wait(either, return_when="FIRST_COMPLETED")
        except TimeoutError:
            raise WorkerDiedError(f"it was not ready after {START_SECONDS:g} s") from None
        if self.ended.done():
            self.kill()
            raise WorkerDiedError(f"it ended with exit status {self.wait()}")

    def send(self, job: SentJob) -> None:
        """Send a job, which is answered after those sent before it."""
        job.worker = self
        self.jobs.append(job)
        if len(self.jobs) == 1:
            self._begin(job)
        self._unsent += job.frame
        if not self._is_blocked:
            self._flush()

    def limit(self, job: SentJob) -> None:
        """Give a job whose client has left only a little more time."""
        if self._loop is not None and self.jobs and self.jobs[0] is job:
            self._begin(job)

    def detach(self) -> None:
        """Leave the event loop."""
        if self._loop is not None:
            if self._timer is not None:
                self._timer.cancel()
            self._loop.remove_reader(self._connection)
            self._loop.remove_writer(self._connection)
            self._loop = None

    def kill(self) -> None:
        """Kill the process; it is reaped when `has_ended` or `wait` finds that it has ended."""
        self.detach()
        self._process.kill()
        self._connection.close()

    def end(self) -> None:
        """Kill the process, and wait until it has ended."""
        self.kill()
        self.wait()

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def wait(self) -> int:
        """Wait until the process has ended, and return its exit status."""
        return self._process.wait()

    def _begin(self, job: SentJob) -> None:
        """Start the time of the first job."""
        assert self._loop is not None
        if self._timer is not None:  # of the job before it, or its own if its client has left
            self._timer.cancel()
        seconds = LEFT_SECONDS if job.answer.done() else job.seconds
        self._timer = self._loop.call_later(seconds, self._stop, WorkerLateError())

    def _stop(self, reason: Exception) -> None:
        """Take no further answer."""
        self.detach()
        if not self.ended.done():
            self.ended.set_result(reason)

    def _flush(self) -> None:
        """Send what the socket takes now, and the rest when it takes more."""
        try:
            sent = self._connection.send(self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._stop(WorkerDiedError())
            return
        del self._unsent[:sent]
        assert self._loop is not None
        if self._unsent and not self._is_blocked:
            self._loop.add_writer(self._connection, self._flush)
        elif self._is_blocked and not self._unsent:
            self._loop.remove_writer(self._connection)
        self._is_blocked = bool(self._unsent)

    def _read(self) -> None:
        """Take the answers that have arrived."""
        try:
            received = self._connection.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            self._stop(WorkerDiedError())
            return
        data = self._received
        data += received
        try:
            while len(data) >= LENGTH.size and not self.ended.done():
                length = LENGTH.size + LENGTH.unpack_from(data)[0]
                if length > MAX_FRAME_BYTES:
                    raise WorkerDiedError
                if len(data) < length:
                    return
                if not self._is_ready:  # the first frame says so
                    self._is_ready = True
                    self._started.set_result(None)
                else:
                    self._answer(_decoder.decode(memoryview(data)[LENGTH.size : length]))
                del data[:length]
        except msgspec.DecodeError:
            self._stop(WorkerDiedError())
        except Exception as error:  # a bug must not let all prompts wait
            self._stop(error)

    def _answer(self, result: PreparedPrompt | Refused) -> None:
        """End the first job with its result, and begin the time of the next one."""
        answer = self.jobs.popleft().answer
        if not answer.done():  # else the client has left
            answer.set_result(result)
        if self.jobs:
            self._begin(self.jobs[0])
        elif self._timer is not None:
            self._timer.cancel()
        self._on_answer(self)
