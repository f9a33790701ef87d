"""The memory that all ranks of a stage, or of an engine, map: a file without a name."""

from __future__ import annotations

import fcntl
import os

from octavo.core.config import ConfigError
from octavo.distributed.context import RankPlace

_SIZE_IS_FINAL = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class RankMemory:
    """The memory of a number of ranks, as the process that starts them has it."""

    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        # Pages take memory when they are touched, so the size may be more than will be used.
        self._num_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        made = os.memfd_create("octavo ranks", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._file = os.fdopen(made, "r+b", buffering=0)
        try:
            self._make_room()
            fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, _SIZE_IS_FINAL)
        except BaseException:
            self.close()
            raise

    def _make_room(self) -> None:
        try:
            self._file.truncate(self._num_bytes)
        except OSError as error:
            raise ConfigError(
                f"tensor_parallel_size={self._num_ranks} needs memory that processes share, which "
                "is a file without a name as large as the machine's memory, and the system "
                f"refuses it: {error.strerror}; raise the limit of a file's size (ulimit -f, "
                "LimitFSIZE of systemd), or leave it out"
            ) from error

    @property
    def descriptor(self) -> int:
        """The descriptor, which the ranks inherit."""
        return self._file.fileno()

    def words(self, rank: int) -> list[str]:
        """Return the words with which the program of a rank is started."""
        words = ["--memory", str(self.descriptor), "--memory-bytes", str(self._num_bytes)]
        return [*words, "--rank", str(rank), "--ranks", str(self._num_ranks)]

    def place(self, owner: object = None, threads: int = 0) -> RankPlace:
        """Return the place of the first rank, in this process."""
        return RankPlace(0, self._num_ranks, self.descriptor, self._num_bytes, threads, owner)

    def close(self) -> None:
        """Close the file, once this process has mapped it and the ranks have inherited it."""
        self._file.close()
