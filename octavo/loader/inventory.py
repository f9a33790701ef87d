"""The models in the caches of this machine, with their sizes and places."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from octavo.loader import hub
from octavo.loader.errors import CheckpointError
from octavo.loader.pypi import kept_wheels
from octavo.loader.strict_json import parse_object
from octavo.loader.weight_files import PICKLE_SUFFIXES, choose_weights


@dataclass(frozen=True, slots=True)
class KeptModel:
    """A model in a cache; `name` is the name to use it by."""

    name: str
    kind: str  # "gguf", "safetensors", or the reason why it cannot be used
    num_bytes: int
    path: Path


def kept_models() -> list[KeptModel]:
    """Return the models of both caches, Octavo's own first."""
    wheels = [
        KeptModel(name, _kind(files), bytes_under(files), files)
        for name, files in kept_wheels().items()
    ]
    return [*wheels, *_from_hub()]


def bytes_under(directory: Path) -> int:
    """Return the size of all files below, without following links (the hub's cache has many)."""
    total = 0
    try:
        for path in directory.rglob("*"):
            if not path.is_symlink() and path.is_file():
                total += path.stat().st_size
    except OSError:  # a cache changes while it is read
        pass
    return total


def _from_hub() -> Iterator[KeptModel]:
    for repository in hub.cached_names():
        root = hub.directory_of(repository)
        references = _directories(root / "refs", of_files=True)
        named = {_read(path): path.name for path in references}
        for snapshot in _directories(root / "snapshots"):
            revision = named.get(snapshot.name, snapshot.name)
            name = repository if revision == "main" else f"{repository}@{revision}"
            yield KeptModel(name, _kind(snapshot), _linked_bytes(snapshot), snapshot)


def _kind(directory: Path) -> str:
    """Return the kind of the weights that the loader would choose."""
    names = [path.relative_to(directory).as_posix() for path in directory.rglob("*")]
    try:
        files = choose_weights(names)
    except CheckpointError:
        ggufs = [name for name in names if name.endswith(".gguf")]
        if len(ggufs) > 1:
            return f"{len(ggufs)} gguf files"
        if ggufs or any(name.endswith(".safetensors") for name in names):
            return "incomplete"
        has_pickles = any(name.endswith(PICKLE_SUFFIXES) for name in names)
        return "pickled" if has_pickles else "no weights"
    wanted = {*files.names, *_shards(directory, files.index)}
    if not all((directory / name).is_file() for name in wanted):
        return "incomplete"
    return "gguf" if files.is_gguf else "safetensors"


def _shards(directory: Path, index: str | None) -> list[str]:
    """Return the files that an index names; a damaged index names none."""
    if index is None:
        return []
    try:
        contents = parse_object((directory / index).read_bytes(), directory / index, "the index")
    except (OSError, CheckpointError):
        return []
    shards = contents.get("weight_map")
    return sorted(set(map(str, shards.values()))) if isinstance(shards, dict) else []


def _linked_bytes(directory: Path) -> int:
    """Return the size of the files that this snapshot links to."""
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total


def _directories(directory: Path, *, of_files: bool = False) -> list[Path]:
    try:
        return sorted(path for path in directory.iterdir() if path.is_dir() != of_files)
    except OSError:
        return []


def _read(path: Path) -> str:
    try:
        return path.read_text("ascii", "replace").strip()
    except OSError:
        return ""
