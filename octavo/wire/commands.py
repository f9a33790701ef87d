"""The commands to an engine as a whole: their arguments, their results, and errors as data.

A new command is a struct here, listed in `AnyCommand`, and a handler in `octavo.engine.commands`.
An engine that does not know a command or its arguments says so in its reply, so that it can be of
another version than its front end.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, get_args

from msgspec import Meta, Struct

from octavo.core.snapshot import EngineView

MAX_MESSAGE = 1 << 16  # characters of an error's message

Code = Annotated[str, Meta(max_length=64)]
Message = Annotated[str, Meta(max_length=MAX_MESSAGE)]
FileLabel = Annotated[str, Meta(min_length=1, max_length=256)]
LogLevel = Annotated[int, Meta(ge=0, le=100)]  # as in Python's logging

# Codes of errors. A handler may have others of its own.
UNKNOWN_COMMAND = "unknown_command"
WRONG_ARGUMENTS = "wrong_arguments"
FAILED = "failed"  # by an exception that the engine has logged
# A file's own faults, which it has until it is another; all else may pass.
FILE_FAULTS = ("unfit", "damaged", "too_large")
UNSENDABLE = "unsendable"  # the command or its result cannot be encoded, or fits in no frame
# These are the front end's own.
NO_ENGINE = "no_engine"  # there is none now, or it ended before it replied
TIMED_OUT = "timed_out"  # the engine may still carry it out
TOO_MANY = "too_many_commands"  # wait for their replies


class Command(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A command, whose fields are its arguments."""

    name: ClassVar[str]
    result: ClassVar[Any] = None  # the type of a reply's value


class Pause(Command, frozen=True):
    """A command to plan no more steps until `Resume`; those in flight end."""

    name = "pause"


class Resume(Command, frozen=True):
    """A command to plan steps again after `Pause`."""

    name = "resume"


class ResetPrefixCache(Command, frozen=True):
    """A command to share no KV that was computed before now."""

    name = "reset_prefix_cache"


class SetLogLevel(Command, frozen=True):
    """A command to log from this level up; the result is the level before."""

    name = "set_log_level"
    result = LogLevel

    level: LogLevel


class Look(Command, frozen=True):
    """A command to report what the engine is doing now."""

    name = "look"
    result = EngineView


class LoadedFile(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A file of tensors that an engine has taken into use."""

    num_tensors: Annotated[int, Meta(ge=0)]
    num_bytes: Annotated[int, Meta(ge=0)]


class LoadFile(Command, frozen=True):
    """A command to take a file of tensors into use, which the engine's loader reads."""

    name = "load"
    result = LoadedFile

    kind: FileLabel  # what it is used for
    label: FileLabel  # its name among the files of this kind
    path: Annotated[str, Meta(min_length=1, max_length=4096)]


class UnloadFile(Command, frozen=True):
    """A command to give up a file that was loaded; what uses it still may finish."""

    name = "unload"

    kind: FileLabel
    label: FileLabel


AnyCommand = Pause | Resume | ResetPrefixCache | SetLogLevel | Look | LoadFile | UnloadFile
BY_NAME: dict[str, type[Command]] = {kind.name: kind for kind in get_args(AnyCommand)}


class CommandError(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The reason why a command was not carried out."""

    code: Code
    message: Message


class Reply(Struct, frozen=True):
    """The only reply to a command: an error, or what the command's `result` says."""

    value: object = None
    error: CommandError | None = None
