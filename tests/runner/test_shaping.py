"""Masks and forced tokens of slots, with a toy grammar."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import cycle
from typing import Any

import numpy as np
import pytest

from octavo.backends.step import Draws, Words
from octavo.core.plan import NewSlot
from octavo.core.sampling_params import SamplingParams, ThinkingMarks
from octavo.grammar.protocol import GrammarEngine, Matcher
from octavo.grammar.supply import GrammarSupply
from octavo.runner.shaped_trees import drafts_behind, require_in_tree
from octavo.runner.shaping import Shaping, may_be_forced
from octavo.runner.thinking import Thought
from tests.grammar.tiny import allowed
from tests.grammar.toy import END, ToyEngine, ToyMatcher

VOCABULARY = 70


def make(engine: GrammarEngine | None = None) -> Shaping:
    return Shaping(VOCABULARY, GrammarSupply(lambda: engine or ToyEngine()))


def new(slot: int, grammar: str, output: Sequence[int] = (), **fields: Any) -> NewSlot:
    """Return a sequence with a prompt of two tokens and some output."""
    known = array("i", [9, 9, *output])
    sampling = SamplingParams(max_tokens=50, grammar=grammar, **fields)
    return NewSlot(slot, str(slot), known, 2, ((1,),), sampling, None, (END, 7))


def draws_of(slots: Sequence[int], drafts: Sequence[Sequence[int]] = ()) -> Draws:
    """Return a step that draws for these slots, with drafts for some."""
    numbers = np.array(slots, np.int32)
    if not drafts:
        return Draws((), (), numbers, np.arange(len(slots), dtype=np.int32))
    counts = np.array([len(each) for each in drafts], np.int32)
    flat = np.array([token for each in drafts for token in each], np.int32)
    return Draws((), (), numbers, np.cumsum(counts + 1, dtype=np.int32) - counts - 1, counts, flat)


def masks_of(shaping: Shaping, draws: Draws) -> Words:
    """Return the masks of a step, when they have been computed."""
    work = shaping.work_of(draws)
    assert work is not None
    shaping.start(work)
    return work.masks.wait()


def test_a_step_without_shaped_texts_has_no_masks() -> None:
    shaping = make()
    assert shaping.work_of(draws_of([0, 1])) is None
    shaping.open(new(3, "5 6"))
    assert shaping.work_of(draws_of([0, 1])) is None
    shaping.free(3)
    assert shaping.work_of(draws_of([3])) is None


def test_masks_are_those_behind_all_known_tokens_and_behind_each_right_draft() -> None:
    shaping = make()
    shaping.open(new(1, "5|6 7|8 9|10 11|12", output=[5]))
    masks = masks_of(shaping, draws_of([0, 1], [(1, 2), (8, 10, 13)]))
    assert [allowed(row, VOCABULARY) for row in masks[3:]][:3] == [{7, 8}, {9, 10}, {11, 12}]
    assert all(len(allowed(row, VOCABULARY)) == VOCABULARY for row in masks[:3])
    shaping.advance(1, [7])
    (mask,) = masks_of(shaping, draws_of([1]))
    assert allowed(mask, VOCABULARY) == {9, 10}, "drafts are rolled back"


def test_only_end_tokens_follow_an_end() -> None:
    shaping = make()
    shaping.open(new(0, "5 6", output=[5]))
    masks = masks_of(shaping, draws_of([0], [(6, END, 3)]))
    assert [allowed(row, VOCABULARY) for row in masks] == [{6}, {END}, {END}, {END}]
    shaping.advance(0, [6, END, END])
    (mask,) = masks_of(shaping, draws_of([0]))
    assert allowed(mask, VOCABULARY) == {END}
    assert shaping.forced(0) == []
    assert shaping.failure(0) is None


@pytest.mark.parametrize("output", [[], [5], [5, 6], [5, 6, 8]])
def test_a_grammar_begins_anew_from_the_emitted_tokens(output: list[int]) -> None:
    """A preempted sequence is opened again, with the same masks and forced tokens as before."""
    going, again = make(), make()
    going.open(new(0, "5|9 6 8 1|2"))
    again.open(new(4, "5|9 6 8 1|2", output=output))
    masks_of(going, draws_of([0]))
    for token in output:
        going.advance(0, [token])
    first, second = masks_of(going, draws_of([0])), masks_of(again, draws_of([4]))
    assert np.array_equal(first, second)
    assert going.forced(0) == again.forced(4)


def test_forced_tokens_are_those_without_a_choice() -> None:
    shaping = make()
    shaping.open(new(0, "1|2 5 6 8 3|4 9"))
    masks_of(shaping, draws_of([0]))
    assert shaping.forced(0) == []
    shaping.advance(0, [1])
    assert shaping.forced(0) == [5, 6, 8]
    shaping.advance(0, [5, 6, 8])
    (mask,) = masks_of(shaping, draws_of([0]))
    assert allowed(mask, VOCABULARY) == {3, 4}


@pytest.mark.parametrize(
    "rule",
    [
        {"bad_words_token_ids": [[5]]},
        {"allowed_token_ids": [1, 2, 5]},
        {"logprobs": 0},
        {"logits_processors": ["mine"]},
    ],
    ids=str,
)
def test_a_token_that_another_rule_may_forbid_or_report_is_drawn(rule: dict[str, Any]) -> None:
    assert not may_be_forced(SamplingParams(grammar="5", **rule))
    assert may_be_forced(
        SamplingParams(grammar="5", presence_penalty=1.0, logit_bias=((5, -100.0),))
    )


def test_a_stop_token_waits_for_min_tokens_unless_nothing_else_may_come() -> None:
    shaping = make()
    shaping.open(new(0, "5|7 7 5|7", min_tokens=3))
    masks = masks_of(shaping, draws_of([0], [(5, 7, 5)]))
    assert [allowed(row, VOCABULARY) for row in masks] == [{5}, {7}, {5}, {END}]


def test_no_token_is_left_before_min_tokens_to_a_text_that_can_only_end() -> None:
    shaping = make()
    shaping.open(new(0, "5 6", min_tokens=3))
    shaping.open(new(1, "5 6", min_tokens=2))
    masks = masks_of(shaping, draws_of([0, 1], [(5, 6), (5, 6)]))
    assert [allowed(row, VOCABULARY) for row in masks] == [{5}, {6}, set(), {5}, {6}, {END}]
    shaping.advance(0, [5, 6])
    (mask,) = masks_of(shaping, draws_of([0]))
    assert allowed(mask, VOCABULARY) == set()
    assert not shaping.is_alone(0), "min_tokens is a reason as well"


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ("!no grammar", ("the text cannot keep its shape: it begins with a mark", True)),
        ("5 !fill", ("the text cannot keep its shape: too complex", True)),
        ("5 !panic", ("the grammar failed: PanicError", False)),
        ("!accept", ("the text cannot keep its shape: no token is accepted here", True)),
        ("6", ("the text cannot keep its shape: token 5 is not allowed", True)),
    ],
)
def test_a_failure_leaves_no_token_for_its_own_text(
    grammar: str, message: tuple[str, bool]
) -> None:
    shaping = make()
    shaping.open(new(0, "5 6|8", output=[5]))
    shaping.open(new(1, grammar, output=[5]))
    masks = masks_of(shaping, draws_of([1, 0]))
    assert allowed(masks[0], VOCABULARY) == set()
    assert allowed(masks[1], VOCABULARY) == {6, 8}
    assert (shaping.failure(0), shaping.failure(1)) == (None, message)
    assert shaping.forced(1) == []
    masks = masks_of(shaping, draws_of([1, 0]))
    assert allowed(masks[0], VOCABULARY) == set(), "it stays failed"


def test_a_failure_while_forced_tokens_are_sought_fails_the_next_draw() -> None:
    """The text before it is the same, whether its tokens were forced or drawn."""
    shaping = make()
    shaping.open(new(0, "5 !accept 6"))
    masks_of(shaping, draws_of([0]))
    shaping.advance(0, [5, 3])
    assert shaping.forced(0) == []
    (mask,) = masks_of(shaping, draws_of([0]))
    assert allowed(mask, VOCABULARY) == set()
    message = "the text cannot keep its shape: no token is accepted here"
    assert shaping.failure(0) == (message, True)


def test_the_text_with_the_longest_masks_fails_where_grammars_take_too_much_memory() -> None:
    heap = 0
    supply = GrammarSupply(ToyEngine, limit_bytes=100, heap_bytes=lambda: heap)
    shaping = Shaping(VOCABULARY, supply)
    for slot in range(3):
        shaping.open(new(slot, "5 6|8 7"))
    masks_of(shaping, draws_of([0, 1, 2]))
    shaping._texts[1].cost = 1000.0
    heap = 101
    masks_of(shaping, draws_of([0, 2]))
    heap = 50
    assert [shaping.failure(slot) is None for slot in range(3)] == [True, False, True]
    assert "grammar_memory_bytes" in str(shaping.failure(1))
    masks = masks_of(shaping, draws_of([0, 1, 2]))
    assert [len(allowed(row, VOCABULARY)) for row in masks] == [1, 0, 1]
    for slot in range(3):
        shaping.free(slot)
    supply.matcher("next", "5")
    assert supply.used_bytes == 0, "what else takes memory is not counted"


class Clocks:
    """A clock of the machine and one of the thread, which masks of some grammars turn."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class SlowEngine(ToyEngine):
    """A grammar engine whose masks take 20 ms where a grammar begins with 1."""

    def __init__(self, clocks: Clocks) -> None:
        super().__init__()
        self._clocks = clocks

    def compile(self, text: str) -> ToyMatcher:
        matcher, clocks = super().compile(text), self._clocks
        fill = matcher.fill

        def slow(row: Words) -> None:
            clocks.now += 0.02 if text.startswith("1") else 1e-5
            fill(row)

        matcher.fill = slow  # type: ignore[method-assign]
        return matcher


def test_slow_masks_take_a_bounded_time_from_other_texts() -> None:
    clocks = Clocks()
    supply = GrammarSupply(lambda: SlowEngine(clocks))
    shaping = Shaping(VOCABULARY, supply, clock=clocks, own_clock=clocks)
    quick, slow = "2 " * 300, "1 " * 300
    for slot, grammar in enumerate((quick, slow, quick, slow, slow)):
        shaping.open(new(slot, grammar))
    spent = []
    for _ in range(60):
        began = clocks.now
        masks_of(shaping, draws_of(range(5)))
        spent.append(clocks.now - began)
        clocks.now += 0.01  # the rest of the step
        for slot in range(5):
            if shaping.failure(slot) is None:
                shaping.advance(slot, [1 + (slot in (0, 2))])
    assert [shaping.failure(slot) is None for slot in range(5)] == [True, False, True, False, False]
    assert sum(spent) < 0.2
    shaping.free(0)
    shaping.free(2)
    shaping.open(new(6, slow))
    for _ in range(60):
        masks_of(shaping, draws_of([6]))
        shaping.advance(6, [1])
    assert shaping.failure(6) is None, "it is alone, and delays no other"


class GrowingEngine(ToyEngine):
    """A grammar engine whose masks take time and memory where a grammar begins with 1.

    Neither would be slow by itself.
    """

    def __init__(self, clocks: Clocks) -> None:
        super().__init__()
        self._clocks = clocks
        self.heap_bytes = 0

    def compile(self, text: str) -> ToyMatcher:
        matcher = super().compile(text)
        fill = matcher.fill

        def grow(row: Words) -> None:
            if text.startswith("1"):
                self._clocks.now += 0.003
                self.heap_bytes += 4
            fill(row)

        matcher.fill = grow  # type: ignore[method-assign]
        return matcher


@pytest.mark.parametrize("limit_bytes", [1000, 1 << 62])
def test_time_and_memory_of_masks_are_bounded_together(limit_bytes: int) -> None:
    clocks = Clocks()
    engine = GrowingEngine(clocks)
    supply = GrammarSupply(
        lambda: engine, limit_bytes=limit_bytes, heap_bytes=lambda: engine.heap_bytes
    )
    shaping = Shaping(VOCABULARY, supply, clock=clocks, own_clock=clocks)
    for slot, grammar in enumerate(("2 " * 300, "1 " * 300, "1 " * 300)):
        shaping.open(new(slot, grammar))
    for _ in range(100):
        masks_of(shaping, draws_of(range(3)))
        clocks.now += 0.01  # the rest of the step
        for slot in range(3):
            if shaping.failure(slot) is None:
                shaping.advance(slot, [1 + (slot == 0)])
    are_well = [shaping.failure(slot) is None for slot in range(3)]
    assert are_well == ([True, False, False] if limit_bytes == 1000 else [True] * 3)
    assert engine.heap_bytes < 1000 or limit_bytes != 1000, "they failed before memory was short"


def test_memory_that_grows_while_a_mask_takes_no_time_is_not_its_own() -> None:
    """Another thread compiles grammars meanwhile; a slow text makes the steps be measured."""
    clocks = Clocks()
    engine = SlowEngine(clocks)
    heap = cycle((0, 1 << 20, 2 << 20))  # a compiler's, which is freed soon
    supply = GrammarSupply(lambda: engine, limit_bytes=32 << 20, heap_bytes=lambda: next(heap))
    shaping = Shaping(VOCABULARY, supply, clock=clocks, own_clock=clocks)
    for slot, grammar in enumerate(("2 " * 300, "1 " * 300, "2 " * 300)):
        shaping.open(new(slot, grammar))
    for _ in range(100):
        masks_of(shaping, draws_of(range(3)))
        clocks.now += 0.01  # the rest of the step
        for slot in range(3):
            if shaping.failure(slot) is None:
                shaping.advance(slot, [1 + (slot != 1)])
    assert [shaping.failure(slot) is None for slot in range(3)] == [True, False, True]


def test_a_text_that_was_freed_before_its_first_mask_is_not_open() -> None:
    """A request may end while the thread has yet to compute the masks of a step in flight."""
    supply = GrammarSupply(ToyEngine)
    shaping = Shaping(VOCABULARY, supply, beside=False)
    shaping.open(new(0, "5 6|8"))
    work = shaping.work_of(draws_of([0]))
    assert work is not None
    shaping.free(0)
    shaping.start(work, is_running=True)
    work.masks.when_ready(lambda rows: None)
    assert not supply._open


class BrokenEngine(ToyEngine):
    """A grammar engine that fails in the middle of a step, where no text is to blame."""

    is_broken = True

    def fill_all(
        self, rows: Words, work: Sequence[tuple[Matcher, int]]
    ) -> list[BaseException | None]:
        if self.is_broken:
            rows[:] = 1
            raise RuntimeError("no thread can be started")
        return super().fill_all(rows, work)


@pytest.mark.parametrize("beside", [True, False])
def test_an_error_between_texts_fails_those_of_its_step_and_delays_nothing(beside: bool) -> None:
    engine = BrokenEngine()
    shaping = Shaping(VOCABULARY, GrammarSupply(lambda: engine), beside=beside)
    for slot in range(3):
        shaping.open(new(slot, "5 6|8"))
    work = shaping.work_of(draws_of([0, 1], [(), (5,)]))
    assert work is not None
    shaping.start(work)
    work.masks.when_ready(lambda rows: None)
    if shaping._thread is not None:
        shaping._queue.put(None)
        shaping._thread.join(300)
        shaping._thread = None
    assert work.masks._is_ready
    assert not work.masks.rows.any()
    failure = ("the grammar failed: RuntimeError", False)
    assert [shaping.failure(slot) for slot in range(3)] == [failure, failure, None]
    engine.is_broken = False
    masks = masks_of(shaping, draws_of([2, 0]))
    assert [allowed(row, VOCABULARY) for row in masks] == [{5}, set()]


def test_a_budget_whose_mark_is_no_token_of_the_model_is_left_alone() -> None:
    marks = ThinkingMarks(open=((3,),), close=((10_000,),), is_open=True)
    rows = np.full((1, 3), 7, np.uint32)
    require_in_tree(Thought(0, marks), rows, (), drafts_behind(()))
    assert (rows == 7).all()


def test_an_engine_that_cannot_be_made_fails_the_texts_that_need_it() -> None:
    tried = []

    def fail() -> GrammarEngine:
        tried.append("once")
        raise OSError("gone")

    shaping = Shaping(VOCABULARY, GrammarSupply(fail))
    shaping.open(new(0, "5"))
    masks = masks_of(shaping, draws_of([1, 0]))
    assert [len(allowed(row, VOCABULARY)) for row in masks] == [VOCABULARY, 0]
    assert shaping.failure(0) == ("the grammar failed: OSError", False)
    shaping.open(new(1, "5"))
    masks_of(shaping, draws_of([1]))
    assert shaping.failure(1) == shaping.failure(0)
    assert len(tried) == 1, "a model's files do not change"
