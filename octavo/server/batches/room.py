"""The room for a server's files: what they take, and what each key may add to them.

Files, uploads on their way and the results of batches that run all count. Where there are several
keys, one may have half of the room, and finds its share of the other half whatever others have: a
key that stays within its share loses no results because of other keys. One key may send half of the
files that are sent at the same time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from octavo.server.http.errors import ApiError, too_many

MAX_UPLOADS = 8  # at once
_RETRY_SECONDS = 1


@dataclass(slots=True, eq=False)
class Upload:
    """The room of a file that is being sent."""

    owner: str
    num_bytes: int = 0


class Room:
    """The room of one server; all calls come from one event loop."""

    def __init__(
        self,
        limit: int,
        num_keys: int,
        knows: Callable[[str], bool],
        stored: Mapping[str, int],
        results: Callable[[], Iterable[tuple[str, int]]],
    ) -> None:
        self._limit = limit
        self._num_keys = num_keys
        self._knows = knows  # whether a key is one of the server's
        self._stored = stored  # bytes of the files of each key
        self._results = results  # of each batch that runs: its key, and its bytes
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
        used = self._used()
        own = used.pop(owner, 0)
        left = self._limit - own
        if self._num_keys < 2:
            return left - sum(used.values())
        share = self._limit // (2 * self._num_keys)
        num_absent = self._num_keys - 1
        for other, num_bytes in used.items():
            is_key = self._knows(other)
            num_absent -= is_key
            left -= max(num_bytes, share) if is_key else num_bytes
        return min(left - max(0, num_absent) * share, self._limit // 2 - own)

    @contextmanager
    def upload(self, owner: str) -> Iterator[Upload]:
        """Count a file while it is being sent; raise ApiError if there is no place for it."""
        self._check_places(owner)
        if self.left(owner) <= 0:
            raise full("the server has no room for more files (--batch-bytes); delete some")
        upload = Upload(owner)
        self._uploads.add(upload)
        try:
            yield upload
        finally:
            self._uploads.discard(upload)

    def _check_places(self, owner: str) -> None:
        own = sum(each.owner == owner for each in self._uploads)
        most = MAX_UPLOADS // 2 if self._num_keys > 1 else MAX_UPLOADS
        if own < most and self.num_uploads < MAX_UPLOADS:
            return
        what = f"{own} files of this key are being sent already, of {most} at once"
        if own < most:
            what = f"{MAX_UPLOADS} files of all keys are being sent already, the most at once"
        message = f"{what}; send this one again when one of them has ended"
        raise too_many(message, _RETRY_SECONDS, "too_many_uploads")

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
