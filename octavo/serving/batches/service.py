"""The batches of one server: each goes from its validation to its results, whatever is killed.

    validating ──▶ in_progress ──▶ finalizing ──▶ completed
        │               │              ├───────▶ expired
        ▼               ▼              └───────▶ cancelled
      failed        cancelling ──▶ finalizing

An unexpected exception ends a batch as failed, in whatever state it is.

A state is on the disk before what follows from it begins. A server that starts finds each batch in
its last state and goes on from there: lines with results are not answered again.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from octavo.serving.batches.calls import Calls
from octavo.serving.batches.disk import in_thread, open_in_thread
from octavo.serving.batches.input_file import Bounds, FoundError, InputFile
from octavo.serving.batches.pump import DISK_SECONDS, Job, Pump
from octavo.serving.batches.results import ResultsFile
from octavo.serving.batches.room import Room
from octavo.serving.batches.schema import (
    ENDED,
    Batch,
    BatchError,
    BatchErrors,
    FileObject,
    StoredBatch,
    StoredFile,
)
from octavo.serving.batches.store import Store
from octavo.serving.bounds.periodic import periodically
from octavo.serving.server import Server

log = logging.getLogger(__name__)
T = TypeVar("T")

BATCHES_OF_A_KEY = 2  # that run at once; others wait
TIDY_SECONDS = 60.0
_CLOCK_SECONDS = 60.0  # after which the wall clock is read again
_RETRY_SECONDS = 0.5  # after which lines begin that found no engine
_MESSAGES = {
    "batch_expired": "the completion window ended before this request was answered",
    "batch_cancelled": "the batch was cancelled before this request was answered",
    "storage_full": "the server has no room for more results (--batch-bytes)",
}


class _Work:
    """One batch that has not ended."""

    def __init__(self) -> None:
        self.has_turn = False
        self.job: Job | None = None  # whose results count until the files of the output do
        self.is_cancelled = asyncio.Event()


class Batches:
    """The batches of one server, and the files of their requests and results."""

    def __init__(self, server: Server, store: Store, calls: Calls) -> None:
        self.store = store
        self.urls = calls.urls
        self._server = server
        self._pump = Pump(calls, self._has_room)
        self._pump.on_result = self._note_result
        self._pump.fits = lambda job, more: self.room.left(job.owner) >= more
        self._disk = ThreadPoolExecutor(1, "batches")
        self.shares = server.shares
        self.room = Room(
            server.config.batch_bytes,
            self.shares,
            store.bytes_by_owner,
            store.files_by_owner,
            lambda: [(job.owner, job.num_bytes) for job in self._jobs()],
            lambda: [each.owner for each in self._open()],
        )
        self._work: dict[str, _Work] = {}
        self._turns: dict[str, asyncio.Semaphore] = {}  # by key
        self._tasks: set[asyncio.Task[None]] = set()
        self._add_metrics()

    def _jobs(self) -> list[Job]:
        return [work.job for work in self._work.values() if work.job is not None]

    def _open(self) -> list[StoredBatch]:
        return [each for each in self.store.batches.values() if each.batch.status not in ENDED]

    def start(self) -> None:
        """Continue what the last server has left."""
        self._server.admission.on_room = self._pump.fill
        unfinished = self._open()
        if unfinished:
            log.warning("batches of the last server that continue: %d", len(unfinished))
        for stored in unfinished:
            self.begin(stored)
        self._spawn(periodically(TIDY_SECONDS, self._tidy, "removing what batches kept too long"))
        self._spawn(periodically(_RETRY_SECONDS, self._retry, "beginning lines of batches"))

    async def close(self) -> None:
        """End all tasks; what has been answered stays on the disk."""
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))
        self._disk.shutdown()
        self.store.close()

    def begin(self, stored: StoredBatch) -> None:
        """Continue a batch from the state that it is in."""
        work = self._work[stored.batch.id] = _Work()
        is_known = self._server.access.knows(stored.owner)
        if not is_known:
            log.warning("batch %s is cancelled: its key is no longer valid", stored.batch.id)
        if stored.batch.status == "cancelling" or not is_known:
            work.is_cancelled.set()
        self._spawn(self._run(stored, work))

    async def cancel(self, stored: StoredBatch) -> None:
        """End a batch; what has been answered becomes its results."""
        work = self._work.get(stored.batch.id)
        if work is None or work.is_cancelled.is_set() or stored.outcome is not None:
            return
        has_begun = work.has_turn or stored.batch.status != "validating"
        await self._enter(stored, "cancelling" if has_begun else "cancelled")
        work.is_cancelled.set()

    def is_used(self, name: str) -> bool:
        """Return whether a batch that has not ended reads a file."""
        there = self.store.batches  # without those that have ended and were removed since
        open_batches = (there[each].batch for each in self._work if each in there)
        return any(each.input_file_id == name and each.status not in ENDED for each in open_batches)

    async def on_disk(self, act: Callable[..., T], *values: Any) -> T:
        """Run what waits for the disk in a thread, one thing after the other."""
        return await in_thread(act, *values, pool=self._disk)

    async def save(self, stored: StoredBatch) -> None:
        """Write the state of a batch, as it is now."""
        await self.on_disk(self.store.save_batch, copy.deepcopy(stored))

    # one batch

    async def _run(self, stored: StoredBatch, work: _Work) -> None:
        """Continue a batch until it has ended; wait while the disk is full."""
        name = stored.batch.id
        turns = self._turns.setdefault(stored.owner, asyncio.Semaphore(BATCHES_OF_A_KEY))
        try:
            async with turns:
                while stored.batch.status not in ENDED:
                    work.has_turn = True
                    try:
                        await self._go_on(stored, work)
                        return
                    except OSError as error:
                        log.error("batch %s: %s; tried again in %g s", name, error, DISK_SECONDS)
                        await asyncio.sleep(DISK_SECONDS)
                    except Exception:
                        log.exception("batch %s fails", name)
                        await self._fail(stored, work)
        finally:
            del self._work[name]

    async def _fail(self, stored: StoredBatch, work: _Work) -> None:
        """Let a batch fail after an unexpected exception.

        At the first one, what has been answered is still made its results.
        """
        batch, has_tried = stored.batch, stored.outcome == "failed"
        stored.outcome = "failed"
        message = "the server failed on this batch; its log has the reason. Begin another batch"
        batch.errors = BatchErrors(data=[BatchError(code="internal", message=message)])
        if has_tried or batch.status == "validating":
            work.job = None
            await self._enter_in_the_end(stored, "failed")
            with suppress(OSError):
                await self.on_disk(partial(self.store.results(batch.id).unlink, missing_ok=True))

    async def _enter_in_the_end(self, stored: StoredBatch, status: Any) -> None:
        """Set the state of a batch, however long the disk is full."""
        while True:
            try:
                await self._enter(stored, status)
                return
            except OSError as error:
                log.error("batch %s: %s; tried again in %g s", stored.batch.id, error, DISK_SECONDS)
            await asyncio.sleep(DISK_SECONDS)

    async def _go_on(self, stored: StoredBatch, work: _Work) -> None:
        batch, config = stored.batch, self._server.config
        bounds = Bounds({batch.endpoint}, config.batch_lines, config.max_body_bytes)
        path = self.store.contents(batch.input_file_id)
        try:
            file = await open_in_thread(InputFile, path, bounds, pool=self._disk)
        except FileNotFoundError:
            gone = BatchError(code="file_not_found", message="the file of requests is gone")
            batch.errors = BatchErrors(data=[gone])
            await self._enter(stored, "failed")
            return
        try:
            is_new = batch.status == "validating"
            while await in_thread(partial(file.read_piece, checks=is_new)):
                pass
            if is_new and file.errors:
                batch.errors = BatchErrors(data=[_as_sent(each) for each in file.errors])
                await self._enter(stored, "failed")
                return
            results = await open_in_thread(
                ResultsFile, self.store.results(batch.id), batch.id.encode(), pool=self._disk
            )
            try:
                await self._answer(stored, work, file, results)
                await self.on_disk(results.remove)
            finally:
                await self.on_disk(results.close)
        finally:
            file.close()

    async def _answer(
        self, stored: StoredBatch, work: _Work, file: InputFile, results: ResultsFile
    ) -> None:
        batch = stored.batch
        batch.request_counts.total = file.num_lines
        if batch.status == "validating":
            await self._enter(stored, "in_progress")
        for errors in (False, True):  # of a server that stopped before it had written both
            self.store.drop_file(_output_name(batch, errors=errors))
        job = work.job = Job(batch.id, stored.owner, file, results, is_background=True)
        self._count(stored, results)
        if stored.outcome is None:
            self._pump.add(job)
            try:
                code = await self._until_end(stored, work, job)
            finally:
                self._pump.remove(job)
                await job.stop()
            if code:
                await job.finish(code, _MESSAGES[code])
            self._count(stored, results)
            stored.outcome = "completed"
            if code in ("batch_expired", "batch_cancelled"):
                stored.outcome = "expired" if code == "batch_expired" else "cancelled"
            await self._enter(stored, "finalizing")
        assert stored.outcome is not None
        output = await self._output(stored, results, errors=False)
        failed = await self._output(stored, results, errors=True)
        work.job = None  # with no await in between, so that no byte counts twice or not at all
        await self._enter(stored, stored.outcome, (self._add(output), self._add(failed)))

    async def _until_end(self, stored: StoredBatch, work: _Work, job: Job) -> str:
        """Wait until all lines have results; return the code of what ends the batch before."""
        waits = {
            asyncio.ensure_future(each.wait())
            for each in (job.is_over, work.is_cancelled, job.is_full, job.is_broken)
        }
        try:
            while True:
                left = stored.batch.expires_at - self._server.wall_time()
                if job.failure is not None:
                    raise job.failure
                if job.is_over.is_set():
                    return ""
                if work.is_cancelled.is_set():
                    return "batch_cancelled"
                if job.is_full.is_set():
                    return "storage_full"
                if left <= 0:
                    return "batch_expired"
                await asyncio.wait(
                    waits,
                    timeout=min(left, _CLOCK_SECONDS),
                    return_when=asyncio.FIRST_COMPLETED,
                )
        finally:
            for wait in waits:
                wait.cancel()

    async def _output(
        self, stored: StoredBatch, results: ResultsFile, *, errors: bool
    ) -> StoredFile | None:
        """Write the results, or the errors, as a file; return None if there are none."""
        num_results = results.num_errors if errors else len(results) - results.num_errors
        if not num_results:
            return None
        batch, name = stored.batch, _output_name(stored.batch, errors=errors)
        path = self.store.contents(name)
        await self.on_disk(partial(results.copy, path, errors=errors))
        now = self._server.wall_time()
        kept = stored.output_seconds or self._server.config.batch_keep_seconds
        described = FileObject(
            id=name,
            bytes=path.stat().st_size,
            created_at=now,
            expires_at=now + int(kept),
            filename=f"{batch.id}_{'errors' if errors else 'output'}.jsonl",
            purpose="batch_output",
        )
        made = StoredFile(owner=stored.owner, file=described)
        await self.on_disk(self.store.save_file, made)
        return made

    def _add(self, made: StoredFile | None) -> str | None:
        """Add a written file to the list; return its id."""
        if made is None:
            return None
        self.store.add_file(made)
        return made.file.id

    async def _enter(
        self, stored: StoredBatch, status: Any, files: tuple[str | None, str | None] = (None, None)
    ) -> None:
        """Set the state of a batch, and the ids of its results, when the disk has them."""
        now = self._server.wall_time()

        def change(batch: Batch) -> None:
            batch.status = status
            setattr(batch, f"{status}_at", now)
            batch.output_file_id, batch.error_file_id = files

        changed = copy.deepcopy(stored)
        change(changed.batch)
        await self.save(changed)
        change(stored.batch)

    # all batches

    def _has_room(self, num_running: int) -> bool:
        """Return whether another line may begin."""
        admission = self._server.admission
        if num_running >= admission.background_capacity or self._server.refusal() is not None:
            return False
        return admission.has_background_room()

    def _note_result(self, job: Job) -> None:
        stored = self.store.batches[job.name]
        self._count(stored, job.results)

    def _count(self, stored: StoredBatch, results: ResultsFile) -> None:
        counts = stored.batch.request_counts
        counts.failed = results.num_errors
        counts.completed = len(results) - results.num_errors

    async def _retry(self) -> None:
        """Begin lines if there is an engine again, which no request announces."""
        self._pump.fill()

    async def _tidy(self) -> None:
        """Remove what is kept no longer."""
        now = self._server.wall_time()
        for name, file in list(self.store.files.items()):
            if file.file.expires_at <= now and not self.is_used(name):
                with suppress(OSError):
                    await self.remove_file(name)
        kept = self._server.config.batch_keep_seconds
        for stored in list(self.store.batches.values()):
            if stored.batch.status in ENDED and stored.batch.expires_at + kept <= now:
                with suppress(OSError):
                    await self.remove_batch(stored)

    async def remove_file(self, name: str) -> None:
        """Remove a file from the disk, and then from the list."""
        await self.on_disk(self.store.remove_file, name)
        self.store.drop_file(name)

    async def remove_batch(self, stored: StoredBatch) -> None:
        """Remove a batch that has ended from the disk, and then from the list."""
        name = stored.batch.id
        await self.on_disk(self.store.remove_batch, name)
        self.store.batches.pop(name, None)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_report)

    def _add_metrics(self) -> None:
        add = self._server.metrics.add_gauge
        add("batches_open", "Batches that have not ended.", lambda: len(self._work))
        add("batch_bytes", "Bytes of the files of batches.", self.room.used_bytes)


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("a batch could not go on", exc_info=task.exception())


def _output_name(batch: Batch, *, errors: bool) -> str:
    """Return the same name each time, so that a kill in between leaves no second file."""
    return f"file-{batch.id.removeprefix('batch_')}-{'errors' if errors else 'output'}"


def _as_sent(found: FoundError) -> BatchError:
    error = found.error
    return BatchError(code=error.code, message=error.message, param=error.param, line=found.line)
