"""Budgets of reasoning tokens: counts, and the masks of the texts that have one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from octavo.core.sampling_params import SamplingParams, ThinkingMarks
from octavo.runner.thinking import MAX_BEFORE, Thought
from tests.grammar.tiny import allowed
from tests.grammar.toy import END
from tests.runner.test_shaping import VOCABULARY, draws_of, make, masks_of, new

SOME_MARKS = (
    ThinkingMarks(((1,),), ((2,),)),
    ThinkingMarks(((1,),), ((2,),), is_open=True),
    ThinkingMarks(((1, 3), (4,)), ((2, 2, 3), (5, 2)), may_repeat=True),
    ThinkingMarks(((1,),), ((2, 3, 4), (2,)), is_open=True, may_repeat=True),
    ThinkingMarks(((1,),), ((6, 7, 2), (2,)), is_open=True),  # a text before the mark
)


def required_behind(budget: int, marks: ThinkingMarks, output: Sequence[int]) -> int | None:
    """Return what must follow an output, found by reading all of it anew."""
    is_open, begin, spent = marks.is_open, 0, 0
    for end in range(1, len(output) + 1):
        spent += is_open
        part = tuple(output[begin:end])
        mark = next((m for m in (marks.close if is_open else marks.open) if _ends(part, m)), ())
        if mark:
            is_open, begin = not is_open, end
            if not (is_open or marks.may_repeat):
                return None
        elif not is_open and not marks.may_repeat and end >= MAX_BEFORE:
            return None
    if not is_open or spent < budget:
        return None
    part, close = tuple(output[begin:]), marks.close[0]
    begun = max(n for n in range(len(close)) if _ends(part, close[:n]))
    return close[begun]


def _ends(part: tuple[int, ...], mark: tuple[int, ...]) -> bool:
    return part[len(part) - len(mark) :] == mark if len(mark) <= len(part) else False


@pytest.mark.parametrize("marks", SOME_MARKS, ids=str)
def test_the_end_is_required_exactly_when_the_budget_is_spent(marks: ThinkingMarks) -> None:
    """Whatever is drawn, the reasoning ends; the state depends on the output alone."""
    for seed in range(60):
        random_ = random.Random(seed)
        budget, output = random_.choice([0, 1, 2, 5, 9]), list[int]()
        thought = Thought(budget, marks)
        num_open = 0
        for _ in range(40):
            free, required = thought.num_free, thought.required
            assert required == required_behind(budget, marks, output)
            assert required is None or free == 0
            num_open += thought.is_open
            output.append(random_.randrange(1, 9) if required is None else required)
            thought.advance(output[-1:])
            again, copy = Thought(budget, marks), thought.copy()
            again.advance(output)
            for other in (again, copy):
                assert (other.required, other.num_free) == (thought.required, thought.num_free)
                assert (other.is_open, other.is_over) == (thought.is_open, thought.is_over)
        if not marks.may_repeat:
            assert num_open <= budget + len(marks.close[0])


def thinking(budget: int, marks: ThinkingMarks, output: Sequence[int] = ()) -> SamplingParams:
    return SamplingParams(max_tokens=50, thinking_token_budget=budget, thinking_marks=marks)


def test_a_free_text_has_masks_only_where_its_budget_may_be_spent() -> None:
    """The masks allow everything but there, also behind drafts."""
    shaping, marks = make(), SOME_MARKS[1]
    shaping.open(replace(new(0, "", output=[6]), sampling=thinking(3, marks)))
    assert shaping.work_of(draws_of([0])) is None
    assert shaping.work_of(draws_of([0]), 2) is not None, "two steps in flight may spend it"
    masks = masks_of(shaping, draws_of([1, 0], [(9,), (7, 8, 2, 9)]))
    sizes = [len(allowed(row, VOCABULARY)) for row in masks]
    assert sizes == [VOCABULARY] * 4 + [1] + [VOCABULARY] * 2
    assert allowed(masks[4], VOCABULARY) == {2}
    shaping.advance(0, [7, 8])
    (mask,) = masks_of(shaping, draws_of([0]))
    assert allowed(mask, VOCABULARY) == {2}
    shaping.advance(0, [2])
    assert shaping.work_of(draws_of([0]), 9) is None, "the reasoning is over"
    assert shaping.forced(0) == []
    assert shaping.failure(0) is None


def test_a_grammar_decides_where_the_end_may_stand() -> None:
    """The mark is written at the next place that the grammar leaves to it."""
    shaping, marks = make(), SOME_MARKS[1]
    sampling = replace(thinking(1, marks), grammar="5|6 7|8 2|9 2|9")
    shaping.open(replace(new(0, ""), sampling=sampling))
    masks = masks_of(shaping, draws_of([0], [(5, 7, 2, 9)]))
    assert [allowed(row, VOCABULARY) for row in masks] == [{5, 6}, {7, 8}, {2}, {2, 9}, {END}]
    assert masks.dtype == np.uint32
