"""One server behind the router: what is known of it, and what it has been given."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from octavo.options.route import RouteSettings
from octavo.route.address import Address
from octavo.route.asked import Asked
from octavo.route.kv_events.view import CacheView
from octavo.route.pool import ConnectionPool
from octavo.routing import Candidate, KnownPrefixes

FIRST_PAUSE_SECONDS, MOST_PAUSE_SECONDS = 0.5, 30.0  # after a failure; doubled by each further one
_MOST_DOUBLINGS = 8
RECENT_TOKENS = 1 << 16  # of prefixes that count as cached before events say so


class Upstream:
    """One server, with its health, its models, and the requests that it has from here."""

    def __init__(
        self,
        number: int,
        address: Address,
        config: RouteSettings,
        tls: ssl.SSLContext | None,
        clock: Callable[[], float],
    ) -> None:
        self.number = number
        self.address = address
        self.name = address.url
        self.pool = ConnectionPool(address, tls, config.connect_seconds)
        self._most_running = config.running_per_server
        self._clock = clock
        self.is_out = False  # an operator has taken it out
        self.is_well = False  # it has said so when it was last asked
        self.trouble = "it was not asked yet"  # why it is not well
        # The cards of its models by their names, in JSON; None: it has never said which it has.
        self.models: dict[str, bytes] | None = None
        self.nameless = ""  # why it did not say so when it was last asked
        self.num_requests = 0
        self.num_waiting_tokens = 0  # of prompts for which nothing has come back
        self.known = KnownPrefixes(config.known_tokens)
        # What it was given just now, of which its events need not say anything yet.
        self._recent = KnownPrefixes(min(config.known_tokens, RECENT_TOKENS))
        self.views: list[CacheView] = []  # of its engines, as their events say
        self._num_failures = 0  # in a row, of requests
        self.paused_until = 0.0

    @property
    def is_ready(self) -> bool:
        """True if it may be given requests."""
        return self.is_well and not self.is_out

    @property
    def is_paused(self) -> bool:
        """True if others go before it, because requests to it have failed."""
        return self._clock() < self.paused_until

    def may_have(self, model: str) -> bool:
        """Return whether it has a model, as far as is known; every server may have one unnamed."""
        return not model or self.models is None or model in self.models

    @property
    def has_events(self) -> bool:
        """True if events say what it has cached."""
        return any(each.is_live for each in self.views)

    def num_cached(self, asked: Asked) -> int:
        """Return how many tokens of a prompt it probably has.

        Its events say what it has had; a guess from what it was given counts where they do not.
        """
        tokens = asked.tokens
        live = [each for each in self.views if each.is_live]
        if tokens is None or asked.adapter is None or not live:
            return min(asked.num_tokens, self.known.num_tokens(asked.keys))
        is_whole = len(live) == len(self.views) and all(each.is_whole for each in live)
        guess = (self._recent if is_whole else self.known).num_tokens(asked.keys)
        # About as many of its tokens as of the text.
        guess = min(len(tokens), guess * len(tokens) // max(1, asked.num_tokens))
        return max(guess, *(each.num_tokens(tokens, asked.adapter) for each in live))

    def note_given(self, asked: Asked) -> None:
        """Note that it was given a request, whose prefix it will have."""
        self.known.note(asked.keys)
        self._recent.note(asked.keys)

    def candidate(self, asked: Asked) -> Candidate:
        """Return what the choice of a server for a request needs of this one."""
        return Candidate(
            self.number,
            self.num_cached(asked),
            self.num_waiting_tokens,
            self.num_requests,
            self._most_running,
            len(self.known),
        )

    @contextmanager
    def having(self, asked: Asked) -> Iterator[Callable[[], None]]:
        """Count a request as given to it; the function is called when its answer has begun."""
        num_new = max(1, asked.size - self.num_cached(asked))
        self.num_requests += 1
        self.num_waiting_tokens += num_new
        is_waiting = True

        def begin() -> None:
            nonlocal is_waiting
            if is_waiting:
                is_waiting = False
                self.num_waiting_tokens -= num_new

        try:
            yield begin
        finally:
            begin()
            self.num_requests -= 1

    # its health

    def note_well(self) -> None:
        """Note that it has said that it is ready."""
        self.is_well, self.trouble = True, ""

    def note_trouble(self, why: str, *, keeps_cache: bool) -> None:
        """Note that it has not said that it is ready; perhaps it starts again without a cache."""
        if not keeps_cache:
            self.known.clear()
            self._recent.clear()
        self.is_well, self.trouble = False, why

    def note_answer(self) -> None:
        """Note that it has answered a request."""
        self._num_failures = 0

    def note_failure(self) -> None:
        """Note that a request to it has failed: for a while others go before it.

        Requests that fail together, as when it ends, count once.
        """
        now = self._clock()
        if now < self.paused_until:
            return
        doublings = min(self._num_failures, _MOST_DOUBLINGS)
        self._num_failures += 1
        self.paused_until = now + min(MOST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2**doublings)

    def state(self) -> str:
        """Return its state in a word, as operators see it."""
        if self.is_out:
            return "out"
        if not self.is_well:
            return "down"
        return "paused" if self.is_paused else "ready"
