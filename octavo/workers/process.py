"""One prompt worker: its process, the socket to it, and the jobs that it was sent."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import msgspec

from octavo.text.token_bytes import TokenizerError
from octavo.text.token_table import PackedTable, TokenTable, unpack
from octavo.workers.frames import LENGTH, AnswerFrames
from octavo.workers.jobs import Answer, Duty, Ready, Refused, TableJob
from octavo.workers.launch import launch


class WorkerLimits(Protocol):
    """The number of workers, the limits of one job, and how bodies are read."""

    @property
    def prompt_workers(self) -> int:
        """The processes that make prompts."""

    @property
    def template_seconds(self) -> float:
        """The time to render a chat template."""

    @property
    def tokenize_seconds(self) -> float:
        """The time to tokenise a text."""

    @property
    def shape_seconds(self) -> float:
        """The time to compile a shape."""

    @property
    def prompt_worker_bytes(self) -> int:
        """The memory of a job."""

    @property
    def max_waiting_requests(self) -> int:
        """The most jobs that wait."""

    @property
    def chat_template(self) -> str | None:
        """The operator's template; None: the model's own."""

    @property
    def body_reader(self) -> str:
        """The function, as `module:name`, that returns the reader of large bodies."""


START_SECONDS = 60.0  # for a worker to read its tokenizer
SPARE_SECONDS = 1.0  # a worker ends itself so long after the server should have killed it
# A worker is killed so long after its client has left: most jobs end sooner, and a new worker takes
# ten times as long to start.
LEFT_SECONDS = 0.05
END_SECONDS = 0.2  # for a process that has closed its socket to end
_MAX_PIECES = 64  # that one call sends

_MAX_ERROR_BYTES = 4096  # of what a worker that did not start has written to stderr

_encode = msgspec.msgpack.Encoder().encode
Result = Answer | Exception


class WorkerDiedError(Exception):
    """A worker that could not start, or from which no valid answer came."""


class WorkerLateError(Exception):
    """A worker that had not answered within a job's limit of time."""


@dataclass(slots=True, eq=False)
class SentJob:
    """A job on its way through a worker, which answers it once."""

    owner: str
    frame: Sequence[bytes]  # in pieces
    seconds: float  # the limit of time, from when the job before it was answered
    answer: asyncio.Future[Result]
    worker: Worker | None = None  # that has it
    num_deaths: int = 0  # of workers that were doing it

    def end(self, result: Result) -> None:
        """Set the answer, unless the client has left."""
        if not self.answer.done():
            self.answer.set_result(result)


class Worker:
    """One process that runs `PROGRAM`, and the jobs that it was sent.

    It answers them in order. Several are sent ahead, so that it does not wait for the event loop
    between two of them.
    """

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket) -> None:
        self._process = process
        self._connection = connection
        self._loop: asyncio.AbstractEventLoop | None = None  # that it is attached to
        self._is_ready = False
        self._answers = AnswerFrames()
        self._unsent: deque[memoryview] = deque()
        self._is_blocked = False  # until the socket takes more of it
        self._timer: asyncio.TimerHandle | None = None  # of the first job
        self._on_answer: Callable[[Worker], None] = lambda worker: None
        self.jobs: deque[SentJob] = deque()  # sent, and not answered
        self._started: asyncio.Future[None]
        self.ended: asyncio.Future[Exception]  # the reason why no further answer will come

    @classmethod
    def launch(cls, limits: WorkerLimits, path: str, duty: Duty = "prompts") -> Worker:
        """Start a process that reads the tokenizer at `path`, without waiting for it."""
        limit = max(limits.template_seconds, limits.tokenize_seconds)
        limit = (limits.shape_seconds if duty == "shapes" else limit) + SPARE_SECONDS
        process, connection = launch(
            limit, limits.prompt_worker_bytes, duty, path, limits.body_reader
        )
        connection.setblocking(False)
        return cls(process, connection)

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
            raise WorkerDiedError(_not_in_time()) from None
        if self.ended.done():
            why = str(self.ended.result())
            if not why:  # waiting for its end would hold the event loop
                why = self._why_ended(await asyncio.to_thread(self._exit_status))
            raise WorkerDiedError(why)

    def read_table(self) -> TokenTable:
        """Wait, without an event loop, and return the tokens of the model.

        Raise TokenizerError for a tokenizer that cannot be read within the limits.
        """
        try:
            first = self._answers.wait(self._connection, START_SECONDS)
            if isinstance(first, Ready):
                self._is_ready = True
                frame = _encode(TableJob())
                self._connection.sendall(LENGTH.pack(len(frame)) + frame)
                first = self._answers.wait(self._connection, START_SECONDS)
        except TimeoutError:
            raise TokenizerError(
                f"the model's tokenizer cannot be read: {_not_in_time()}"
            ) from None
        except OSError:
            why = self._why_ended(self._exit_status())
            raise TokenizerError(f"the model's tokenizer cannot be read: {why}") from None
        self._connection.setblocking(False)
        if isinstance(first, Refused):
            raise TokenizerError(first.message)
        assert isinstance(first, PackedTable)
        return unpack(first)

    def _exit_status(self) -> int:
        """Wait until the process has ended, and kill it if it does not; return its exit status."""
        try:
            return self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _why_ended(self, status: int) -> str:
        """Return why the process has ended by itself, from its exit status and its stderr."""
        written = b""
        if self._process.stderr is not None:
            os.set_blocking(self._process.stderr.fileno(), False)
            written = self._process.stderr.read(_MAX_ERROR_BYTES) or b""
        self.kill()
        text = written.decode("utf-8", "replace")
        # A failure of the tokenizers' library ends with notes about its own settings.
        lines = [line for line in text.splitlines() if line.strip() and "note: " not in line]
        said = f": {lines[-1]!a}" if lines else ""
        if status == -signal.SIGALRM:  # program.py bounds its time by an alarm
            return f"its process has taken too long, as on a machine that is busy{said}"
        if status < 0:
            return f"its process was ended by signal {-status}, as when memory runs out{said}"
        return f"its process ended with exit status {status}{said}"

    def send(self, job: SentJob) -> None:
        """Send a job, which is answered after those sent before it."""
        job.worker = self
        self.jobs.append(job)
        if len(self.jobs) == 1:
            self._begin(job)
        self._unsent.append(memoryview(LENGTH.pack(sum(map(len, job.frame)))))
        self._unsent.extend(map(memoryview, job.frame))
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
        if self._process.stderr is not None:
            self._process.stderr.close()

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
        unsent = self._unsent
        try:
            # One call only: while the worker reads, the socket would take many megabytes.
            sent = self._connection.sendmsg(list(islice(unsent, _MAX_PIECES)))
            while sent:
                part = unsent.popleft()
                if sent < len(part):
                    unsent.appendleft(part[sent:])
                sent -= min(sent, len(part))
        except BlockingIOError:
            pass
        except OSError:
            self._stop(WorkerDiedError())
            return
        assert self._loop is not None
        if self._unsent and not self._is_blocked:
            self._loop.add_writer(self._connection, self._flush)
        elif self._is_blocked and not self._unsent:
            self._loop.remove_writer(self._connection)
        self._is_blocked = bool(self._unsent)

    def _read(self) -> None:
        """Take the answers that have arrived."""
        try:
            self._answers.receive(self._connection)
            while not self.ended.done() and (answer := self._answers.next()) is not None:
                if self._is_ready:
                    self._answer(answer)
                elif isinstance(answer, Ready):  # the first frame says so
                    self._is_ready = True
                    self._started.set_result(None)
                else:
                    self._stop(WorkerDiedError(getattr(answer, "message", "")))
        except BlockingIOError:
            pass
        except (OSError, msgspec.DecodeError):
            self._stop(WorkerDiedError())
        except Exception as error:  # a bug must not let all prompts wait
            self._stop(error)

    def _answer(self, result: Answer) -> None:
        """End the first job with its result, and begin the time of the next one."""
        answer = self.jobs.popleft().answer
        if not answer.done():  # else the client has left
            answer.set_result(result)
        if self.jobs:
            self._begin(self.jobs[0])
        elif self._timer is not None:
            self._timer.cancel()
        self._on_answer(self)


def _not_in_time() -> str:
    return f"its process was not ready after {START_SECONDS:g} s"
