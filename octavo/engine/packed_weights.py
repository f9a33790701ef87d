"""The place of a model's packed weights, and the files that they are packed from."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from octavo import env
from octavo.core.config import ConfigError
from octavo.engine_arguments import EngineArguments
from octavo.loader import Checkpoint

if TYPE_CHECKING:
    from octavo.backends.native.packed_cache.panels import PackedCache


# A disk that is full may have room again when there is something to write: that is only logged.
_FULL = (errno.ENOSPC, errno.EDQUOT)


def check_packed_cache(arguments: EngineArguments) -> None:
    """Raise ConfigError if packed weights are asked for where none can be kept or found."""
    if arguments.packed_cache is None:
        return
    from octavo.backends.native.packed_cache.directory import PackedDirectory, reason

    path = _place(arguments.packed_cache)
    try:
        directory = PackedDirectory(path, arguments.packed_cache_bytes)
        directory.check_use()
        directory.close()
    except OSError as error:
        if error.errno in _FULL:
            return
        raise ConfigError(
            f"packed_cache={str(path)!r} cannot be used: {reason(error)}; name a directory that "
            f"user {os.geteuid()} owns and may write to, or leave it out"
        ) from error


def packed_cache(
    arguments: EngineArguments, checkpoint: Checkpoint, weights: str
) -> PackedCache | None:
    """Return where weights packed in these formats are kept; None if at no place."""
    if arguments.packed_cache is None:
        return None
    from octavo.backends.native.packed_cache.panels import PackedCache
    from octavo.backends.native.packed_cache.sources import SourceFile

    files = {info.file.path: info.file for info in checkpoint.tensors.values()}
    sources = (
        SourceFile.of(file.path, file.opened, np.frombuffer(file.buffer, np.uint8))
        for file in files.values()
    )
    path = _place(arguments.packed_cache)
    return PackedCache(path, arguments.packed_cache_bytes, tuple(sources), weights)


def _place(named: str) -> Path:
    if named == "auto":
        return env.packed_weights_directory().absolute()
    if not named or "\0" in named:
        raise ConfigError(f"packed_cache={named!r} names no directory")
    try:
        return Path(named).expanduser().absolute()
    except RuntimeError as error:  # `~name` of a user who does not exist
        raise ConfigError(f"packed_cache={named!r} cannot be used: {error}") from error
