"""The room for a server's files: what they take, and what each key may add to them.

Files, uploads on their way and the results of batches that run all count, and so do the two files
that each batch may end with. Keys share the bytes, the number of files and the number of those that
are sent at the same time, as `Shares` says: a key that stays within its share loses no results
because of other keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from octavo.serving.bounds.shares import Shares
from octavo.transport.errors import ApiError, too_many

MAX_FILES = 10_000
MAX_UPLOADS = 8  # at once
FILES_OF_BATCH = 2  # its results and its errors
_RETRY_SECONDS = 1


@dataclass(slots=True, eq=False)
class Upload:
    """The bytes that a file which is being sent has taken so far."""

    owner: str
    num_bytes: int = 0


class Room:
    """The bytes and files that a server keeps for batches, and their limits, in one event loop."""

    def __init__(
        self,
        limit: int,
        shares: Shares,
        stored: Mapping[str, int],
        num_stored: Mapping[str, int],
        results: Callable[[], Iterable[tuple[str, int]]],
        open_batches: Callable[[], Iterable[str]],
    ) -> None:
        self._limit = limit
        self._shares = shares
        self._stored = stored  # bytes of the files of each key
        self._num_stored = num_stored  # files of each key
        self._results = results  # of each batch that runs: its key, and its bytes
        self._open_batches = open_batches  # the key of each that has not ended
        self._uploads: set[Upload] = set()

    @property
    def num_uploads(self) -> int:
        """The number of files that are being sent."""
        return len(self._uploads)

    def used_bytes(self) -> int:
        """Return the bytes that are taken, or kept for what is being sent."""
        return sum(self._used().values())

    def left(self, owner: str) -> int:
        """Return how many bytes a key may add; they are negative if it has too many."""
        return self._shares.left(owner, self._used(), self._limit)

    @contextmanager
    def upload(self, owner: str) -> Iterator[Upload]:
        """Count a file while it is being sent; raise ApiError if there is no place for it."""
        self._check_counts(owner)
        if self.left(owner) <= 0:
            raise full("the server has no room for more files (--batch-bytes); delete some")
        upload = Upload(owner)
        self._uploads.add(upload)
        try:
            yield upload
        finally:
            self._uploads.discard(upload)

    def _check_counts(self, owner: str) -> None:
        """Raise ApiError if a key sends as many files as it may, or has as many."""
        shares, sent = self._shares, Counter(each.owner for each in self._uploads)
        left = shares.left(owner, sent, shares.most(MAX_UPLOADS))
        if left <= 0:
            message = (
                f"{sent[owner]} files of this key are being sent already, of {sent.total()} in "
                "all, the most at once; send this one again when one of them has ended"
            )
            raise too_many(message, _RETRY_SECONDS, "too_many_uploads")
        self._check_files(owner, 1)

    def check_batch(self, owner: str) -> None:
        """Raise ApiError if a key may not have the files of one more batch."""
        self._check_files(owner, FILES_OF_BATCH)

    def _check_files(self, owner: str, num_more: int) -> None:
        shares, num_files = self._shares, Counter(self._num_stored)
        num_files.update(each.owner for each in self._uploads)
        for each in self._open_batches():
            num_files[each] += FILES_OF_BATCH
        if shares.left(owner, num_files, shares.most(MAX_FILES)) < num_more:
            raise full(
                f"this key has {num_files[owner]} files, with those of its batches that have not "
                f"ended, and may not have {num_more} more now ({MAX_FILES} of all keys); delete "
                "some"
            )

    def keep(self, upload: Upload, num_bytes: int) -> None:
        """Keep room for so many bytes of an upload, or raise ApiError."""
        missing = num_bytes - upload.num_bytes
        if missing <= 0:
            return
        left = self.left(upload.owner)
        if missing > left:
            raise ApiError(
                413,
                f"the file has at least {num_bytes} bytes; there is room for "
                f"{max(0, upload.num_bytes + left)} (--batch-bytes): delete files, or divide it",
                code="file_too_large",
            )
        upload.num_bytes = num_bytes

    def _used(self) -> Counter[str]:
        """Return the bytes of each key."""
        used = Counter(dict(self._stored))
        for owner, num_bytes in self._results():
            used[owner] += num_bytes
        for upload in self._uploads:
            used[upload.owner] += upload.num_bytes
        return used


def full(message: str) -> ApiError:
    """Return the error for a client that must delete something first."""
    return ApiError(400, message, code="storage_full")
