"""Carries out commands between two steps: a handler for each, and exactly one reply to each."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from octavo.core.engine import EngineCore
from octavo.core.request import Pause, ResetPrefixCache, Resume
from octavo.wire import commands
from octavo.wire.commands import CommandError, Reply
from octavo.wire.message_types import CommandReply, EngineCommand, WireError, pack, unpack

log = logging.getLogger(__name__)

# Carries out a command; returns the value of its reply, or raises CommandRefusedError.
Handler = Callable[[EngineCore, Any], object]


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


HANDLERS: dict[type[commands.Command], Handler] = {
    commands.Pause: _pause,
    commands.Resume: _resume,
    commands.ResetPrefixCache: _reset_prefix_cache,
    commands.SetLogLevel: _set_log_level,
}


def carry_out(core: EngineCore, command: commands.Command) -> Reply:
    """Carry out a command; an error of its handler is its reply, and the engine goes on."""
    try:
        return Reply(HANDLERS[type(command)](core, command))
    except CommandRefusedError as error:
        return _failed(error.code, str(error))
    except Exception as error:
        log.exception("the command %s failed", command.name)
        return _failed(commands.FAILED, f"{type(error).__name__}: {error}")


def answer(core: EngineCore, message: EngineCommand) -> CommandReply:
    """Carry out a command from the wire, and return the message that replies to it."""
    kind = commands.BY_NAME.get(message.name)
    if kind is None:
        known = ", ".join(commands.BY_NAME)
        reply = _failed(
            commands.UNKNOWN_COMMAND, f"this engine has no command {message.name!r}, but {known}"
        )
    else:
        try:
            command = unpack(message.arguments, kind)
        except WireError as error:
            reply = _failed(commands.WRONG_ARGUMENTS, f"{message.name}: {error}")
        else:
            reply = carry_out(core, command)
    try:
        value = b"" if reply.value is None else pack(reply.value)
    except WireError as error:
        return unsendable(message, error)
    return CommandReply(message.number, value, reply.error)


def unsendable(message: EngineCommand, error: WireError) -> CommandReply:
    """Return what replies to a command whose result cannot be sent."""
    return CommandReply(message.number, error=_failed(commands.UNSENDABLE, str(error)).error)


def _failed(code: str, message: str) -> Reply:
    return Reply(error=CommandError(code, message[: commands.MAX_MESSAGE]))
