"""The matchers of all texts of an engine, compiled ahead or when they are needed, and their memory.

How much memory a grammar takes is known only when it has been compiled, and its text makes it grow.
So what is bounded is the sum, as the growth of the heap: from half of the bound on, no grammar is
compiled ahead until a text has ended, and beyond the bound the text whose masks took longest fails,
since the states of a lexer are what takes both the time and the memory. There is no bound in a
process whose heap holds other things, such as a caller's results.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition

import numpy as np

from octavo.grammar.failures import NoEngineError, why_failed
from octavo.grammar.protocol import GrammarEngine, GrammarError, Matcher

LOOK_SECONDS = 0.05  # a wait for memory looks so often whether other things have been freed


class GrammarSupply:
    """The grammar engine of a model, and the matchers that it has made. Threads share it."""

    def __init__(
        self,
        make_engine: Callable[[], GrammarEngine],
        *,
        limit_bytes: int = 1 << 62,
        heap_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        self._make_engine = make_engine
        self.limit_bytes = limit_bytes
        self._heap_bytes = heap_bytes
        self._engine: GrammarEngine | None = None
        self._failure = ""  # why there is no engine
        self._base_bytes = 0  # of the heap, without grammars
        self._making = Condition()  # for the engine
        self._change = Condition()  # for what follows
        self._prepared: dict[str, Matcher] = {}
        self._open: set[str] = set()  # the texts that have a matcher

    def engine(self) -> GrammarEngine:
        """Return the engine, which the first call makes; raise NoEngineError if it cannot be made.

        That is not tried again, since a model's files do not change.
        """
        if self._engine is not None:
            return self._engine
        with self._making:
            if self._engine is None:
                if self._failure:
                    raise NoEngineError(self._failure)
                try:
                    self._engine = self._make_engine()
                except BaseException as error:
                    self._failure = why_failed(error).message
                    raise NoEngineError(self._failure) from error
                self._base_bytes = self._heap_bytes()
            return self._engine

    def _make_room(self) -> None:
        """Free what no text needs, if it takes much.

        Where there is no text at all, what else has grown on the heap is counted no longer.
        """
        is_in_use = bool(self._open or self._prepared)
        if self._engine is None or self.used_bytes <= self.limit_bytes // (2 if is_in_use else 4):
            return
        self._engine.forget()
        if not is_in_use:
            self._base_bytes = self._heap_bytes()

    def _is_short(self) -> bool:
        """Return whether a grammar must wait until others have ended."""
        self._make_room()
        return self.used_bytes > self.limit_bytes // 2

    @property
    def used_bytes(self) -> int:
        """The memory of all grammars, prepared and open."""
        return 0 if self._engine is None else max(0, self._heap_bytes() - self._base_bytes)

    @property
    def shortage(self) -> str:
        """The message for a text that fails for lack of memory."""
        return (
            f"the grammars of all texts take {self.used_bytes >> 20} MiB, more than the limit of "
            f"{self.limit_bytes >> 20} MiB (grammar_memory_bytes), and this one's shape is the "
            "most complex: simplify it"
        )

    def prepare(self, name: str, text: str, is_wanted: Callable[[], bool]) -> None:
        """Compile the grammar of a text that will begin soon; wait until there is memory for it.

        Return without compiling it as soon as it is not wanted any more.
        """
        engine = self.engine()
        with self._change:
            while is_wanted() and self._is_short():
                self._change.wait(LOOK_SECONDS)
        if is_wanted():
            matcher = engine.compile(text)
            self._fill_first(matcher, engine)
            with self._change:
                if is_wanted():
                    self._prepared[name] = matcher

    def _fill_first(self, matcher: Matcher, engine: GrammarEngine) -> None:
        """Compute the first mask, so that the text's first step need not; refuse an empty one."""
        row = np.zeros(engine.num_words, np.uint32)
        matcher.fill(row)
        if not row.any():
            raise GrammarError("no token of the model can begin a text of this shape")

    def matcher(self, name: str, text: str) -> Matcher:
        """Return a matcher for a text that begins; raise GrammarError if there is none."""
        with self._change:
            self._make_room()
            self._open.add(name)
            prepared = self._prepared.pop(name, None)
        return prepared or self.engine().compile(text)

    def release(self, name: str) -> None:
        """Forget a text that has ended, or that will not begin."""
        with self._change:
            matcher = self._prepared.pop(name, None)
            self._open.discard(name)
            del matcher
            self._change.notify_all()
