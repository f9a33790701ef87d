"""Answers the lines of several batches: as many at once as there is room for, in turn.

A line that the server could not try (429, 503) is tried again later. A line has been answered when
its result is on the disk, so that a kill costs the lines that are on their way and no others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, deque
from collections.abc import Callable

from octavo.serving.batches.calls import Calls, Reply
from octavo.serving.batches.disk import in_thread
from octavo.serving.batches.input_file import InputFile
from octavo.serving.batches.lines import InvalidLineError, answered, call_name, unanswered
from octavo.serving.batches.results import MAX_RESULT_BYTES, Result, ResultsFile

log = logging.getLogger(__name__)

REST_SECONDS = 0.5  # after a request that could not be tried
DISK_SECONDS = 5.0  # between attempts to write
MAX_ATTEMPTS = 3  # at a line that meets unexpected errors
_LATER = (429, 503)
ERROR_BYTES = 256  # roughly the size of the result of a line without an answer


class Job:
    """One batch on its way: which lines wait, which are being answered, and the results."""

    def __init__(
        self, name: str, owner: str, file: InputFile, results: ResultsFile, *, is_background: bool
    ) -> None:
        self.name = name
        self.owner = owner
        self.file = file
        self.results = results
        self.is_background = is_background
        self.waiting = deque(each for each in range(file.num_lines) if each not in results)
        self.tasks: set[asyncio.Task[None]] = set()
        self.is_over = asyncio.Event()  # no line waits, and none is being answered
        self.is_full = asyncio.Event()  # there is no room for another result
        self.is_broken = asyncio.Event()  # there is a failure, and nothing more is answered
        self.failure: Exception | None = None
        self.num_failures: Counter[int] = Counter()  # by line
        self._unwritten: list[tuple[Result, asyncio.Future[None]]] = []
        self._num_unwritten = 0  # bytes
        self._writing: asyncio.Task[None] | None = None
        self._is_stopping = asyncio.Event()
        self.note_progress()

    @property
    def num_bytes(self) -> int:
        """The bytes of all results, with an error for each line that has none yet."""
        num_missing = self.file.num_lines - len(self.results) - len(self._unwritten)
        return self.results.num_bytes + self._num_unwritten + num_missing * ERROR_BYTES

    def note_progress(self) -> None:
        """Let those who wait for the end continue, if this is the end."""
        if not (self.waiting or self.tasks):
            self.is_over.set()

    async def stop(self) -> None:
        """Answer no more lines; what has been answered is written."""
        self.waiting.clear()
        self._is_stopping.set()
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._writing is not None:
            await asyncio.wait({self._writing})
        self.note_progress()

    async def write(self, result: Result) -> None:
        """Write a result; those that come meanwhile share the next write."""
        written = asyncio.get_running_loop().create_future()
        self._unwritten.append((result, written))
        self._num_unwritten += len(result.data)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.ensure_future(self._write_all())
        await asyncio.shield(written)

    def break_off(self, failure: Exception) -> None:
        """Answer no more lines, after an unexpected failure."""
        self.failure = failure
        self.is_broken.set()

    async def finish(self, code: str, message: str) -> None:
        """Write an error for each line without a result."""
        missing = [each for each in range(self.file.num_lines) if each not in self.results]

        def write() -> None:
            step = 1000
            for begin in range(0, len(missing), step):
                part = missing[begin : begin + step]
                self.results.append(self.without_answer(each, code, message) for each in part)

        await in_thread(write)

    def without_answer(self, number: int, code: str, message: str) -> Result:
        """Return an error as the result of a line; this reads the disk."""
        name = call_name(self.name, number)
        try:
            custom_id = self.file.line(number).custom_id
        except InvalidLineError:  # it was not checked before its batch ended
            custom_id = str(number)
        return Result(number, True, unanswered(name, custom_id, code, message))

    async def _write_all(self) -> None:
        while self._unwritten:
            taken, self._unwritten = self._unwritten, []
            try:
                is_written = await self._write_some([result for result, _ in taken])
            except Exception as error:
                self.break_off(error)
                for _, written in [*taken, *self._unwritten]:
                    written.cancel()
                self._unwritten = []
                return
            if not is_written:
                return
            for result, written in taken:
                self._num_unwritten -= len(result.data)
                if not written.done():
                    written.set_result(None)

    async def _write_some(self, results: list[Result]) -> bool:
        """Write results, however long the disk is full; return False if the job stops before."""
        while True:
            try:
                await in_thread(self.results.append, results)
                return True
            except OSError as error:
                log.error(
                    "results of batch %s cannot be written to %s: %s; the next attempt is in "
                    "%g s, and meanwhile no more lines of it are answered",
                    *(self.name, self.results.path, error.strerror or error, DISK_SECONDS),
                )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DISK_SECONDS):
                    await self._is_stopping.wait()
            if self._is_stopping.is_set():
                return False


class Pump:
    """The lines of all jobs that are being answered."""

    def __init__(self, calls: Calls, has_room: Callable[[int], bool]) -> None:
        self._calls = calls
        self._has_room = has_room  # for one more than so many lines
        self._jobs: deque[Job] = deque()
        self._num_running = 0
        self._resting: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self.on_result: Callable[[Job], None] = lambda job: None
        # Whether a job has room for so many bytes more.
        self.fits: Callable[[Job, int], bool] = lambda job, more: True

    def add(self, job: Job) -> None:
        """Begin to answer the lines of a job."""
        self._jobs.append(job)
        self.fill()

    def remove(self, job: Job) -> None:
        """Begin no more lines of a job."""
        if job in self._jobs:
            self._jobs.remove(job)

    def fill(self) -> None:
        """Begin lines while there is room, of each job in turn; call it when there may be."""
        while self._resting is None:
            job = self._next()
            if job is None or not self._has_room(self._num_running):
                return
            task = self._loop.create_task(self._answer(job, job.waiting.popleft()))
            self._num_running += 1
            job.tasks.add(task)

    def _next(self) -> Job | None:
        for _ in range(len(self._jobs)):
            job = self._jobs[0]
            self._jobs.rotate(-1)
            if job.waiting and not (job.is_full.is_set() or job.is_broken.is_set()):
                return job
        return None

    async def _answer(self, job: Job, number: int) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            result = await self._result(job, number)
            if result is None:
                job.waiting.appendleft(number)
                self._rest()
            elif not self.fits(job, len(result.data) - ERROR_BYTES):
                job.waiting.appendleft(number)
                job.is_full.set()
            else:
                await job.write(result)
                self.on_result(job)
        except Exception as error:
            log.exception("line %d of batch %s could not be answered", number + 1, job.name)
            await self._note_failure(job, number, error)
        finally:
            self._num_running -= 1
            job.tasks.discard(task)
            job.note_progress()
            self._loop.call_soon(self.fill)

    async def _note_failure(self, job: Job, number: int, error: Exception) -> None:
        """Let a line wait again that has met an unexpected error; after several it has failed."""
        if not isinstance(error, OSError):  # which may pass
            job.num_failures[number] += 1
        if job.num_failures[number] < MAX_ATTEMPTS:
            job.waiting.append(number)
            self._rest()
            return
        message = f"the server failed {MAX_ATTEMPTS} times on this request; its log has the reason"
        try:
            await job.write(await in_thread(job.without_answer, number, "internal", message))
            self.on_result(job)
        except Exception as another:
            job.break_off(another)

    def _rest(self) -> None:
        """Begin no line for a while."""
        if self._resting is None:
            self._resting = self._loop.call_later(REST_SECONDS, self._end_rest)

    def _end_rest(self) -> None:
        self._resting = None
        self.fill()

    async def _result(self, job: Job, number: int) -> Result | None:
        """Return the result of a line; None if it must be tried again."""
        name = call_name(job.name, number)
        try:
            line = await in_thread(job.file.line, number)
        except InvalidLineError as error:  # a route that this server has not, but the last one had
            first = error.errors[0]
            return Result(number, True, unanswered(name, str(number), first.code, first.message))
        reply = await self._calls.ask(
            line.url,
            bytes(line.body),
            name=name,
            owner=job.owner,
            is_background=job.is_background,
        )
        if reply.status in _LATER:
            return None
        data = _result_of(name, line.custom_id, reply)
        return Result(number, not reply.is_well, data)


def _result_of(name: str, custom_id: str, reply: Reply) -> bytes:
    data = answered(name, custom_id, reply.status, reply.body)
    if len(data) > MAX_RESULT_BYTES:
        message = f"the answer has {len(data)} bytes; a result may have {MAX_RESULT_BYTES}"
        data = unanswered(name, custom_id, "result_too_large", message)
    return data
