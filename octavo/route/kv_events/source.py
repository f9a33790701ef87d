"""One publisher of events: its batches in order, and those that were missed.

A batch has a number. Where one is missing, the publisher is asked to send it again; where that
cannot be, nothing is known any more but what comes from then on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from octavo.route.kv_events.form import NoBatchError, read_batch
from octavo.route.kv_events.view import CacheView

log = logging.getLogger(__name__)

ASK_SECONDS = 5.0  # for the answer to a question for missed batches
MOST_HELD, MOST_HELD_BYTES = 64, 4 << 20  # of batches that wait for those before them
_END = -1


class Ask(Protocol):
    """Asks a publisher to send again all from a number on; returns whether that can be."""

    def __call__(self, first: int) -> bool: ...


class Source:
    """The batches of one publisher, in order, as they are applied to its view."""

    def __init__(self, name: str, view: CacheView, ask: Ask, clock: Callable[[], float]) -> None:
        self._name = name
        self.view = view
        self._ask = ask
        self._clock = clock
        self._next: int | None = None  # the number that must come; None: any
        self._held: dict[int, bytes] = {}  # that came before others which are asked for
        self._asked_until: float | None = None
        self._has_come = False  # something that was asked for
        self._has_ended = False  # the connection: what is still read came before that
        self.num_gaps = 0
        self.num_refused = 0  # messages that are no batches

    def connected(self) -> None:
        """Begin anew: what came while there was no connection is missed."""
        self._has_ended = False
        self._next = None
        self._held.clear()
        self.view.forget()
        self._begin(0)

    def disconnected(self) -> None:
        """Forget everything: further changes do not come."""
        self._has_ended = True
        self._next = self._asked_until = None
        self._held.clear()
        self.view.forget()

    def published(self, number: int, data: bytes) -> None:
        """Take a batch as it is published."""
        if self._has_ended:
            return
        if self._asked_until is not None:
            held = sum(map(len, self._held.values()))
            if len(self._held) < MOST_HELD and held + len(data) <= MOST_HELD_BYTES:
                self._held[number] = data
            return  # one without room is missed when its turn comes
        self._take(number, data)

    def _take(self, number: int, data: bytes) -> None:
        if self._next is not None and number != self._next:
            self.num_gaps += 1
            if number < self._next:  # another publisher, which began anew
                self.view.forget()
                self._next = None
                first = 0
            else:
                first = self._next
            if self._begin(first):
                self._held[number] = data
                return
        self._apply(number, data)

    def _begin(self, first: int) -> bool:
        """Ask for what was missed; without an answer nothing is known but what comes."""
        if self._ask(first):
            self._asked_until = self._clock() + ASK_SECONDS
            self._has_come = False
            return True
        self.view.forget()
        self._next = None
        return False

    def replayed(self, number: int, data: bytes) -> None:
        """Take a batch that was sent again, or the end of them."""
        if self._asked_until is None:
            return  # nothing asked for it
        if number == _END:
            self._end_question()
            return
        self._asked_until = self._clock() + ASK_SECONDS
        self._has_come = True
        if self._next is None:
            self.view.forget()
            self.view.begin(knows_all=number == 0)
        elif number < self._next:
            return  # it is known already
        elif number > self._next:  # the publisher keeps them no more
            self.view.forget()
            self.view.begin(knows_all=False)
        self._apply(number, data)

    def _end_question(self) -> None:
        """Continue with what was published meanwhile."""
        self._asked_until = None
        held, self._held = self._held, {}
        first = min(held, default=0)
        if self._next is None:  # there was nothing to send again
            self.view.begin(knows_all=first == 0)
            self._next = first
        elif held and not self._has_come:  # it keeps none of those
            self.view.forget()
            self.view.begin(knows_all=False)
            self._next = first
        for each in sorted(held):
            if each >= (self._next or 0):
                self.published(each, held[each])

    def look(self) -> None:
        """Give up a question that has no answer."""
        if self._asked_until is not None and self._clock() >= self._asked_until:
            log.warning("KV events of %s: those that were missed did not come", self._name)
            self._asked_until = self._next = None
            held, self._held = self._held, {}
            self.view.forget()
            for each in sorted(held):
                if self._next in (None, each):  # a gap is shown by the next batch
                    self._apply(each, held[each])

    def _apply(self, number: int, data: bytes) -> None:
        view = self.view
        try:
            events = read_batch(data)
        except NoBatchError as error:
            if not self.num_refused:
                log.warning("KV events of %s: a message is refused: %s", self._name, error)
            self.num_refused += 1
            view.forget()  # what it has changed is not known
            self._next = number + 1
            return
        if not view.is_live:
            view.begin(knows_all=number == 0)
        view.apply(events)
        self._next = number + 1
