"""The place of a model's packed weights, and the files that they are packed from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from octavo.loader import Checkpoint
from octavo.options.engine import EngineArguments
from octavo.usable import packed_directory

if TYPE_CHECKING:
    from octavo.backends.native.packed_cache.panels import PackedCache


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
    path = packed_directory(arguments.packed_cache)
    return PackedCache(path, arguments.packed_cache_bytes, tuple(sources), weights)
