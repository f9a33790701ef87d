"""The models in a directory: its sub-directories and GGUF files, each under its own name."""

from __future__ import annotations

import logging
from pathlib import Path

from octavo.loader.errors import CheckpointError, SourceError
from octavo.loader.source import PathSource
from octavo.options.transport import ServerStartError
from octavo.server.models.model import Model

log = logging.getLogger(__name__)

MOST_MODELS = 1000
_MAGIC = b"GGUF"


def models_in(directory: Path) -> list[Model]:
    """Return the models of a directory, in the order of their names.

    Raise ServerStartError for a directory without any. What is no model is named in the log.
    """
    try:
        paths = sorted(each for each in directory.iterdir() if not each.name.startswith("."))
    except OSError as error:
        reason = error.strerror or error
        raise ServerStartError(f"models_dir={str(directory)!r} cannot be read: {reason}") from None
    found: list[Model] = []
    for relative in paths:
        path = relative.absolute()  # a bare name could be that of another source
        if not (path.is_dir() or path.suffix == ".gguf"):
            continue
        try:
            if not path.is_dir():
                _check_gguf(path)
            files = PathSource().find(str(path))
        except CheckpointError as error:  # which names the path
            log.warning("left out of the models: %s", error)
            continue
        name = path.name if path.is_dir() else path.stem
        found.append(Model(name, str(path), tuple(map(str, files.weights))))
    if not found:
        raise ServerStartError(
            f"models_dir={str(directory)!r} has no models: it needs sub-directories with a "
            "config.json and weights, or GGUF files"
        )
    if len(found) > MOST_MODELS:
        raise ServerStartError(
            f"models_dir={str(directory)!r} has {len(found):,} models, of at most {MOST_MODELS:,}"
        )
    return found


def _check_gguf(path: Path) -> None:
    """Raise CheckpointError for a link that leads nowhere, and for a file of another format."""
    try:
        with path.open("rb") as file:
            begins = file.read(len(_MAGIC))
    except OSError as error:
        raise SourceError(
            f"{path} cannot be read: {(error.strerror or str(error)).lower()}"
        ) from None
    if begins != _MAGIC:
        raise SourceError(f"{path} is no GGUF file, in spite of its name")
