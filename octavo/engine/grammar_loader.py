"""Grammars are compiled beside the steps, so that no running text waits for another one's grammar.

A request with a grammar is held by the core until a thread has compiled it: each text has its own,
so that none depends on what came before it. The first one also waits until the tokenizer has been
read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from octavo.core.request import Ready, Request
from octavo.core.stats import GRAMMAR
from octavo.grammar.failures import why_failed
from octavo.grammar.protocol import GrammarEngine


class GrammarLoader:
    """A thread that compiles grammars; all else of it is used by the engine's own thread."""

    def __init__(self, make_engine: Callable[[], GrammarEngine]) -> None:
        self._make_engine = make_engine
        self._engine: GrammarEngine | None = None
        self._thread = ThreadPoolExecutor(1, "octavo grammar loader")
        self._ready: deque[Ready] = deque()  # filled by the thread
        self.num_held = 0  # requests whose `Ready` has not been taken

    def hold(self, request: Request) -> Request:
        """Return a request as it is, or held while its grammar is compiled."""
        text = request.sampling.grammar
        if not text:
            return request
        self.num_held += 1
        self._thread.submit(self._prepare, request.request_id, text)
        return replace(request, holds=(*request.holds, GRAMMAR))

    def take(self) -> list[Ready]:
        """Return what has become ready, or failed, since the last call."""
        taken = []
        while self._ready:
            taken.append(self._ready.popleft())
        self.num_held -= len(taken)
        return taken

    def _prepare(self, request_id: str, text: str) -> None:
        try:
            if self._engine is None:
                self._engine = self._make_engine()
            self._engine.prepare(text)
        except BaseException as error:  # a panic of the library is no Exception
            self._ready.append(Ready(request_id, GRAMMAR, why_failed(error)))
        else:
            self._ready.append(Ready(request_id, GRAMMAR))
