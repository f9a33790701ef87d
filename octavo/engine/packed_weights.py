"""The place of a model's packed weights, and the files that they are packed from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from octavo import env
from octavo.engine_arguments import EngineArguments
from octavo.loader import Checkpoint

if TYPE_CHECKING:
    from octavo.backends.native.packed_cache.panels import PackedCache


def packed_cache(arguments: EngineArguments, checkpoint: Checkpoint) -> PackedCache | None:
    """Return where packed weights are kept; None if they are packed at every start."""
    if arguments.packed_cache is None:
        return None
    from octavo.backends.native.packed_cache.panels import PackedCache
    from octavo.backends.native.packed_cache.sources import SourceFile

    named = arguments.packed_cache
    path = env.packed_weights_directory() if named == "auto" else Path(named).expanduser()
    files = {info.file.path: info.file for info in checkpoint.tensors.values()}
    sources = (
        SourceFile.of(file.path, file.opened, np.frombuffer(file.buffer, np.uint8))
        for file in files.values()
    )
    return PackedCache(path.absolute(), arguments.packed_cache_bytes, tuple(sources))
