"""Files of tensors that are loaded while the engine runs, each for a kind of use.

The engine can open no file: its loader reads it, and passes its tensors in sealed memory
(`octavo.loader_process`). A kind says what its files must contain, and uses them. A new kind is a
class that implements `TensorFileKind`, and a line in `octavo.engine.file_kinds`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from octavo.core.engine import EngineCore
from octavo.engine.commands import CommandRefusedError, Handlers, Later
from octavo.loader.errors import CheckpointError
from octavo.loader_process.connection import FileError, LoaderConnection, TensorFile
from octavo.loader_process.messages import MAX_FILE_BYTES, printable
from octavo.wire.commands import FAILED, LoadedFile, LoadFile, UnloadFile

log = logging.getLogger(__name__)

MAX_FILES = 1024
MAX_BYTES = 2 * MAX_FILE_BYTES  # of all files together
UNKNOWN_KIND, IN_USE, NOT_LOADED = "unknown_kind", "name_in_use", "not_loaded"
NO_ROOM, UNFIT = "no_room", "unfit"

Label = tuple[str, str]  # kind, name


class TensorFileKind(Protocol):
    """A use of tensor files, such as adapters. Its methods run between two steps."""

    @property
    def beside(self) -> tuple[str, ...]:
        """The names of JSON files that are read too, where they lie beside a tensor file."""

    def load(self, label: str, file: TensorFile) -> None:
        """Take a file into use; raise CheckpointError if its tensors are not what is needed.

        Nothing has changed then. The tensors are there as long as anything keeps them.
        """

    def unload(self, label: str) -> None:
        """Give up a file; what uses it may keep its tensors until it has finished."""


@dataclass(frozen=True, slots=True)
class _Loading:
    """A file that the loader reads."""

    label: Label
    later: Later


class TensorFiles:
    """The files that are loaded and those that the loader reads, by kind and name."""

    def __init__(self, kinds: Mapping[str, TensorFileKind], loader: LoaderConnection) -> None:
        self._kinds = kinds
        self._loader = loader
        self._loading: dict[int, _Loading] = {}  # by the number of the loader's request
        self._num_bytes: dict[Label, int] = {}  # of the loaded files
        self.handlers: Handlers = {LoadFile: self._load, UnloadFile: self._unload}

    @property
    def num_loading(self) -> int:
        """The number of files that are being read."""
        return len(self._loading)

    def _load(self, core: EngineCore, command: LoadFile) -> Later:
        kind = self._kinds.get(command.kind)
        if kind is None:
            known = ", ".join(self._kinds) or "none"
            raise CommandRefusedError(
                UNKNOWN_KIND, f"this engine has no files of the kind {command.kind!r}, but {known}"
            )
        label = command.kind, command.label
        if label in self._num_bytes or any(each.label == label for each in self._loading.values()):
            raise CommandRefusedError(
                IN_USE, f"{command.kind} {command.label!r} is loaded already: unload it first"
            )
        if len(self._num_bytes) + len(self._loading) >= MAX_FILES:
            raise CommandRefusedError(NO_ROOM, f"{MAX_FILES} files are loaded: unload some first")
        try:
            number = self._loader.request(command.path, kind.beside)
        except FileError as error:
            raise CommandRefusedError(error.code, str(error)) from None
        later = Later()
        self._loading[number] = _Loading(label, later)
        return later

    def _unload(self, core: EngineCore, command: UnloadFile) -> None:
        label = command.kind, command.label
        if label not in self._num_bytes:
            raise CommandRefusedError(NOT_LOADED, f"no {command.kind} {command.label!r} is loaded")
        del self._num_bytes[label]
        self._kinds[command.kind].unload(command.label)

    def take(self) -> None:
        """Take what the loader has read since the last call into use, and reply to its commands."""
        for number, answer in self._loader.take():
            loading = self._loading.pop(number, None)
            if loading is None:
                continue
            try:
                result = self._use(loading.label, answer)
            except CommandRefusedError as error:
                loading.later.refuse(error)
            except Exception as error:
                log.exception("a file could not be taken into use")
                why = f"{type(error).__name__}: {error}"
                loading.later.refuse(CommandRefusedError(FAILED, why))
            else:
                loading.later.end(result)

    def _use(self, label: Label, answer: TensorFile | FileError) -> LoadedFile:
        if isinstance(answer, FileError):
            raise CommandRefusedError(answer.code, str(answer))
        if sum(self._num_bytes.values()) + answer.num_bytes > MAX_BYTES:
            raise CommandRefusedError(
                NO_ROOM,
                f"a file of {answer.num_bytes:,} bytes does not fit beside those that are loaded, "
                f"which may have {MAX_BYTES:,} together: unload some first",
            )
        kind, name = label
        try:
            self._kinds[kind].load(name, answer)
        except CheckpointError as error:
            raise CommandRefusedError(UNFIT, printable(str(error))) from None
        self._num_bytes[label] = answer.num_bytes
        return LoadedFile(answer.digest, len(answer.checkpoint), answer.num_bytes)
