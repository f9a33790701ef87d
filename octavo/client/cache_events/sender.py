"""Sends batches of KV events to those who have subscribed, and again to those who ask for them.

What a reader can make it keep is bounded: of its subscriptions those with which the topic begins,
batches that wait for it, questions that wait. An answer is read from the batches that are kept for
all while it is sent, so that one that is not taken keeps nothing.
"""

from __future__ import annotations

import logging
import os
import select
import time
from collections import OrderedDict, deque
from contextlib import suppress

from octavo.options.kv_events import KVEventsConfig
from octavo.zmtp.parser import Message, frames
from octavo.zmtp.port import Caller, Port

log = logging.getLogger(__name__)

MOST_KEPT_BYTES = 64 << 20  # of the batches that are kept to be sent again
MOST_WAITING_BYTES = 8 << 20  # of the batches that wait for one reader, unless it is one alone
MOST_QUESTIONS = 64  # of one reader, that wait for their answers
_PORTION_BYTES = 1 << 16  # of an answer, between two looks at the others
_END = (-1).to_bytes(8, "big", signed=True)  # behind the last batch that is sent again
_SUBSCRIBE, _CANCEL = 1, 0


class Sender:
    """The loop of the thread that has all connections of one engine's readers."""

    def __init__(
        self,
        batches: deque[bytes | None],
        woken: int,
        outlet: Port,
        replays: Port | None,
        config: KVEventsConfig,
    ) -> None:
        self._batches, self._woken = batches, woken
        self._outlet, self._replays = outlet, replays
        self._ports = [each for each in (outlet, replays) if each is not None]
        self._topic = config.topic.encode()
        self._most_kept, self._most_waiting = config.buffer_steps, config.hwm
        self._kept: OrderedDict[int, bytes] = OrderedDict()
        self._num_bytes = 0  # of those
        self._number = 0

    def run(self) -> None:
        """Send what comes, and what is asked for, until the end."""
        try:
            while self._round():
                pass
        except Exception:
            log.exception("KV events are published no more")
        finally:
            for port in self._ports:
                port.close()
            os.close(self._woken)

    def _round(self) -> bool:
        began = time.thread_time()
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        owners: dict[int, tuple[Port, Caller | None]] = {}
        patience = [each for each in [port.look() for port in self._ports] if each is not None]
        for port in self._ports:
            for descriptor, events, caller in port.wanted():
                owners[descriptor] = port, caller
                poll.register(descriptor, events)
        found = poll.poll(max(1, 1000 * min(patience)) if patience else None)
        waited = time.thread_time() - began  # what it takes to wait for all is the callers' too
        for descriptor, what in found:
            if descriptor in owners:
                port, caller = owners[descriptor]
                began = time.thread_time()
                self._serve(port, caller, what)
                # What is published, and how long that takes, is not theirs.
                if caller is None or port is self._replays or what & ~select.POLLOUT:
                    port.allowance.take(waited + time.thread_time() - began)
                    waited = 0.0
        return self._take_batches()

    def _take_batches(self) -> bool:
        """Send the batches that wait; return False at the end."""
        with suppress(BlockingIOError):
            os.read(self._woken, 1 << 16)
        while self._batches:
            batch = self._batches.popleft()
            if batch is None:
                return False
            self._publish(batch)
        return True

    def _serve(self, port: Port, caller: Caller | None, what: int) -> None:
        if caller is None:
            port.accept()
            return
        if what & ~select.POLLOUT:
            for message in port.read(caller):
                if port is self._outlet:
                    self._subscribe(caller, message)
                else:
                    self._ask(port, caller, message)
        if port is self._replays and port.allowance.rest() <= 0:
            self._answer(port, caller)
        port.write(caller)

    def _subscribe(self, caller: Caller, message: Message) -> None:
        change = message[0]
        if not self._topic.startswith(change[1:]):
            return  # such a subscription has no effect
        if change[:1] == bytes((_SUBSCRIBE,)):
            caller.topics.add(change[1:])
        elif change[:1] == bytes((_CANCEL,)):
            caller.topics.discard(change[1:])

    def _publish(self, batch: bytes) -> None:
        number = self._number
        self._number += 1
        message = frames((self._topic, number.to_bytes(8, "big"), batch))
        for each in [*self._outlet.callers]:
            connection = each.connection
            has_room = connection.num_waiting < self._most_waiting and (
                connection.waiting_bytes + len(batch) <= MOST_WAITING_BYTES
            )
            if each.topics and (has_room or not connection.num_waiting):
                connection.send(message)
                self._outlet.write(each)
        if self._replays is None:
            return
        self._kept[number] = batch
        self._num_bytes += len(batch)
        while len(self._kept) > self._most_kept or self._num_bytes > MOST_KEPT_BYTES:
            self._num_bytes -= len(self._kept.popitem(last=False)[1])

    def _ask(self, port: Port, caller: Caller, message: Message) -> None:
        """Take a question for all batches from a number on, as far as they are kept."""
        if len(message) != 2 or message[0] or len(message[1]) != 8:
            return  # no question
        if len(caller.questions) == MOST_QUESTIONS:
            port.end(caller, f"more than {MOST_QUESTIONS} questions wait for their answers")
            return
        caller.questions.append((int.from_bytes(message[1], "big"), self._number))

    def _answer(self, port: Port, caller: Caller) -> None:
        """Add a portion of the answers to what is sent, when the last one has been."""
        connection = caller.connection
        while caller.questions and connection.waiting_bytes < _PORTION_BYTES:
            first, end = caller.questions.popleft()
            number = max(first, next(iter(self._kept), end))
            if number < end:
                parts = (b"", number.to_bytes(8, "big"), self._kept[number])
                caller.questions.appendleft((number + 1, end))
            else:
                parts = (b"", _END, b"")
            connection.send(frames(parts))
