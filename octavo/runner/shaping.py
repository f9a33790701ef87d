"""The slots whose texts have a shape: their grammars, the masks of each step, forced tokens.

A step's masks depend on the tokens before it. They are computed in a thread of their own, as soon
as those are known and while the forward pass runs; the backend waits for them before it draws. So
at most one thread uses a matcher at a time: this one until the masks are ready, and nothing until
the tokens of the step have been collected. Then, if no other step is in flight, the runner asks for
the tokens that must follow.

A grammar that fails leaves no token in the next mask of its text, so that its request alone fails.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from octavo.backends.step import Draws, Masks
from octavo.core.plan import NewSlot
from octavo.core.sampling_params import SamplingParams
from octavo.grammar.protocol import GrammarEngine, GrammarError, Matcher, Words

log = logging.getLogger(__name__)

MAX_FORCED = 1024  # tokens at once; what follows a longer run is found again behind it
_ALL = np.uint32(0xFFFFFFFF)


class ShapedText:
    """The text of one slot in its grammar."""

    def __init__(self, new: NewSlot) -> None:
        sampling = new.sampling
        self.grammar = sampling.grammar
        # Known tokens that the matcher has not accepted yet.
        self.fresh = list(new.tokens[new.num_prompt :])
        self.num_output = len(self.fresh)
        self.min_tokens = sampling.min_tokens
        self.stop_ids = new.stop_ids
        self.may_be_forced = may_be_forced(sampling)
        self.matcher: Matcher | None = None
        self.has_ended = False  # an end token has come: only end tokens may follow
        self.error: str | None = None  # why no further token can be drawn

    def catch_up(self, engine: GrammarEngine) -> Matcher:
        """Take the fresh tokens up to the end of the text; return the matcher behind them."""
        if self.matcher is None:
            self.matcher = engine.compile(self.grammar)
        fresh, self.fresh = self.fresh, []
        if not self.has_ended and fresh:
            inner = before_end(fresh, engine.end_ids)
            self.has_ended = len(inner) < len(fresh)
            self.matcher.accept(inner)
        return self.matcher

    def keep_open(self, row: Words, num_output: int) -> None:
        """Remove what would stop the text before its `min_tokens`, unless nothing else is left."""
        if num_output >= self.min_tokens:
            return
        kept = row.copy()
        clear(kept, self.stop_ids)
        if kept.any():
            row[:] = kept


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
        self._ends: Words = np.zeros(0, np.uint32)  # the mask that allows only end tokens
        self._texts: dict[int, ShapedText] = {}
        self._thread = ThreadPoolExecutor(1, "octavo grammar")

    def open(self, new: NewSlot) -> None:
        """Begin with the sequence of a slot, if its text must have a shape."""
        if new.sampling.grammar:
            self._texts[new.slot] = ShapedText(new)

    def free(self, slot: int) -> None:
        """Forget the sequence of this slot."""
        self._texts.pop(slot, None)

    def work_of(self, draws: Draws) -> MaskWork | None:
        """Return the masks to compute for these draws; None if no text needs one."""
        texts = self._texts
        if not texts:
            return None
        slots = draws.slots.tolist()
        if texts.keys().isdisjoint(slots):
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
        """Append drawn or forced tokens to the text of a slot, if it must have a shape."""
        text = self._texts.get(slot)
        if text is not None:
            text.fresh.extend(tokens)
            text.num_output += len(tokens)

    def error(self, slot: int) -> str | None:
        """Return why the grammar of a slot cannot go on, if so."""
        text = self._texts.get(slot)
        return None if text is None else text.error

    def forced(self, slot: int) -> list[int]:
        """Return the tokens that must follow in a slot, whatever would be drawn; no step may run.

        They depend on the grammar and the tokens before them alone.
        """
        text, engine = self._texts.get(slot), self._engine
        if text is None or engine is None or not text.may_be_forced or text.error is not None:
            return []
        try:
            matcher = text.catch_up(engine)
            return [] if text.has_ended else matcher.forced(MAX_FORCED)
        except BaseException as error:
            text.error = _message(error)
            return []

    def _compute(self, work: MaskWork) -> None:
        rows = work.masks.rows
        for text, row, drafts in work.texts:
            try:
                if text.error is None:
                    self._fill(text, rows[row : row + 1 + len(drafts)], drafts)
            except BaseException as error:  # a panic of the library is no Exception
                text.error = _message(error)
            if text.error is not None:
                rows[row] = 0
        work.masks.set_ready()

    def _fill(self, text: ShapedText, rows: Words, drafts: list[int]) -> None:
        """Write the masks of a text's next token, and of those behind each of its drafts."""
        if self._engine is None:
            self._engine = self._make_engine()
            self._ends = np.zeros(self._num_words, np.uint32)
            for token in self._engine.end_ids:
                self._ends[token // 32] |= np.uint32(1 << token % 32)
        matcher = text.catch_up(self._engine)
        if text.has_ended:
            rows[:] = self._ends
            return
        matcher.fill(rows[0])
        text.keep_open(rows[0], text.num_output)
        inner = before_end(drafts, self._engine.end_ids)
        num_right = matcher.num_accepted(inner) if inner else 0
        for index in range(num_right):  # a wrong draft is not drawn, so none behind it is needed
            matcher.accept(inner[index : index + 1])
            matcher.fill(rows[index + 1])
            text.keep_open(rows[index + 1], text.num_output + index + 1)
        matcher.roll_back(num_right)
        if num_right == len(inner):
            rows[num_right + 1 :] = self._ends


def may_be_forced(sampling: SamplingParams) -> bool:
    """Return whether a token that the grammar forces needs no draw.

    Rules that forbid tokens may leave none, which fails the request, and log-probabilities are
    those of a draw.
    """
    forbids = sampling.bad_words_token_ids or sampling.logits_processors
    return not forbids and sampling.allowed_token_ids is None and sampling.logprobs is None


def before_end(tokens: list[int], end_ids: frozenset[int]) -> list[int]:
    """Return the tokens before the first that ends a text."""
    for index, token in enumerate(tokens):
        if token in end_ids:
            return tokens[:index]
    return tokens


def clear(row: Words, tokens: Iterable[int]) -> None:
    """Clear the bits of tokens in a mask."""
    for token in tokens:
        if token < 32 * len(row):
            row[token // 32] &= ~np.uint32(1 << token % 32)


def _message(error: BaseException) -> str:
    """Return what a request is answered whose grammar has failed."""
    if isinstance(error, GrammarError):
        return f"the grammar cannot go on: {error}"
    log.error("a grammar failed", exc_info=error)
    return f"the grammar failed: {type(error).__name__}"
