"""The slots whose texts have a shape: their grammars, the masks of each step, forced tokens.

A step's masks depend on the tokens before it. They are computed as soon as those are known, in a
thread of their own while the forward pass runs; the backend waits for them before it draws. Where
the pass needs every processor, they are computed before it: a thread that interrupts one of the
pass's own would delay all of them for longer.

So at most one thread uses a matcher at a time: this one until the masks are ready, and nothing
until the tokens of the step have been collected. Then, if no other step is in flight, the runner
asks for the tokens that must follow.

The reasoning of a text may have a budget (`octavo/runner/thinking.py`), with or without a grammar.
It needs a mask only where it is spent.

A grammar that fails leaves no token in the next mask of its text, so that its request alone fails.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from queue import SimpleQueue
from threading import Thread, current_thread
from time import perf_counter, thread_time

import numpy as np

from octavo.backends.step import Draws, Masks
from octavo.core.plan import NewSlot
from octavo.core.sampling_params import SamplingParams
from octavo.core.trees.form import ROOT
from octavo.grammar.failures import Failure, why_failed
from octavo.grammar.protocol import Matcher, Words
from octavo.grammar.supply import GrammarSupply
from octavo.runner.shaped_trees import (
    Behind,
    allowed_drafts,
    drafts_behind,
    fill_tree,
    require_in_tree,
)
from octavo.runner.slow_masks import SLOW_SECONDS, USUAL_SECONDS, SlowMasks, cost
from octavo.runner.speculate.proposer import NOTHING, Proposal
from octavo.runner.thinking import Thought

MAX_FORCED = 1024  # tokens at once; what follows a longer run is found again behind it
TIMED_STEPS = 32  # after a step with a slow mask
TOO_SLOW = (
    "finding the tokens that its shape allows takes so much time or memory that other requests "
    "would wait: "
    "simplify the shape"
)
_ALL = np.uint32(0xFFFFFFFF)


class ShapedText:
    """The text of one slot in its grammar, or with a budget of reasoning tokens, or both."""

    def __init__(self, new: NewSlot) -> None:
        sampling = new.sampling
        self.name = new.request_id
        self.slot = new.slot
        self.grammar = sampling.grammar
        # Known tokens that the matcher has not accepted yet.
        self.fresh = list(new.tokens[new.num_prompt :])
        self.num_output = len(self.fresh)
        self.min_tokens = sampling.min_tokens
        self.stop_ids = new.stop_ids
        self.end_ids: frozenset[int] = frozenset()  # known as soon as there is a matcher
        self.has_rules = has_rules(sampling)
        self.may_be_forced = may_be_forced(sampling)
        self.matcher: Matcher | None = None
        self.is_gone = False  # its slot was freed
        self.has_ended = False  # an end token has come: only end tokens may follow
        self.failure: Failure | None = None  # why no further token can be drawn
        self.cost = 0.0  # of its masks, in steps with slow ones
        self.is_slow = False  # its last mask was
        self.thought = Thought.of(new)

    def needs_masks(self, most_tokens: int) -> bool:
        """Return whether one of the next tokens, so many at most, may need a mask."""
        if self.grammar:
            return True
        thought = self.thought
        return thought is not None and not thought.is_over and thought.num_free < most_tokens

    def catch_up(self, supply: GrammarSupply) -> Matcher:
        """Take the fresh tokens up to the end of the text; return the matcher behind them."""
        if self.matcher is not None and not self.fresh:
            return self.matcher
        if self.matcher is None:
            self.matcher = supply.matcher(self.name, self.grammar)
            if self.is_gone:  # meanwhile, so that it must be released here
                supply.release(self.name)
            self.end_ids = supply.engine().end_ids
        fresh, self.fresh = self.fresh, []
        if not self.has_ended and fresh:
            inner = before_end(fresh, self.end_ids)
            self.has_ended = len(inner) < len(fresh)
            self.matcher.accept(inner)
        return self.matcher

    def fail(self, failure: Failure) -> None:
        """Draw no further token for this reason."""
        self.failure = failure
        self.matcher = None  # which may be large

    def finish_row(self, row: Words, error: BaseException | None) -> None:
        """Complete a mask that the grammar has given, or clear it."""
        if error is None:
            self.keep_open(row, self.num_output)
        else:
            self.fail(why_failed(error))
            row[:] = 0

    def keep_open(self, row: Words, num_output: int) -> None:
        """Remove what would stop the text before its `min_tokens`.

        A text that can only end has no token left then. Other stop tokens stay where the shape
        requires one: the text goes on behind it.
        """
        if num_output >= self.min_tokens:
            return
        clear(row, self.end_ids)
        kept = row.copy()
        clear(kept, self.stop_ids)
        if kept.any():
            row[:] = kept


class MaskWork:
    """The masks of one step, until they are computed: for each text its rows and its drafts."""

    def __init__(self, rows: Words, texts: list[tuple[ShapedText, int, list[int], Behind]]) -> None:
        self.masks = Masks(rows)
        self.texts = texts  # with the first row, the drafts, and those behind each row
        self.has_begun = False

    def depends_on(self, slots: Collection[int]) -> bool:
        """Return whether a text has one of these slots, for which a step before this one draws."""
        return any(text.slot in slots for text, *_ in self.texts)


class Shaping:
    """The shaped texts of a worker."""

    def __init__(
        self,
        vocabulary: int,
        supply: GrammarSupply,
        *,
        beside: bool = True,
        clock: Callable[[], float] = perf_counter,
        own_clock: Callable[[], float] = thread_time,  # of the calling thread
    ) -> None:
        self._beside = beside  # whether masks are computed while the forward pass runs
        self._supply = supply
        self._num_words = -(-vocabulary // 32)
        # The mask that allows only end tokens; until the engine is made, it allows none.
        self._ends: Words = np.zeros(self._num_words, np.uint32)
        self._has_ends = False
        self._clock, self._own_clock = clock, own_clock
        self._slow_masks = SlowMasks(clock())
        self._used_bytes = 0  # of all grammars, after the last masks
        self._num_timed = 0  # steps whose masks are computed one by one
        self._texts: dict[int, ShapedText] = {}
        self._buffers: list[Words] = []  # of masks that no step needs any more
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: Thread | None = None

    def open(self, new: NewSlot) -> None:
        """Begin with the sequence of a slot, if it has a grammar or a budget of reasoning."""
        if new.sampling.grammar or new.sampling.thinking_marks is not None:
            self._texts[new.slot] = ShapedText(new)

    def free(self, slot: int) -> None:
        """Forget the sequence of this slot."""
        text = self._texts.pop(slot, None)
        if text is not None:
            text.is_gone = True
            self._supply.release(text.name)

    def work_of(self, draws: Draws, num_unknown: int = 0) -> MaskWork | None:
        """Return the masks to compute for these draws; None if no text needs one.

        Steps in flight may draw `num_unknown` tokens of a text before.
        """
        if not self._texts:
            return None
        slots, drafts = draws.slots.tolist(), draws.drafts.tolist()
        counts = [0] * len(slots) if draws.num_drafts is None else draws.num_drafts.tolist()
        texts: list[tuple[ShapedText, int, list[int], Behind]] = []
        parents = draws.parents.tolist()
        others: list[slice] = []  # rows in which every token may be drawn
        row = first_draft = 0
        for slot, count in zip(slots, counts, strict=True):
            text, end = self._texts.get(slot), row + 1 + count
            if text is not None and text.needs_masks(num_unknown + count + 1):
                own = slice(first_draft, first_draft + count)
                behind = drafts_behind(parents[own] if parents else range(count))
                texts.append((text, row, drafts[own], behind))
            else:
                others.append(slice(row, end))
            row, first_draft = end, first_draft + count
        if not texts:
            return None
        rows = self._make_rows(row)
        for free in others:
            rows[free] = _ALL
        return MaskWork(rows, texts)

    def _make_rows(self, count: int) -> Words:
        """Return memory for so many masks, whatever it holds."""
        if self._buffers:
            buffer = self._buffers.pop()
            if len(buffer) >= count:
                return buffer[:count]
        return np.empty((count, self._num_words), np.uint32)

    def end(self, work: MaskWork) -> None:
        """Take back the memory of a step's masks, when it has been collected."""
        rows = work.masks.rows
        self._buffers.append(rows if rows.base is None else rows.base)

    def start(self, work: MaskWork, *, is_running: bool = False) -> None:
        """Compute the masks; all tokens before the step are known, which may run already."""
        work.has_begun = True
        if not (self._beside or is_running):
            self._compute(work)
            return
        if self._thread is None:
            self._thread = Thread(
                target=_serve, args=(self._queue,), name="octavo grammar", daemon=True
            )
            self._thread.start()
            weakref.finalize(self, _stop, self._queue, self._thread)
        self._queue.put(partial(self._compute, work))

    def __contains__(self, slot: int) -> bool:
        return slot in self._texts

    @property
    def is_used(self) -> bool:
        """True while there is such a text."""
        return bool(self._texts)

    def advance(self, slot: int, tokens: Sequence[int]) -> None:
        """Append drawn or forced tokens to the text of a slot."""
        text = self._texts[slot]
        if text.thought is not None:
            text.thought.advance(tokens)
        if text.grammar:
            text.fresh.extend(tokens)
            text.num_output += len(tokens)

    def failure(self, slot: int) -> Failure | None:
        """Return why the grammar of a slot cannot go on, if so."""
        return self._texts[slot].failure

    def is_alone(self, slot: int) -> bool:
        """Return whether nothing but its grammar forbids tokens to the text of a slot."""
        text = self._texts.get(slot)
        return text is not None and not (text.has_rules or text.min_tokens)

    def forced(self, slot: int) -> list[int]:
        """Return the tokens that must follow in a slot, whatever would be drawn; no step may run.

        They depend on the grammar and the tokens before them alone.
        """
        text = self._texts[slot]
        if text.matcher is None or not text.may_be_forced:
            return []
        try:
            matcher = text.catch_up(self._supply)
            return [] if text.has_ended else matcher.forced(MAX_FORCED)
        except BaseException as error:
            text.fail(why_failed(error))
            return []

    def allowed(self, slot: int, proposal: Proposal) -> Proposal:
        """Return those of a slot's drafts that its grammar may allow, if there is one.

        No step may run, as for `forced`. A token that ends the text may be right, nothing behind.
        """
        text = self._texts.get(slot)
        if text is None or text.matcher is None or not text.grammar:
            return proposal
        drafts, tree = list(proposal.tokens), proposal.tree
        parents = range(len(drafts)) if tree is None else [each - ROOT for each in tree.parents]
        try:
            matcher = text.catch_up(self._supply)
            if text.has_ended:
                return NOTHING
            allowed = allowed_drafts(matcher, drafts, drafts_behind(parents), text.end_ids)
        except BaseException as error:
            text.fail(why_failed(error))
            return NOTHING
        return proposal.without(allowed)

    def _compute(self, work: MaskWork) -> None:
        """Write the masks; an error fails the texts of this step, and nothing else."""
        try:
            self._write(work)
        except BaseException as caught:  # a panic of the library is no Exception
            failure = why_failed(caught)
            for text, row, drafts, _ in work.texts:
                text.fail(text.failure or failure)
                work.masks.rows[row : row + 1 + len(drafts)] = 0
            if isinstance(caught, KeyboardInterrupt):
                raise
        finally:
            work.masks.set_ready()

    def _write(self, work: MaskWork) -> None:
        rows = work.masks.rows
        together: list[tuple[Matcher, int]] = []
        texts: list[ShapedText] = []
        for text, row, drafts, behind in work.texts:
            try:
                if text.failure is None:
                    matcher = self._begin(text, rows[row : row + 1 + len(drafts)], drafts, behind)
                    if matcher is not None:
                        together.append((matcher, row))
                        texts.append(text)
            except BaseException as caught:  # a panic of the library is no Exception
                text.fail(why_failed(caught))
            if text.failure is not None:
                rows[row] = 0
        if together and self._num_timed:
            self._num_timed -= 1
            has_others = len(rows) > len(together)
            self._fill_each(rows, together, texts, has_others)
        elif together:
            began = self._clock()
            errors = self._supply.engine().fill_all(rows, together)
            seconds, before = self._clock() - began, self._used_bytes
            self._used_bytes = self._supply.used_bytes
            usual = SLOW_SECONDS + len(together) * USUAL_SECONDS
            if self._cost(seconds, before, self._used_bytes) > usual:
                self._num_timed = TIMED_STEPS
            for text, (_, row), error in zip(texts, together, errors, strict=True):
                text.finish_row(rows[row], error)
        else:
            self._used_bytes = self._supply.used_bytes
        if self._used_bytes > self._supply.limit_bytes:
            self._fail_costliest()
        for text, row, drafts, behind in work.texts:
            if text.thought is not None:
                require_in_tree(text.thought, rows[row : row + 1 + len(drafts)], drafts, behind)

    def _fill_each(
        self,
        rows: Words,
        together: list[tuple[Matcher, int]],
        texts: list[ShapedText],
        has_others: bool,
    ) -> None:
        """Fill rows one by one, and take the cost of each; fail slow ones that have had theirs."""
        has_others = has_others or not all(text.is_slow for text in texts)
        for text, (matcher, row) in zip(texts, together, strict=True):
            if text.is_slow and has_others and self._slow_masks.is_spent(self._clock()):
                text.fail(Failure(TOO_SLOW, is_impossible=True))
                rows[row] = 0
                continue
            began, before = self._own_clock(), self._used_bytes
            error: BaseException | None = None
            try:
                matcher.fill(rows[row])
            except BaseException as caught:  # a panic of the library is no Exception
                error = caught
            seconds, self._used_bytes = self._own_clock() - began, self._supply.used_bytes
            spent = self._cost(seconds, before, self._used_bytes)
            text.cost += spent
            text.is_slow = self._slow_masks.spend(spent)
            text.finish_row(rows[row], error)

    def _cost(self, seconds: float, before: int, after: int) -> float:
        """Return what masks have cost that took so long; the memory before and after is given."""
        return cost(seconds, after - before, self._supply.limit_bytes)

    def _fail_costliest(self) -> None:
        """Fail the text whose masks cost most, and free its memory."""
        texts = [text for text in tuple(self._texts.values()) if text.matcher is not None]
        if texts:
            costliest = max(texts, key=lambda text: text.cost)
            costliest.fail(Failure(self._supply.shortage, is_impossible=True))

    def _begin(
        self, text: ShapedText, rows: Words, drafts: list[int], behind: Behind
    ) -> Matcher | None:
        """Take a text's fresh tokens, and write its masks if it has drafts or has ended.

        Else return its matcher, whose mask is to be written.
        """
        if not text.grammar or (text.is_gone and text.matcher is None):  # its token is not wanted
            rows[:] = _ALL
            return None
        matcher = text.catch_up(self._supply)
        if not self._has_ends:
            self._has_ends = True
            for token in text.end_ids:
                self._ends[token // 32] |= np.uint32(1 << token % 32)
        if text.has_ended:
            rows[:] = self._ends
            return None
        if not drafts:
            return matcher

        def finish(row: Words, num_before: int) -> None:
            text.keep_open(row, text.num_output + num_before)

        fill_tree(matcher, rows, drafts, behind, self._ends, text.end_ids, finish)
        return None


def _serve(queue: SimpleQueue[Callable[[], None] | None]) -> None:
    """Run the calls of a queue until None comes; keep none of them alive meanwhile."""
    while (work := queue.get()) is not None:
        work()
        del work


def _stop(queue: SimpleQueue[Callable[[], None] | None], thread: Thread) -> None:
    """End the thread of a queue, at the latest when this process ends."""
    queue.put(None)
    if thread is not current_thread():
        thread.join()


def has_rules(sampling: SamplingParams) -> bool:
    """Return whether rules beside the grammar forbid tokens."""
    forbids = sampling.bad_words_token_ids or sampling.logits_processors
    return bool(forbids) or sampling.allowed_token_ids is not None


def may_be_forced(sampling: SamplingParams) -> bool:
    """Return whether a token that the grammar forces needs no draw.

    Rules that forbid tokens may leave none, which fails the request, log-probabilities are those of
    a draw, and a sampler with a state changes it with each.
    """
    needs_draw = has_rules(sampling) or sampling.has_state
    return not needs_draw and sampling.logprobs is None


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
