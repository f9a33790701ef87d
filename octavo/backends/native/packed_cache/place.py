"""The place of a model's packed weights, and the files that they are packed from."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from octavo import env
from octavo.backends.kind import BackendSettings, WeightFile

if TYPE_CHECKING:
    from octavo.backends.native.packed_cache.panels import PackedCache

# A disk that is full may have room again when there is something to write: that is only logged.
_FULL = (errno.ENOSPC, errno.EDQUOT)


def packed_cache(
    settings: BackendSettings, files: Iterable[WeightFile], weights: str, share: str = ""
) -> PackedCache | None:
    """Return where weights packed in these formats are kept, or a share of them; None: nowhere."""
    if settings.packed_cache is None:
        return None
    import numpy as np

    from octavo.backends.native.packed_cache.panels import PackedCache
    from octavo.backends.native.packed_cache.sources import SourceFile

    sources = tuple(
        SourceFile.of(file.path, file.opened, np.frombuffer(file.buffer, np.uint8))
        for file in files
    )
    place = packed_directory(settings.packed_cache)
    return PackedCache(place, settings.packed_cache_bytes, sources, weights, share)


def packed_directory(named: str) -> Path:
    """Return the directory that `packed_cache` names."""
    if named == "auto":
        return env.packed_weights_directory().absolute()
    if not named or "\0" in named:
        raise ValueError(f"packed_cache={named!r} names no directory")
    try:
        os.fsencode(named)
        return Path(named).expanduser().absolute()
    # `~name` of a user who does not exist, or characters that no path can have.
    except (RuntimeError, UnicodeEncodeError) as error:
        raise ValueError(f"packed_cache={named!r} cannot be used: {error}") from error


def check_directory(named: str, most_bytes: int) -> None:
    """Refuse a directory in which no packed weights can be kept or found."""
    from octavo.backends.native.packed_cache.directory import PackedDirectory, reason

    path = packed_directory(named)
    try:
        directory = PackedDirectory(path, most_bytes)
        directory.check_use()
        directory.close()
    except OSError as error:
        if error.errno in _FULL:
            return
        variable = " (OCTAVO_CACHE says where that is)" if named == "auto" else ""
        raise ValueError(
            f"packed_cache={str(path)!r} cannot be used: {reason(error)}; name a directory that "
            f"user {os.geteuid()} owns and may write to{variable}, or leave it out"
        ) from error
