"""The files of an engine that runs in its front end's process, and reads them by itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.engine.build import BuiltEngine
    from octavo.engine.tensor_files import TensorFiles


def own_files(engine: BuiltEngine, directory: str | None) -> TensorFiles | None:
    """Return what loads an engine's adapters from a directory, if it has any."""
    if engine.adapters is None or directory is None:
        return None
    # Imported here, since few engines have adapters.
    from octavo.engine.file_kinds import make_file_kinds
    from octavo.engine.own_reader import OwnReader
    from octavo.engine.tensor_files import TensorFiles

    files = TensorFiles(make_file_kinds(engine), OwnReader([Path(directory)]))
    engine.adapters.attach(files)
    return files
