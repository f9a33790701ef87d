"""The prompt workers: processes that render chat templates and tokenise prompts for the server.

Templates and texts are hostile input, so none of them is processed in the event loop. A worker has
limits of time and memory. One that exceeds a limit fails only the job that it was doing: it is
killed, and a new worker does the next job.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence

import msgspec

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
_CHUNK_BYTES = 1 << 18

_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[PreparedPrompt | Refused]
_decoder = msgspec.msgpack.Decoder(PreparedPrompt | Refused)
_Result = PreparedPrompt | Refused | Exception


class WorkerDiedError(Exception):
    """A worker that could not start, or from which no valid answer came."""


class PromptPool:
    """A bounded queue of jobs, and one task for each worker that takes jobs from it."""

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
        self._queue: asyncio.Queue[tuple[PromptJob, asyncio.Future[_Result]]]
        self._queue = asyncio.Queue(config.max_waiting_requests)
        self._tasks: list[asyncio.Task[None]] = []
        self._workers: set[Worker] = set()
        self._ended: list[Worker] = []  # killed, and not yet reaped
        self._has_started = asyncio.Event()

    async def start(self) -> None:
        """Start the workers, wait until one is ready, and have it compile the chat template."""
        self._begin()
        await self._has_started.wait()
        nothing = [{"role": "user", "content": ""}]
        template = self._config.chat_template
        with contextlib.suppress(ApiError):  # a model may have no template, or reject this
            await self.prepare(
                PromptJob(conversation=Conversation(messages=nothing, template=template))
            )

    async def prepare(self, job: PromptJob) -> PreparedPrompt:
        """Return the prompt's text and tokens; raise ApiError if they cannot be had."""
        self._begin()
        answer: asyncio.Future[_Result] = asyncio.get_running_loop().create_future()
        try:
            self._queue.put_nowait((job, answer))
        except asyncio.QueueFull:
            message = f"{self._queue.maxsize} prompts wait for a prompt worker, the most allowed"
            raise unavailable(f"{message}; try again", "preparation_full", 1) from None
        prepared = await answer
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
        while not self._queue.empty():
            self._queue.get_nowait()[1].cancel()
        for worker in [*self._workers, *self._launched]:
            self._kill(worker)
        self._launched.clear()
        for worker in self._ended:
            worker.wait()
        self._ended.clear()

    def _begin(self) -> None:
        if not self._tasks:
            loop = asyncio.get_running_loop()
            count = self._config.prompt_workers
            self._tasks = [loop.create_task(self._serve()) for _ in range(count)]

    async def _serve(self) -> None:
        """Keep one worker, and let it do one job after another."""
        worker: Worker | None = None
        while True:
            worker = worker or await self._start_worker()
            self._has_started.set()
            job, answer = await self._queue.get()
            if answer.done():  # the client is gone
                continue
            try:
                worker, result = await self._do(worker, job)
            except asyncio.CancelledError:
                answer.cancel()
                raise
            except Exception as error:  # a bug must not end this task, or all prompts would wait
                worker, result = None, error
            if not answer.done():
                answer.set_result(result)

    async def _do(self, worker: Worker | None, job: PromptJob) -> tuple[Worker | None, _Result]:
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
                    return worker, await worker.do(job)
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

    @classmethod
    def launch(cls, config: ServerSettings, path: str) -> Worker:
        """Start a process that reads the tokenizer at `path`, without waiting for it."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        limit = max(config.template_seconds, config.tokenize_seconds) + SPARE_SECONDS
        arguments = ("-m", "octavo.text.prompt_worker", str(limit), path)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
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

    async def do(self, job: PromptJob) -> PreparedPrompt | Refused:
        """Send a job and return the answer; raise WorkerDiedError if none comes."""
        try:
            frame = _encode(job)
        except OverflowError:  # JSON has such numbers, msgpack does not
            return Refused(message="a number has more than 64 bits; send it as a string")
        try:
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(self._connection, LENGTH.pack(len(frame)) + frame)
        except OSError as error:
            raise WorkerDiedError from error
        try:
            return _decoder.decode(await self._read())
        except msgspec.DecodeError as error:
            raise WorkerDiedError from error

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
