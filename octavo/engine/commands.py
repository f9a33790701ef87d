"""Carries out commands between two steps: a handler for each, and exactly one reply to each.

Most replies are known at once. What is carried out beside the steps, as the loading of a file, gets
its reply between two later steps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from octavo.core.engine import EngineCore
from octavo.core.request import Pause, ResetPrefixCache, Resume
from octavo.core.snapshot import EngineView, take_view
from octavo.wire import commands
from octavo.wire.commands import CommandError, Reply
from octavo.wire.message_types import CommandReply, EngineCommand, WireError, pack, unpack

log = logging.getLogger(__name__)

# Carries out a command; returns the value of its reply, or `Later`, or raises CommandRefusedError.
Handler = Callable[[EngineCore, Any], object]
Handlers = Mapping[type[commands.Command], Handler]
NO_LOADER = "no_loader"


class CommandRefusedError(Exception):
    """The reason why a command cannot be carried out, with a code of its own."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def _pause(core: EngineCore, command: commands.Pause) -> None:
    core.on_event(Pause())


def _resume(core: EngineCore, command: commands.Resume) -> None:
    core.on_event(Resume())


def _reset_prefix_cache(core: EngineCore, command: commands.ResetPrefixCache) -> None:
    core.on_event(ResetPrefixCache())


def _set_log_level(core: EngineCore, command: commands.SetLogLevel) -> int:
    ours = logging.getLogger("octavo")
    before = ours.level
    ours.setLevel(command.level)
    return before


def _look(core: EngineCore, command: commands.Look) -> EngineView:
    return take_view(core)


def _no_files(core: EngineCore, command: commands.LoadFile | commands.UnloadFile) -> None:
    raise CommandRefusedError(NO_LOADER, "this engine was started without a loader of files")


HANDLERS: dict[type[commands.Command], Handler] = {
    commands.Pause: _pause,
    commands.Resume: _resume,
    commands.ResetPrefixCache: _reset_prefix_cache,
    commands.SetLogLevel: _set_log_level,
    commands.Look: _look,
    commands.LoadFile: _no_files,
    commands.UnloadFile: _no_files,
}
NO_HANDLERS: Handlers = {}


class Later:
    """The result of a command that is still being carried out, beside the engine's steps."""

    def __init__(self) -> None:
        self._settle: Callable[[Reply], None] | None = None

    def then(self, settle: Callable[[Reply], None]) -> None:
        """Call `settle` with the reply when it is known."""
        self._settle = settle

    def end(self, value: object) -> None:
        """End the command with its result; call it in the engine's thread, after `then`."""
        assert self._settle is not None, "a handler returns before its command ends"
        self._settle(Reply(value))

    def refuse(self, error: CommandRefusedError) -> None:
        """End the command with an error."""
        assert self._settle is not None, "a handler returns before its command ends"
        self._settle(_failed(error.code, str(error)))


def carry_out(
    core: EngineCore,
    command: commands.Command,
    settle: Callable[[Reply], None],
    more: Handlers = NO_HANDLERS,
) -> None:
    """Carry out a command, and call `settle` with its only reply, now or between later steps.

    Handlers in `more` go before those that every engine has. An error of a handler is the reply,
    and the engine goes on.
    """
    try:
        value = (more.get(type(command)) or HANDLERS[type(command)])(core, command)
    except CommandRefusedError as error:
        settle(_failed(error.code, str(error)))
    except Exception as error:
        log.exception("the command %s failed", command.name)
        settle(_failed(commands.FAILED, f"{type(error).__name__}: {error}"))
    else:
        if isinstance(value, Later):
            value.then(settle)
        else:
            settle(Reply(value))


def answer(
    core: EngineCore,
    message: EngineCommand,
    send: Callable[[CommandReply], None],
    more: Handlers = NO_HANDLERS,
) -> None:
    """Carry out a command from the wire, and send the message that replies to it, perhaps later."""

    def settle(reply: Reply) -> None:
        try:
            value = b"" if reply.value is None else pack(reply.value)
        except WireError as error:
            send(unsendable(message, error))
        else:
            send(CommandReply(message.number, value, reply.error))

    kind = commands.BY_NAME.get(message.name)
    if kind is None:
        known = ", ".join(commands.BY_NAME)
        why = f"this engine has no command {message.name!r}, but {known}"
        settle(_failed(commands.UNKNOWN_COMMAND, why))
        return
    try:
        command = unpack(message.arguments, kind)
    except WireError as error:
        settle(_failed(commands.WRONG_ARGUMENTS, f"{message.name}: {error}"))
        return
    carry_out(core, command, settle, more)


def unsendable(message: EngineCommand, error: WireError) -> CommandReply:
    """Return what replies to a command whose result cannot be sent."""
    return CommandReply(message.number, error=_failed(commands.UNSENDABLE, str(error)).error)


def _failed(code: str, message: str) -> Reply:
    return Reply(error=CommandError(code, message[: commands.MAX_MESSAGE]))
