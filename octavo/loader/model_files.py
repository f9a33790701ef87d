"""The files of a model on this machine, and how they are found in its directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.loader.errors import CheckpointError, SourceError
from octavo.loader.weight_files import choose_weights

if TYPE_CHECKING:  # the readers are imported when files are opened: finding them needs no numpy
    from octavo.loader.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model's files; `directory` holds the configuration and tokenizer, if there are any."""

    name: str  # as the user typed it
    directory: Path
    weights: tuple[Path, ...]
    index: Path | None = None

    @property
    def is_gguf(self) -> bool:
        return bool(self.weights) and self.weights[0].suffix == ".gguf"

    @property
    def tokenizer_path(self) -> Path:
        """The directory or GGUF file from which any process can read the tokenizer."""
        return self.weights[0] if self.is_gguf else self.directory

    def open(self) -> Checkpoint:
        """Map the weights and check every file's structure, without reading a tensor."""
        if self.is_gguf:
            from octavo.loader.gguf.reader import open_gguf

            return open_gguf(self.weights[0])
        if not self.weights:
            from octavo.loader.checkpoint import Checkpoint
            from octavo.loader.metadata import Metadata

            return Checkpoint(self.directory, {}, Metadata(self.directory, {}))
        from octavo.loader.safetensors_shards import open_shards, open_with_index

        return open_with_index(self.index) if self.index else open_shards(list(self.weights))

    def checked(self) -> ModelFiles:
        """Refuse safetensors without a config.json; GGUF files describe their model themselves."""
        if self.is_gguf or (self.directory / "config.json").is_file():
            return self
        raise CheckpointError(
            "the weights are here but config.json is not",
            path=self.directory,
            advice="copy the whole model directory",
        )


def without_weights(name: str, directory: Path) -> ModelFiles:
    """Return a model whose weights will be made, in a directory with its config.json."""
    if not (directory / "config.json").is_file():
        raise SourceError(
            "has no config.json, which describes the model whose weights are to be made",
            path=directory,
        )
    return ModelFiles(name, directory, ())


def files_in(
    name: str, directory: Path, *, select: str | None = None, nested: bool = False
) -> ModelFiles:
    """Return the model in a directory; with `nested`, GGUF files may be in subdirectories."""
    try:
        paths = [*directory.iterdir(), *(directory.glob("*/*.gguf") if nested else ())]
        names = [path.relative_to(directory).as_posix() for path in paths]
        chosen = choose_weights(names, select)
    except OSError as error:
        raise SourceError(f"cannot be read: {error.strerror}", path=directory) from error
    except CheckpointError as error:
        raise error.at(directory) from None
    weights = tuple(directory / file_name for file_name in chosen.names)
    index = directory / chosen.index if chosen.index else None
    return ModelFiles(name, directory, weights, index).checked()
