"""Files of tensors that are loaded while the engine runs, each for a kind of use.

The engine can open no file: its loader reads it, and passes its tensors in sealed memory
(`octavo.loader_process`). A kind says what its files must contain, and uses them. A new kind is a
class that implements `TensorFileKind`, and a line in `octavo.engine.file_kinds`.

Commands load files, and so may a kind by itself, for a request that needs one. Both go one way: the
loader reads the file, the thread that receives it prepares it, and the kind takes it over between
two steps.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from octavo.backends.base import BackendEndedError
from octavo.core.engine import EngineCore
from octavo.engine.commands import CommandRefusedError, Handlers, Later
from octavo.engine.holds import Holder
from octavo.loader.errors import CheckpointError
from octavo.loader_process.connection import FileError, TensorFile
from octavo.loader_process.messages import MAX_FILE_BYTES, printable
from octavo.wire.commands import FAILED, LoadedFile, LoadFile, UnloadFile

log = logging.getLogger(__name__)

# Of all files together whose kinds do not bound them.
MAX_FILES = 4096
MAX_BYTES = 2 * MAX_FILE_BYTES
UNKNOWN_KIND, IN_USE, NOT_LOADED = "unknown_kind", "name_in_use", "not_loaded"
NO_ROOM, UNFIT = "no_room", "unfit"

Label = tuple[str, str]  # kind, name
Outcome = LoadedFile | CommandRefusedError
Then = Callable[[Outcome], None]  # called in the engine's thread, between two steps


class TensorFileKind(Protocol):
    """A use of tensor files, such as adapters."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the files that are looked for where a path is that of a directory."""

    @property
    def beside(self) -> tuple[str, ...]:
        """The names of JSON files that are read too, where they lie beside a tensor file."""

    @property
    def bounds_itself(self) -> bool:
        """True if `load` bounds the kind's files, and gives up some for others where it can."""

    def prepare(self, label: str, file: TensorFile) -> Any:
        """Check a file, and return what is needed of it; raise CheckpointError if it does not fit.

        It is called in a thread, beside steps. The tensors are there as long as anything keeps
        them.
        """

    def load(self, label: str, prepared: Any) -> None:
        """Take what was prepared into use, between two steps.

        Raise CommandRefusedError if there is no room for it; nothing has changed then.
        """

    def unload(self, label: str) -> None:
        """Give up a file; what uses it may keep what is needed until it has finished."""


class RequestFiles(Holder, Protocol):
    """A kind whose files requests need: it holds them until theirs are loaded."""

    def attach(self, files: TensorFiles) -> None:
        """Take the way to load files, before the first request."""


class FileReader(Protocol):
    """A reader of files for an engine, such as the connection to its loader."""

    def request(
        self,
        path: str,
        then: Callable[[TensorFile], object],
        beside: Sequence[str] = (),
        names: Sequence[str] = (),
    ) -> int:
        """Ask for a file; return the number of the request, or raise FileError.

        `then` gets the file in a thread of the reader's, as soon as it is there.
        """

    def take(self) -> list[tuple[int, FileError]]:
        """Return the requests that have failed since the last call."""


class _Loading(NamedTuple):
    """A file that is being loaded, and all that wait for it."""

    path: str
    number: int  # of the reader's request
    waiting: list[Then]


class _Loaded(NamedTuple):
    """A file that is loaded."""

    path: str
    file: LoadedFile


class _Prepared(NamedTuple):
    """The result of a kind for a file, from the thread that received it."""

    label: Label
    file: LoadedFile
    result: object  # what the kind made, or a CommandRefusedError


class TensorFiles:
    """The files that are loaded and those on their way, by kind and name."""

    def __init__(
        self,
        kinds: Mapping[str, TensorFileKind],
        reader: FileReader,
    ) -> None:
        self._kinds = kinds
        self._reader = reader
        self._reading: dict[int, Label] = {}  # by the number of the reader's request
        self._loading: dict[Label, _Loading] = {}
        self._loaded: dict[Label, _Loaded] = {}
        self._prepared: deque[_Prepared] = deque()  # filled by the thread
        self.handlers: Handlers = {LoadFile: self._load_by_command, UnloadFile: self._unload}

    @property
    def num_loading(self) -> int:
        """The number of files that are on their way."""
        return len(self._loading)

    def load(self, kind: str, name: str, path: str, then: Then) -> None:
        """Load a file, and call `then` with the result, in a later `take`.

        A file that is on its way already is read once. Raise CommandRefusedError if it cannot be.
        """
        label = kind, name
        loading = self._loading.get(label)
        if loading is None:
            of_kind = self._kind(kind)
            if not of_kind.bounds_itself and self._num_counted() >= MAX_FILES:
                raise CommandRefusedError(
                    NO_ROOM, f"{MAX_FILES} files are loaded: unload some first"
                )
            try:
                prepare = partial(self._prepare, label)
                number = self._reader.request(path, prepare, of_kind.beside, of_kind.names)
            except FileError as error:
                raise CommandRefusedError(error.code, str(error)) from None
            self._reading[number] = label
            loading = self._loading[label] = _Loading(path, number, [])
        elif loading.path != path:
            raise _in_use(label)
        loading.waiting.append(then)

    def is_loaded(self, kind: str, name: str) -> bool:
        """Return whether a file is loaded, and was not given up."""
        return (kind, name) in self._loaded

    def give_up(self, kind: str, name: str) -> None:
        """Give up a file that is loaded."""
        del self._loaded[kind, name]
        self._kinds[kind].unload(name)

    def _kind(self, name: str) -> TensorFileKind:
        if name not in self._kinds:
            known = ", ".join(self._kinds) or "none"
            raise CommandRefusedError(
                UNKNOWN_KIND, f"this engine has no files of the kind {name!r}, but {known}"
            )
        return self._kinds[name]

    def _load_by_command(self, core: EngineCore, command: LoadFile) -> Later | LoadedFile:
        loaded = self._loaded.get((command.kind, command.label))
        if loaded is not None:
            if loaded.path != command.path:
                raise _in_use((command.kind, command.label))
            return loaded.file
        later = Later()

        def settle(outcome: Outcome) -> None:
            if isinstance(outcome, CommandRefusedError):
                later.refuse(outcome)
            else:
                later.end(outcome)

        self.load(command.kind, command.label, command.path, settle)
        return later

    def _unload(self, core: EngineCore, command: UnloadFile) -> None:
        if (command.kind, command.label) not in self._loaded:
            raise CommandRefusedError(NOT_LOADED, f"no {command.kind} {command.label!r} is loaded")
        self.give_up(command.kind, command.label)

    def take(self) -> None:
        """Take what has been prepared or has failed since the last call; settle what waits."""
        for number, error in self._reader.take():
            if number in self._reading:
                self._settle(self._reading[number], CommandRefusedError(error.code, str(error)))
        while self._prepared:
            prepared = self._prepared.popleft()
            self._settle(prepared.label, self._use(prepared))

    def _prepare(self, label: Label, file: TensorFile) -> None:
        """Prepare a file, in the reader's thread."""
        result: object
        kind, name = label
        loaded = LoadedFile(len(file.checkpoint), file.num_bytes)
        try:
            result = self._kinds[kind].prepare(name, file)
        except CheckpointError as error:
            result = CommandRefusedError(UNFIT, printable(str(error)))
        except BackendEndedError as error:
            result = error  # for the engine's thread: no request is at fault
        except BaseException as error:
            log.exception("a file could not be prepared")
            result = CommandRefusedError(FAILED, f"{type(error).__name__}: {error}")
        self._prepared.append(_Prepared(label, loaded, result))

    def _use(self, prepared: _Prepared) -> Outcome:
        label, file, result = prepared
        if isinstance(result, CommandRefusedError):
            return result
        if isinstance(result, BackendEndedError):
            raise result
        kind, name = label
        of_kind = self._kinds[kind]
        if not of_kind.bounds_itself and self._counted_bytes() + file.num_bytes > MAX_BYTES:
            return CommandRefusedError(
                NO_ROOM,
                f"a file of {file.num_bytes:,} bytes does not fit beside those that are loaded, "
                f"which may have {MAX_BYTES:,} together: unload some first",
            )
        try:
            of_kind.load(name, result)
        except CommandRefusedError as error:
            return error
        except Exception as error:
            log.exception("a file could not be taken into use")
            return CommandRefusedError(FAILED, f"{type(error).__name__}: {error}")
        self._loaded[label] = _Loaded(self._loading[label].path, file)
        return file

    def _num_counted(self) -> int:
        labels = (*self._loaded, *self._loading)
        return sum(not self._kinds[kind].bounds_itself for kind, _ in labels)

    def _counted_bytes(self) -> int:
        return sum(
            each.file.num_bytes
            for (kind, _), each in self._loaded.items()
            if not self._kinds[kind].bounds_itself
        )

    def _settle(self, label: Label, outcome: Outcome) -> None:
        loading = self._loading.pop(label)
        del self._reading[loading.number]
        for then in loading.waiting:
            then(outcome)


def _in_use(label: Label) -> CommandRefusedError:
    kind, name = label
    return CommandRefusedError(
        IN_USE, f"{kind} {name!r} is loaded already, from another path: unload it first"
    )
