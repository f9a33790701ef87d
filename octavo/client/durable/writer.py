"""The thread that writes a journal, so that no disk, however slow or full, holds the event loop.

Memory has everything, and the file is a copy. If a write fails, or the disk is so slow that too
much waits for it, what waits is dropped; later the whole file is written again from memory.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable

from octavo.client.durable.file import JournalFile
from octavo.client.durable.records import Record, encode

log = logging.getLogger(__name__)

SYNC_SECONDS = 0.1  # between two waits for the disk, which all records between them share
GATHER_SECONDS = 0.004  # in which records gather, so that the thread wakes less often
MAX_QUEUED = 65_536  # records that wait for the disk
RETRY_SECONDS = 5.0  # after a failure
CLOSE_SECONDS = 10.0  # for the disk, at the end


class JournalWriter:
    """A file with the thread that writes it; all methods are called in one event loop."""

    def __init__(self, file: JournalFile, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = file
        self._clock = clock
        self._changed = threading.Condition()
        # Guarded by the condition.
        self._queue: list[Record] = []
        self._snapshot: Iterable[Record] | None = None  # the whole file, to be written first
        self._num_asked = 0  # writes of the queue that were asked for …
        self._num_done = 0  # … and those that are done, or never will be
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._is_closing = False
        self._failed_at: float | None = None
        self.is_whole = False  # the file has everything, but for what is queued
        self.num_failures = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="octavo journal", daemon=True)

    @property
    def num_bytes(self) -> int:
        """The size of the file."""
        return self._file.num_bytes

    def start(self, snapshot: Iterable[Record]) -> None:
        """Start the thread in the running event loop; the file is first written anew."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        self.rewrite(snapshot)

    def append(self, record: Record) -> None:
        """Write a record soon, unless the file must be written anew anyway."""
        with self._changed:
            if not self.is_whole:
                return
            if len(self._queue) >= MAX_QUEUED:
                self._fail(f"{MAX_QUEUED} records wait for the disk")
                return
            self._queue.append(record)
            self._num_asked += 1
            self._changed.notify()

    def rewrite(self, snapshot: Iterable[Record]) -> None:
        """Replace the file by these records, which include all that were appended."""
        with self._changed:
            self._queue.clear()
            self._snapshot = snapshot
            self._num_asked += 1
            self.is_whole = True
            self._changed.notify()

    def may_retry(self) -> bool:
        """Return whether the file is not whole, and it is time to write it anew."""
        failed_at = self._failed_at
        if failed_at is None or self.is_whole:
            return False
        return self._clock() >= failed_at + RETRY_SECONDS

    async def written(self) -> None:
        """Wait until a kill of this process can lose nothing that was appended, or a write fails.

        If the machine loses its power, the last `SYNC_SECONDS` may still be lost.
        """
        future = asyncio.get_running_loop().create_future()
        with self._changed:
            if self._num_done >= self._num_asked or not self.is_whole:
                return
            self._waiters.append((self._num_asked, future))
        await future

    def close(self) -> None:
        """Write what is left, and end the thread; wait for the disk, but not for ever."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS)
        if not self._thread.is_alive():
            self._file.close()

    # the thread

    def _run(self) -> None:
        synced_at, is_synced = self._clock(), True
        while True:
            with self._changed:
                while not (self._queue or self._snapshot is not None or self._is_closing):
                    if is_synced:
                        self._changed.wait()
                    elif not self._changed.wait(max(0.0, synced_at + SYNC_SECONDS - self._clock())):
                        break
                is_closing = self._is_closing
            if not is_closing:
                time.sleep(GATHER_SECONDS)
            is_synced = not self._write() and is_synced
            if not is_synced and (is_closing or self._clock() >= synced_at + SYNC_SECONDS):
                self._try(self._file.sync)
                synced_at, is_synced = self._clock(), True
            if is_closing:
                return

    def _write(self) -> bool:
        """Write what is queued; return whether that was anything."""
        with self._changed:
            queue, self._queue = self._queue, []
            snapshot, self._snapshot = self._snapshot, None
            num_asked = self._num_asked
        if snapshot is not None and self._try(lambda: self._file.replace(map(encode, snapshot))):
            with self._changed:
                if self._failed_at is not None and self.is_whole:
                    self._failed_at = None
                    log.warning("the journal %s is written again", self._file.path)
        if queue and self.is_whole:
            self._try(lambda: self._file.append(map(encode, queue)))
        with self._changed:
            self._num_done = num_asked
            ready = [future for number, future in self._waiters if number <= num_asked]
            self._waiters = [each for each in self._waiters if each[0] > num_asked]
        if ready:
            self._wake(ready)
        return bool(queue or snapshot is not None)

    def _try(self, action: Callable[[], None]) -> bool:
        """Perform something with the file; return False if the disk refuses."""
        try:
            action()
        except Exception as error:  # the server must go on without its disk
            with self._changed:
                self._fail(str(error) or type(error).__name__)
            return False
        return True

    def _fail(self, reason: str) -> None:
        """Give up the file until it can be written anew; the lock is held."""
        if self._failed_at is None:
            log.error(
                "the journal %s cannot be written: %s. Requests are served, but those of the time "
                "until it can be written again will not survive the end of this server",
                self._file.path,
                reason,
            )
        self._failed_at = self._clock()
        self.num_failures += 1
        self.is_whole = False
        self._queue.clear()
        ready = [future for _, future in self._waiters]
        self._waiters.clear()
        if ready:
            self._wake(ready)

    def _wake(self, futures: list[asyncio.Future[None]]) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(_resolve, futures)
        except RuntimeError:  # the loop has ended, and with it all that waited
            log.debug("the journal was written after the server's end")


def _resolve(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
