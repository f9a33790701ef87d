"""Grammars are compiled beside the steps, so that no running text waits for another one's grammar.

A request with a grammar is held by the core until a thread has compiled it: each text has its own,
so that none depends on what came before it. The first one also waits until the tokenizer has been
read. Keys take turns, so that one key's grammars delay each of another by one at most.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from threading import Lock

from octavo.core.request import Ready, Request
from octavo.core.stats import GRAMMAR
from octavo.grammar.failures import NoEngineError, why_failed
from octavo.grammar.supply import GrammarSupply


class GrammarLoader:
    """A thread that compiles grammars; only the engine's own thread calls the methods."""

    def __init__(self, supply: GrammarSupply) -> None:
        self._supply = supply
        self._thread = ThreadPoolExecutor(1, "octavo grammar loader")
        self._is_prepared = False
        self._lock = Lock()
        # Requests with their grammars, by key; the first key has the next turn.
        self._waiting: OrderedDict[str, OrderedDict[str, str]] = OrderedDict()
        self._held: dict[str, str] = {}  # requests whose `Ready` has not been taken, with the key
        self._ready: deque[Ready] = deque()  # filled by the thread

    def prepare_engine(self) -> None:
        """Begin to read the tokenizer, so that the first shape need not wait, nor texts beside it.

        The library keeps all of Python waiting for a tenth of a second.
        """
        if not self._is_prepared:
            self._is_prepared = True
            self._thread.submit(self._make_engine)

    def _make_engine(self) -> None:
        with contextlib.suppress(NoEngineError):  # each request with a shape is given the reason
            self._supply.engine()

    @property
    def is_prepared(self) -> bool:
        """True if the grammar engine has been made, or is being made."""
        return self._is_prepared

    @property
    def num_held(self) -> int:
        """The number of requests that still wait for their grammars."""
        return len(self._held)

    def hold(self, request: Request) -> Request:
        """Return a request as it is, or held while its grammar is compiled."""
        text, key = request.sampling.grammar, request.cache_scope
        if not text:
            return request
        self._is_prepared = True  # by this request
        with self._lock:
            self._held[request.request_id] = key
            self._waiting.setdefault(key, OrderedDict())[request.request_id] = text
        self._thread.submit(self._prepare_next)
        return replace(request, holds=(*request.holds, GRAMMAR))

    def take(self) -> list[Ready]:
        """Return what has become ready, or failed, since the last call."""
        taken = []
        while self._ready:
            ready = self._ready.popleft()
            if self._held.pop(ready.request_id, None) is not None:
                taken.append(ready)
        return taken

    def leave(self, request_id: str) -> bool:
        """Forget a request that has ended; return whether it still waited for its grammar."""
        key = self._held.pop(request_id, None)
        if key is not None:
            with self._lock:
                waiting = self._waiting.get(key)
                if waiting is not None and request_id in waiting:
                    del waiting[request_id]
                    if not waiting:
                        del self._waiting[key]
        self._supply.release(request_id)
        return key is not None

    def _next(self) -> tuple[str, str] | None:
        """Take the next request from the key whose turn it is; the key is the last one then."""
        with self._lock:
            if not self._waiting:
                return None  # some of those that were submitted have left
            key, waiting = self._waiting.popitem(last=False)
            taken = waiting.popitem(last=False)
            if waiting:
                self._waiting[key] = waiting
            return taken

    def _prepare_next(self) -> None:
        taken = self._next()
        if taken is None:
            return
        name, text = taken
        try:
            self._supply.prepare(name, text, partial(self._held.__contains__, name))
        except BaseException as error:  # a panic of the library is no Exception
            self._ready.append(Ready(name, GRAMMAR, *why_failed(error)))
        else:
            self._ready.append(Ready(name, GRAMMAR))
