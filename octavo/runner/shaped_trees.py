"""Masks and allowed drafts of a text with a shape, where its drafts are a tree.

The matcher walks from each draft to those behind it and back again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from octavo.grammar.protocol import Matcher, Words
from octavo.runner.thinking import Thought

Behind = list[list[int]]  # of each row of a sample: the drafts that follow it


def drafts_behind(parents: Sequence[int]) -> Behind:
    """Return the drafts that follow each row, of which 0 is the last known token's."""
    behind: Behind = [[] for _ in range(len(parents) + 1)]
    for draft, row in enumerate(parents):
        behind[row].append(draft)
    return behind


def fill_tree(
    matcher: Matcher,
    rows: Words,
    drafts: Sequence[int],
    behind: Behind,
    ends: Words,
    end_ids: frozenset[int],
    finish: Callable[[Words, int], None],
) -> None:
    """Write the mask of each draft that may be drawn; `finish` gets it with the drafts before it.

    Behind a draft that ends the text only `ends` may follow.
    """

    def visit(row: int, depth: int) -> None:
        matcher.fill(rows[row])
        finish(rows[row], depth)
        for draft in behind[row]:
            token = drafts[draft]
            if token in end_ids:
                _end(draft + 1)
            elif matcher.num_accepted([token]):
                matcher.accept([token])
                visit(draft + 1, depth + 1)
                matcher.roll_back(1)

    def _end(row: int) -> None:
        rows[row] = ends
        for draft in behind[row]:
            _end(draft + 1)

    visit(0, 0)


def allowed_drafts(
    matcher: Matcher, drafts: Sequence[int], behind: Behind, end_ids: frozenset[int]
) -> list[bool]:
    """Return which drafts a grammar may allow; nothing is allowed behind the end of a text."""
    found = [False] * len(drafts)

    def visit(row: int) -> None:
        for draft in behind[row]:
            token = drafts[draft]
            if token in end_ids:
                found[draft] = True
            elif matcher.num_accepted([token]):
                found[draft] = True
                matcher.accept([token])
                visit(draft + 1)
                matcher.roll_back(1)

    visit(0)
    return found


def require_in_tree(
    thought: Thought, rows: Words, drafts: Sequence[int], behind: Behind, row: int = 0
) -> None:
    """Leave only the token that a spent budget requires, where the grammar allows it.

    It does, except within a character, which the next tokens then complete.
    """
    token = thought.required
    if token is not None and token < 32 * rows.shape[1]:
        bit = np.uint32(1 << token % 32)
        if rows[row, token // 32] & bit:
            rows[row] = 0
            rows[row, token // 32] = bit
    for draft in behind[row]:
        further = thought.copy()
        further.advance(drafts[draft : draft + 1])
        require_in_tree(further, rows, drafts, behind, draft + 1)
