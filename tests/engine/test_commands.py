"""The engine carries out each command between two steps, and replies to each exactly once."""

from __future__ import annotations

import time
from typing import Any, get_args

import pytest

from octavo.core.config import CoreConfig
from octavo.core.engine import EngineCore
from octavo.engine import commands as handlers
from octavo.engine.commands import HANDLERS, CommandRefusedError, Later
from octavo.engine.process import EngineLoop
from octavo.exec.recording import RecordingExecutor, SuspectRecord
from octavo.wire import message_types as messages
from octavo.wire.channel import StepProgress
from octavo.wire.commands import (
    BY_NAME,
    FAILED,
    UNKNOWN_COMMAND,
    UNSENDABLE,
    WRONG_ARGUMENTS,
    AnyCommand,
    Command,
    Pause,
    ResetPrefixCache,
    Resume,
    SetLogLevel,
)
from octavo.wire.message_types import CommandReply, EngineCommand, FromEngine, WireError, pack
from tests.engine.test_loop import Messages, Record, Steps, added


def make_core() -> EngineCore:
    record = Record()
    executor = RecordingExecutor(Steps(record), SuspectRecord(record))
    return EngineCore(CoreConfig(num_blocks=40, max_model_len=64), executor, time.monotonic, b"k")


def code_of(reply: CommandReply) -> str | None:
    return None if reply.error is None else reply.error.code


def answer(core: EngineCore, message: EngineCommand) -> CommandReply:
    """Carry out a command that ends at once, and return the only message that replies to it."""
    replies: list[CommandReply] = []
    handlers.answer(core, message, replies.append)
    (reply,) = replies
    return reply


def sent(number: int, command: Command) -> EngineCommand:
    """Return the message of a command."""
    return EngineCommand(number, command.name, pack(command))


def test_each_command_has_a_name_of_its_own_and_a_handler() -> None:
    kinds = get_args(AnyCommand)
    assert set(HANDLERS) == set(BY_NAME.values()) == set(kinds)
    assert len(BY_NAME) == len(kinds)


def test_commands_are_carried_out() -> None:
    core = make_core()
    assert answer(core, sent(3, Pause())) == CommandReply(3)
    assert core.scheduler.paused
    assert answer(core, sent(4, Resume())) == CommandReply(4)
    assert not core.scheduler.paused
    epoch = core.scheduler.kv.digests.epoch
    assert answer(core, sent(5, ResetPrefixCache())) == CommandReply(5)
    assert core.scheduler.kv.digests.epoch == epoch + 1


def test_a_reply_has_the_value_that_its_command_results_in(caplog: Any) -> None:
    caplog.set_level(17, "octavo")  # restores the level afterwards
    core = make_core()
    assert answer(core, sent(1, SetLogLevel(30))) == CommandReply(1, pack(17))
    assert answer(core, sent(2, SetLogLevel(20))) == CommandReply(2, pack(30))


def test_an_unknown_command_is_an_error_reply_that_names_the_known_ones() -> None:
    reply = answer(make_core(), EngineCommand(9, "load_adapter", pack(["sql", "/adapters/sql"])))
    assert (reply.number, code_of(reply)) == (9, UNKNOWN_COMMAND)
    assert reply.error is not None
    assert all(name in reply.error.message for name in BY_NAME)


@pytest.mark.parametrize(
    "arguments", [b"", b"\xc1", pack([]), pack(["loud"]), pack([30, 1]), pack([101]), pack({})]
)
def test_wrong_arguments_are_an_error_reply(arguments: bytes) -> None:
    reply = answer(make_core(), EngineCommand(1, "set_log_level", arguments))
    assert code_of(reply) == WRONG_ARGUMENTS


def test_errors_of_a_handler_are_error_replies(
    monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    def refuse(core: EngineCore, command: Command) -> object:
        raise CommandRefusedError("no_room", "all slots are taken")

    def fail(core: EngineCore, command: Command) -> object:
        raise ZeroDivisionError("a bug")

    core = make_core()
    for handler, code in ((refuse, "no_room"), (fail, FAILED), (lambda *_: object(), UNSENDABLE)):
        monkeypatch.setattr(handlers, "HANDLERS", {Pause: handler})
        assert code_of(answer(core, sent(1, Pause()))) == code
    assert "ZeroDivisionError" in caplog.text


def test_a_command_may_end_later_with_a_value_or_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    core, begun = make_core(), [Later(), Later()]
    left = iter(begun)
    monkeypatch.setattr(handlers, "HANDLERS", {SetLogLevel: lambda *_: next(left)})
    replies: list[CommandReply] = []
    for number in (1, 2):
        handlers.answer(core, sent(number, SetLogLevel(30)), replies.append)
    assert not replies
    begun[1].refuse(CommandRefusedError("no_room", "all slots are taken"))
    begun[0].end(17)
    assert [(each.number, code_of(each)) for each in replies] == [(2, "no_room"), (1, None)]
    assert replies[1].value == pack(17)


class FullChannel(Messages):
    """A channel whose frames have a maximum size."""

    def send(self, message: FromEngine) -> None:
        if len(messages.pack(message)) > 1000:
            raise WireError("the message is too large")
        super().send(message)


def test_a_reply_that_is_too_large_is_replaced_by_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handlers, "HANDLERS", {Pause: lambda *_: "x" * 2000})
    channel, suspects = FullChannel(), SuspectRecord(Record())
    loop = EngineLoop(make_core(), channel, suspects, StepProgress())
    channel.inbox.append(sent(6, Pause()))
    loop.run_step()
    (reply,) = [each for each in channel.sent if isinstance(each, CommandReply)]
    assert (reply.number, code_of(reply)) == (6, UNSENDABLE)


def test_replies_come_in_the_order_of_the_commands() -> None:
    channel, suspects = Messages(), SuspectRecord(Record())
    loop = EngineLoop(make_core(), channel, suspects, StepProgress())
    for number, command in enumerate([Pause(), Resume(), Pause(), ResetPrefixCache()]):
        channel.inbox.append(sent(number, command))
    loop.run_step()
    replies = [each for each in channel.sent if isinstance(each, CommandReply)]
    assert [reply.number for reply in replies] == [0, 1, 2, 3]


def test_a_command_that_crashes_is_blamed_on_no_request_that_is_not_in_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record, channel = Record(), Messages()
    suspects = SuspectRecord(record)
    executor = RecordingExecutor(Steps(record), suspects)
    config = CoreConfig(num_blocks=40, max_model_len=64)
    core = EngineCore(config, executor, time.monotonic, b"k" * 16)
    seen: list[tuple[int, ...]] = []
    monkeypatch.setattr(handlers, "HANDLERS", {Pause: lambda *_: seen.append(record.numbers)})
    loop = EngineLoop(core, channel, suspects, StepProgress())
    channel.inbox.extend([added(1, max_tokens=9)])
    loop.run_step()
    assert record.numbers == (1,)
    channel.inbox.append(sent(1, Pause()))
    loop.run_step()
    assert seen == [()]
