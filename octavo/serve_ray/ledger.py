"""What a front has given to each replica: its prefixes, its open requests, and what waits there.

The front and Ray Serve's request router run in one process, and in different threads.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from itertools import count

from octavo.route.asked import Asked
from octavo.route.router import weight
from octavo.routing import Candidate, KnownPrefixes, choose, not_too_busy


class _Replica:
    """One replica, as far as this front knows it."""

    def __init__(self, known_tokens: int) -> None:
        self.known = KnownPrefixes(known_tokens)
        self.num_requests = 0
        self.num_waiting_tokens = 0  # of prompts for which nothing has come back


class _Open:
    """An open request, and the replica that has it."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.replica: _Replica | None = None
        self.num_new = 0  # tokens that wait there


class Ledger:
    """The open requests of a front, and its view of the replicas; safe in all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._replicas: dict[str, _Replica] = {}
        self._open: dict[int, _Open] = {}
        self._known_tokens = 1
        self._most_running = 1

    def configure(self, known_tokens: int, most_running: int) -> None:
        """Set how many tokens of a replica are remembered, and how many requests it runs."""
        self._known_tokens, self._most_running = known_tokens, most_running

    @property
    def num_open(self) -> int:
        """The number of requests that have not ended."""
        return len(self._open)

    def begin(self, asked: Asked) -> int:
        """Note a request; return its number, by which the router finds it."""
        number = next(self._numbers)
        with self._lock:
            self._open[number] = _Open(asked)
        return number

    def choose(self, number: int, reported: Mapping[str, int]) -> str:
        """Return the replica that a request costs least.

        `reported` has the candidates, and how many requests each had when it was last asked: other
        fronts give it some.
        """
        with self._lock:
            request = self._open.get(number)
            asked = None if request is None else request.asked
            names = [*reported]
            candidates = [
                self._candidate(place, name, reported[name], asked)
                for place, name in enumerate(names)
            ]
            if asked is not None and asked.session:
                even = [names[each.engine] for each in not_too_busy(candidates)]
                return max(even, key=lambda name: weight(asked.session, name))
            return names[choose(0 if asked is None else asked.num_tokens, candidates)]

    def _candidate(self, place: int, name: str, reported: int, asked: Asked | None) -> Candidate:
        replica = self._replica(name)
        cached = 0
        if asked is not None:
            cached = min(asked.num_tokens, replica.known.num_tokens(asked.keys))
        return Candidate(
            place,
            cached,
            replica.num_waiting_tokens,
            max(replica.num_requests, reported),
            self._most_running,
            len(replica.known),
        )

    def _replica(self, name: str) -> _Replica:
        found = self._replicas.get(name)
        if found is None:
            found = self._replicas[name] = _Replica(self._known_tokens)
        return found

    def note_routed(self, number: int, name: str) -> None:
        """Note that a replica has taken a request."""
        with self._lock:
            request = self._open.get(number)
            if request is None:  # its client has left meanwhile
                return
            self._release(request)
            replica, asked = self._replica(name), request.asked
            new = max(1, asked.num_tokens - replica.known.num_tokens(asked.keys))
            replica.known.note(asked.keys)
            replica.num_requests += 1
            replica.num_waiting_tokens += new
            request.replica, request.num_new = replica, new

    def note_answer(self, number: int) -> None:
        """Note that the answer to a request has begun."""
        with self._lock:
            request = self._open[number]
            if request.replica is not None:
                request.replica.num_waiting_tokens -= request.num_new
            request.num_new = 0

    def end(self, number: int) -> None:
        """Forget a request that has ended, however it did."""
        with self._lock:
            request = self._open.pop(number, None)
            if request is not None:
                self._release(request)

    def _release(self, request: _Open) -> None:
        if request.replica is not None:
            request.replica.num_requests -= 1
            request.replica.num_waiting_tokens -= request.num_new
        request.replica, request.num_new = None, 0

    def keep(self, names: Collection[str]) -> None:
        """Forget the replicas that are not among these any more."""
        with self._lock:
            for name in [each for each in self._replicas if each not in names]:
                del self._replicas[name]


LEDGER = Ledger()  # of this process
