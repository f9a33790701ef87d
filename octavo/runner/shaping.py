"""The texts that must have a shape: their grammars' states, and the masks of each step.

A step's masks depend on the tokens before it. They are computed in a thread of their own, as soon
as those are known and while the forward pass runs; the backend waits for them before it draws. So
at most one thread uses a matcher at a time: this one until the masks are ready, and nothing until
the tokens of the step have been collected.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from octavo.backends.step import Draws, Masks
from octavo.core.plan import NewSlot
from octavo.grammar.protocol import GrammarEngine, GrammarError, Matcher, Words

log = logging.getLogger(__name__)

_ALL = np.uint32(0xFFFFFFFF)


class ShapedText:
    """The text of one slot in its grammar."""

    def __init__(self, grammar: str, tokens: Sequence[int]) -> None:
        self.grammar = grammar
        self.fresh = list(tokens)  # known tokens that the matcher has not accepted yet
        self.matcher: Matcher | None = None
        self.error: str | None = None  # why no further token can be drawn


class MaskWork:
    """The masks of one step, until they are computed: for each text its rows and its drafts."""

    def __init__(self, rows: Words) -> None:
        self.masks = Masks(rows)
        self.texts: list[tuple[ShapedText, int, list[int]]] = []  # with the first row, the drafts


class Shaping:
    """The shaped texts of a worker."""

    def __init__(self, vocabulary: int, make_engine: Callable[[], GrammarEngine]) -> None:
        self._num_words = -(-vocabulary // 32)
        self._make_engine = make_engine
        self._engine: GrammarEngine | None = None
        self._texts: dict[int, ShapedText] = {}
        self._thread = ThreadPoolExecutor(1, "octavo grammar")

    def open(self, new: NewSlot) -> None:
        """Begin with the sequence of a slot, if its text must have a shape."""
        if new.sampling.grammar:
            output = new.tokens[new.num_prompt :]
            self._texts[new.slot] = ShapedText(new.sampling.grammar, output)

    def free(self, slot: int) -> None:
        """Forget the sequence of this slot."""
        self._texts.pop(slot, None)

    def work_of(self, draws: Draws) -> MaskWork | None:
        """Return the masks to compute for these draws; None if no text needs one."""
        texts = self._texts
        slots = draws.slots.tolist()
        if not texts or texts.keys().isdisjoint(slots):
            return None
        counts = [0] * len(slots) if draws.num_drafts is None else draws.num_drafts.tolist()
        drafts = draws.drafts.tolist()
        rows = np.full((len(slots) + len(drafts), self._num_words), _ALL, np.uint32)
        work, row, first_draft = MaskWork(rows), 0, 0
        for slot, count in zip(slots, counts, strict=True):
            if slot in texts:
                text_drafts = drafts[first_draft : first_draft + count]
                work.texts.append((texts[slot], row, text_drafts))
            row, first_draft = row + 1 + count, first_draft + count
        return work

    def start(self, work: MaskWork) -> None:
        """Compute the masks in the thread; all tokens before the step are known."""
        self._thread.submit(self._compute, work)

    def advance(self, slot: int, tokens: Sequence[int]) -> None:
        """Append drawn tokens to the text of a slot, if it must have a shape."""
        text = self._texts.get(slot)
        if text is not None:
            text.fresh.extend(tokens)

    def error(self, slot: int) -> str | None:
        """Return why the grammar of a slot cannot go on, if so."""
        text = self._texts.get(slot)
        return None if text is None else text.error

    def _compute(self, work: MaskWork) -> None:
        rows = work.masks.rows
        for text, row, drafts in work.texts:
            try:
                if text.error is None:
                    self._fill(text, rows[row : row + 1 + len(drafts)], drafts)
            except GrammarError as error:
                text.error = f"the grammar cannot go on: {error}"
            except BaseException as error:  # a Rust panic is no Exception
                log.exception("a grammar failed")
                text.error = f"the grammar failed: {type(error).__name__}"
            if text.error is not None:
                rows[row] = 0  # so that no token is left, and the request alone fails
        work.masks.set_ready()

    def _fill(self, text: ShapedText, rows: Words, drafts: list[int]) -> None:
        """Write the masks of a text's next token, and of those behind each of its drafts."""
        if text.matcher is None:
            if self._engine is None:
                self._engine = self._make_engine()
            text.matcher = self._engine.compile(text.grammar)
        matcher, fresh = text.matcher, text.fresh
        text.fresh = []
        matcher.accept(fresh)
        matcher.fill(rows[0])
        num_right = matcher.num_accepted(drafts) if drafts else 0
        for index in range(num_right):  # a wrong draft is not drawn, so none behind it is needed
            matcher.accept(drafts[index : index + 1])
            matcher.fill(rows[index + 1])
        matcher.roll_back(num_right)
