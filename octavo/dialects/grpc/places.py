"""Places for calls and for the messages that arrive, shared between keys and between clients.

A call gets its place when its key is known and before its message is read, so that nothing of a
caller without a key is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator

from octavo.options.server import ServerSettings
from octavo.transport.errors import too_many

_SHARES = 4  # of the places for messages: a key has one at most
MAX_WATCHES = 512


class CallPlaces:
    """The open calls: limited in all, for each address and for each key."""

    def __init__(self, config: ServerSettings) -> None:
        self._most = config.max_connections
        self._most_of_client = config.max_connections_per_client
        has_others = len(config.api_keys) > 1
        self._most_of_key = max(1, self._most // 2) if has_others else self._most
        self._of_client: Counter[str] = Counter()
        self._of_key: Counter[str] = Counter()
        self.num_open = 0

    @contextlib.contextmanager
    def place(self, key: str, client: str) -> Iterator[None]:
        """Count a call while the block runs; raise ApiError if there are too many."""
        self._check(self.num_open, self._most, "all clients together")
        self._check(self._of_client[client], self._most_of_client, "this address")
        self._check(self._of_key[key], self._most_of_key, "this key")
        self._add(key, client, 1)
        try:
            yield
        finally:
            self._add(key, client, -1)

    def _check(self, number: int, most: int, whose: str) -> None:
        if number >= most:
            message = f"{number} calls of {whose} are open, and the limit is {most}"
            raise too_many(message, 1, "too_many_calls")

    def _add(self, key: str, client: str, number: int) -> None:
        self.num_open += number
        for counter, name in ((self._of_client, client), (self._of_key, key)):
            counter[name] += number
            if not counter[name]:
                del counter[name]


class MessagePlaces:
    """Places for messages that arrive, whose lengths are not known before.

    They are so few that messages of the largest size fit into the bytes that may wait. One key has
    a share of them; the keys that wait for a place have their turns.
    """

    def __init__(self, num_places: int) -> None:
        self._num_free = num_places
        self._most_of_one = max(1, num_places // _SHARES)
        self._taken: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # by who is next

    @contextlib.asynccontextmanager
    async def place(self, owner: str) -> AsyncIterator[None]:
        """Hold a place while the block runs; wait until there is one."""
        if self._num_free and self._taken[owner] < self._most_of_one:
            self._take(owner)
        else:
            await self._wait(owner)
        try:
            yield
        finally:
            self._release(owner)

    def _take(self, owner: str) -> None:
        self._num_free -= 1
        self._taken[owner] += 1

    async def _wait(self, owner: str) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._forget(owner, turn)
            else:  # the place came at the same time
                self._release(owner)
            raise

    def _forget(self, owner: str, turn: asyncio.Future[None]) -> None:
        queue = self._waiting.get(owner, deque())
        if turn in queue:
            queue.remove(turn)
            if not queue:
                del self._waiting[owner]

    def _release(self, owner: str) -> None:
        """Free a place, and give it to the next who may have one."""
        self._num_free += 1
        self._taken[owner] -= 1
        if not self._taken[owner]:
            del self._taken[owner]
        for name in [name for name in self._waiting if self._taken[name] < self._most_of_one]:
            queue = self._waiting.pop(name)
            while queue and queue[0].cancelled():  # and its task has not run since
                queue.popleft()
            if queue:
                self._take(name)
                queue.popleft().set_result(None)
                if queue:
                    self._waiting[name] = queue  # behind the others
                return


class OpenPlaces:
    """Places that need no key; one too many ends the oldest of the client that has most.

    So no client can take all of them, and one that has none always gets one.
    """

    def __init__(self, num_places: int) -> None:
        self._most = num_places
        self._of_client: dict[str, dict[asyncio.Timeout, None]] = {}  # the oldest first
        self.num_taken = 0

    @contextlib.asynccontextmanager
    async def place(self, client: str, seconds: float | None) -> AsyncIterator[None]:
        """Hold a place while the block runs; raise TimeoutError at its end."""
        async with asyncio.timeout(seconds) as limit:
            if self.num_taken >= self._most:
                self._end_oldest()
            self._of_client.setdefault(client, {})[limit] = None
            self.num_taken += 1
            try:
                yield
            finally:
                self._leave(client, limit)

    def _end_oldest(self) -> None:
        client, places = max(self._of_client.items(), key=lambda item: len(item[1]))
        oldest = next(iter(places))
        self._leave(client, oldest)
        oldest.reschedule(asyncio.get_running_loop().time())

    def _leave(self, client: str, limit: asyncio.Timeout) -> None:
        places = self._of_client.get(client, {})
        if limit in places:
            del places[limit]
            self.num_taken -= 1
            if not places:
                del self._of_client[client]
