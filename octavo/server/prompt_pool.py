"""The prompt workers: processes that render chat templates and tokenise prompts for the server.

Templates and texts are hostile input, so none of them is processed in the event loop. A worker has
limits of time and memory. One that exceeds a limit fails only the job that it was doing: it is
killed, and a new worker does the next job. Keys take turns, and jobs that may be slow (long texts,
templates of clients) have a worker of their own, so that others do not wait behind them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from octavo import env
from octavo.server.http.errors import ApiError, invalid, unavailable
from octavo.server.settings import ServerSettings
from octavo.text.prompt_worker import (
    LENGTH,
    MAX_FRAME_BYTES,
    Conversation,
    PreparedPrompt,
    PromptJob,
    Refused,
)

log = logging.getLogger(__name__)

START_SECONDS = 60.0  # for a worker to read its tokenizer
SPARE_SECONDS = 1.0  # a worker ends itself so long after the server should have killed it
MAX_TRIES = 2  # a worker can be killed from outside, which is not the job's fault
HEAVY_CHARACTERS = 1 << 16  # longer jobs may take more than some milliseconds
# A worker is killed so long after its client has left: most jobs end sooner, and a new worker takes
# ten times as long to start.
LEFT_SECONDS = 0.05
_CHUNK_BYTES = 1 << 18

_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[PreparedPrompt | Refused]
_decoder = msgspec.msgpack.Decoder(PreparedPrompt | Refused)
_Result = PreparedPrompt | Refused | Exception
_Waiting = tuple[PromptJob, asyncio.Future[_Result]]


class WorkerDiedError(Exception):
    """A worker that could not start, or from which no valid answer came."""


class _Lane:
    """Jobs of one kind that wait for a worker; the keys that sent them take turns."""

    def __init__(self) -> None:
        self.num_workers = 0
        self._num_jobs = asyncio.Semaphore(0)
        self._jobs: dict[str, deque[_Waiting]] = {}  # by owner; the first owner is next

    def put(self, owner: str, waiting: _Waiting) -> None:
        self._jobs.setdefault(owner, deque()).append(waiting)
        self._num_jobs.release()

    async def get(self) -> _Waiting:
        """Wait for a job; its owner's next one has its turn after those of the others."""
        await self._num_jobs.acquire()
        owner, jobs = next(iter(self._jobs.items()))
        del self._jobs[owner]
        waiting = jobs.popleft()
        if jobs:
            self._jobs[owner] = jobs
        return waiting

    def cancel(self) -> None:
        """Cancel all jobs that wait."""
        for jobs in self._jobs.values():
            for _, answer in jobs:
                answer.cancel()
        self._jobs.clear()


class PromptPool:
    """Two lanes of jobs, quick and heavy, and one task for each worker that takes jobs from one."""

    def __init__(
        self,
        config: ServerSettings,
        path: str,
        count_killed: Callable[[], None],
        workers: Sequence[Worker] = (),
    ) -> None:
        self._config = config
        self._path = path  # a model's directory or GGUF file, with the tokenizer
        self._launched = list(workers)  # started before the pool, and not in use yet
        self._count_killed = count_killed
        self._quick, self._heavy = _Lane(), _Lane()
        self._num_waiting = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._workers: set[Worker] = set()
        self._ended: list[Worker] = []  # killed, and not yet reaped
        self._has_started = asyncio.Event()

    async def start(self) -> None:
        """Start the workers, wait until one is ready, and have it compile the chat template."""
        self._staff(self._quick, self._config.prompt_workers)
        await self._has_started.wait()
        nothing = [{"role": "user", "content": ""}]
        template = self._config.chat_template
        with contextlib.suppress(ApiError):  # a model may have no template, or reject this
            await self.prepare(
                PromptJob(conversation=Conversation(messages=nothing, template=template))
            )

    async def prepare(self, job: PromptJob, owner: str = "") -> PreparedPrompt:
        """Return the prompt's text and tokens; raise ApiError if they cannot be had.

        `owner` is the key of the client. If this call is cancelled, its job ends soon.
        """
        if self._is_heavy(job):
            lane = self._heavy
            self._staff(lane, 1)
        else:
            lane = self._quick
            self._staff(lane, self._config.prompt_workers)
        limit = self._config.max_waiting_requests
        if self._num_waiting >= limit:
            message = f"{limit} prompts wait for a prompt worker, the most allowed"
            raise unavailable(f"{message}; try again", "preparation_full", 1)
        answer: asyncio.Future[_Result] = asyncio.get_running_loop().create_future()
        self._num_waiting += 1
        try:
            lane.put(owner, (job, answer))
            prepared = await answer
        finally:
            self._num_waiting -= 1
        if isinstance(prepared, Exception):
            raise prepared
        if isinstance(prepared, Refused):
            raise invalid(prepared.message, prepared.param or _default_param(job), prepared.code)
        if job.text is not None:  # the worker does not send it back
            return msgspec.structs.replace(prepared, text=job.text)
        return prepared

    async def close(self) -> None:
        """Kill the workers; jobs that are not done are cancelled."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        self._quick.cancel()
        self._heavy.cancel()
        for worker in [*self._workers, *self._launched]:
            self._kill(worker)
        self._launched.clear()
        for worker in self._ended:
            worker.wait()
        self._ended.clear()

    def _is_heavy(self, job: PromptJob) -> bool:
        """Return whether the job may keep a worker busy for long."""
        if job.conversation is None:
            return len(job.text or "") > HEAVY_CHARACTERS
        if job.conversation.template not in (None, self._config.chat_template):
            return True  # a client's own
        if job.conversation.documents:
            return True
        return _num_characters(job.conversation.messages) > HEAVY_CHARACTERS

    def _staff(self, lane: _Lane, count: int) -> None:
        """Give a lane its workers, unless it has them."""
        while lane.num_workers < count:
            lane.num_workers += 1
            self._tasks.append(asyncio.get_running_loop().create_task(self._serve(lane)))

    async def _serve(self, lane: _Lane) -> None:
        """Keep one worker, and let it do one job after another."""
        worker: Worker | None = None
        while True:
            worker = worker or await self._start_worker()
            self._has_started.set()
            job, answer = await lane.get()
            if answer.done():  # the client has left
                continue
            try:
                worker, result = await self._do(worker, job, answer)
            except asyncio.CancelledError:
                answer.cancel()
                raise
            except Exception as error:  # a bug must not end this task, or all prompts would wait
                if worker is not None:
                    self._kill(worker)
                worker, result = None, error
            if not answer.done():
                answer.set_result(result)

    async def _do(
        self, worker: Worker | None, job: PromptJob, answer: asyncio.Future[_Result]
    ) -> tuple[Worker | None, _Result]:
        """Return a job's result, and the worker if it can do more jobs."""
        config = self._config
        seconds = config.template_seconds if job.conversation else config.tokenize_seconds
        for _ in range(MAX_TRIES):
            worker = worker or await self._start_worker()
            if worker is None:
                message = "no prompt worker can be started; the server's log has the reason"
                return None, unavailable(message, "prompt_worker")
            try:
                async with asyncio.timeout(seconds):
                    return worker, await worker.do(job, answer)
            except TimeoutError:
                self._kill(worker)
                self._count_killed()
                what = (
                    "rendering the chat template" if job.conversation else "tokenising the prompt"
                )
                message = f"{what} took more than {seconds:g} s, which is the limit"
                return None, invalid(message, _default_param(job))
            except WorkerDiedError:
                self._kill(worker)
                self._count_killed()
                if answer.done():  # the client has left, and the worker was killed for it
                    return None, WorkerDiedError()
                worker = None
                log.warning("a prompt worker died; its prompt is tried once more")
        message = f"the prompt worker died {MAX_TRIES} times while it prepared the prompt"
        return None, invalid(f"{message}; make it smaller", _default_param(job))

    async def _start_worker(self) -> Worker | None:
        """Return a new worker that is ready; log an error and return None if it fails."""
        self._ended = [worker for worker in self._ended if not worker.has_ended()]
        try:
            if self._launched:
                worker = self._launched.pop()
            else:
                worker = Worker.launch(self._config, self._path)
        except OSError as error:
            log.error("a prompt worker cannot be started: %s", error)
            return None
        try:
            await worker.become_ready()
        except BaseException as error:
            self._kill(worker)
            if not isinstance(error, WorkerDiedError):
                raise
            log.error("a prompt worker did not start: %s", error)
            return None
        self._workers.add(worker)
        return worker

    def _kill(self, worker: Worker) -> None:
        """End a worker without waiting: releasing its memory can take a while."""
        self._workers.discard(worker)
        self._ended.append(worker)
        worker.kill()


class Worker:
    """One process that runs `octavo.text.prompt_worker`, and the socket to it."""

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket) -> None:
        self._process = process
        self._connection = connection
        self._is_ready = False
        self._answer: asyncio.Future[_Result] | None = None  # of the job that it is doing

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

    async def become_ready(self) -> None:
        """Wait until the process has read its tokenizer."""
        if self._is_ready:
            return
        try:
            async with asyncio.timeout(START_SECONDS):
                await self._read()
        except TimeoutError:
            raise WorkerDiedError(f"it was not ready after {START_SECONDS:g} s") from None
        except WorkerDiedError:
            self.kill()
            raise WorkerDiedError(f"it ended with exit status {self.wait()}") from None
        self._is_ready = True

    async def do(self, job: PromptJob, answer: asyncio.Future[_Result]) -> PreparedPrompt | Refused:
        """Send a job and return the result; raise WorkerDiedError if none comes.

        If `answer` is cancelled, the process is killed unless it is done soon.
        """
        try:
            frame = _encode(job)
        except OverflowError:  # JSON has such numbers, msgpack does not
            return Refused(message="a number has more than 64 bits; send it as a string")
        try:
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(self._connection, LENGTH.pack(len(frame)) + frame)
        except OSError as error:
            raise WorkerDiedError from error
        self._answer = answer
        answer.add_done_callback(self._limit_abandoned)
        try:
            return _decoder.decode(await self._read())
        except msgspec.DecodeError as error:
            raise WorkerDiedError from error
        finally:
            self._answer = None

    def _limit_abandoned(self, answer: asyncio.Future[_Result]) -> None:
        """Give a job whose client has left a little more time."""
        if answer.cancelled() and self._answer is answer:
            answer.get_loop().call_later(LEFT_SECONDS, self._end_abandoned, answer)

    def _end_abandoned(self, answer: asyncio.Future[_Result]) -> None:
        if self._answer is answer:
            self._process.kill()  # the task that reads from it then finds the end

    def kill(self) -> None:
        """Kill the process; it is reaped when `has_ended` or `wait` finds that it has ended."""
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

    async def _read(self) -> bytearray:
        loop = asyncio.get_running_loop()
        data = bytearray()
        length = LENGTH.size
        while len(data) < length:
            try:
                received = await loop.sock_recv(self._connection, _CHUNK_BYTES)
            except OSError as error:
                raise WorkerDiedError from error
            data += received
            if len(data) >= LENGTH.size:
                length = LENGTH.size + LENGTH.unpack_from(data)[0]
            if not received or length > MAX_FRAME_BYTES:
                raise WorkerDiedError
        del data[: LENGTH.size]
        return data


def _default_param(job: PromptJob) -> str:
    """Return the field at fault, for errors that do not name it."""
    if job.conversation is None:
        return "prompt"
    return "messages" if job.conversation.template is None else "chat_template"


def _num_characters(messages: list[dict[str, Any]]) -> int:
    """Return the length of the messages' texts."""
    total = 0
    for message in messages:
        for value in message.values():
            parts = value if isinstance(value, list) else (value,)
            for part in parts:
                text = part.get("text") if isinstance(part, dict) else getattr(part, "text", part)
                total += len(text) if isinstance(text, str) else 0
    return total
