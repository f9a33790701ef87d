"""Trees of drafts: how they are drawn, which plans they allow, and how a worker computes them.

The rows of a branch are written to the blocks that the plan names for it. Then the whole prefix is
read back through the branch's own tables, as attention would read it: what it shares with the
sequence, what was copied before the step, what the step has computed of the rows before it, and its
own rows. The blocks of a branch whose drafts were accepted replace the sequence's; what else was
written is never read again, or the next read finds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from octavo.core.plan import Branch, StepPlan
from octavo.core.trees.form import ROOT, DraftTree, path_to
from tests.sim.kv.memory import require
from tests.sim.truth import VOCABULARY, extend, next_token

if TYPE_CHECKING:
    from tests.sim.executor import Slot
    from tests.sim.kv.kinds import Rows


class Proposed:
    """Drafts that were proposed for a slot, and their form; None: a chain."""

    def __init__(self, tokens: Sequence[int] = (), tree: DraftTree | None = None) -> None:
        self.tokens = tuple(tokens)
        self.tree = tree
        self.parents = tuple(range(ROOT, len(self.tokens) - 1)) if tree is None else tree.parents


# A chain of three, and beside it a draft with two others behind it: a branch that follows a branch.
_NESTED = (ROOT, 0, 1, ROOT, 3, 3)


def draw_tree(state: int, most: int) -> Proposed:
    """Return a tree of drafts behind a text: right, wrong and equal ones side by side."""
    count = most if state % 2 else state // 3 % (most + 1)
    parents: list[int] = []
    states, tokens = [state], []
    for number in range(count):
        chance = (state >> 5) * (number + 3) % 1009
        # Behind one of the newest, so that there are long paths and branches of branches.
        parent = max(ROOT, number - 1 - (chance // 5 % 4 if chance % 5 < 3 else 0))
        if state % 3 and number < len(_NESTED):
            parent = _NESTED[number]
        before = states[parent + 1]
        right = next_token(before)
        token = right if chance % 4 else (right + 1 + chance % 2) % VOCABULARY
        parents.append(parent)
        tokens.append(token)
        states.append(extend(before, token))
    return Proposed(tokens, DraftTree(tuple(parents), (0,) * count))


def candidates_in(tree: DraftTree, chain: Sequence[int], state: int) -> list[int]:
    """Return the tokens of a tree that a second model proposes, which goes on as a chain."""
    states, tokens = [state], []
    depths, is_first = [0], [True]
    for parent, rank in zip(tree.parents, tree.ranks, strict=True):
        before = states[parent + 1]
        depth, first = depths[parent + 1] + 1, is_first[parent + 1] and rank == 0
        right = next_token(before)
        token = chain[depth - 1] if first else (right + (before + rank) % 3) % VOCABULARY
        tokens.append(token)
        states.append(extend(before, token))
        depths.append(depth)
        is_first.append(first)
    return tokens


def numbered(main: Sequence[int], branches: Sequence[Branch]) -> tuple[list[int], list[int]]:
    """Return the drafts of a slot and which each follows, as a plan numbers them."""
    tokens, parents = [*main], [*range(ROOT, len(main) - 1)]
    for branch in branches:
        require(ROOT <= branch.after < len(tokens), f"a branch after {branch.after}")
        for before, token in enumerate(branch.tokens):
            parents.append(len(tokens) - 1 if before else branch.after)
            tokens.append(token)
    return tokens, parents


def check_tree(plan: StepPlan, slot: int, main: Sequence[int], proposed: Proposed) -> None:
    """Require that the drafts of a slot in a plan are the first that were proposed for it."""
    branches = [branch for branch in plan.branches if branch.slot == slot]
    tokens, parents = numbered(main, branches)
    found = sorted(_text(tokens, parents, number) for number in range(len(tokens)))
    first = range(len(proposed.tokens))
    right = sorted(_text(proposed.tokens, proposed.parents, number) for number in first)
    left = [*right]
    for text in found:
        require(text in left, f"step {plan.step}: drafts {text} of slot {slot}, not of {right}")
        left.remove(text)


def _text(tokens: Sequence[int], parents: Sequence[int], number: int) -> list[int]:
    """Return the drafts up to one, itself included."""
    return [tokens[each] for each in path_to(parents, number)]


class BranchView:
    """A branch as a slot of its own, which has computed nothing yet."""

    def __init__(self, slot: Slot, tables: list[list[int]], text: list[int]) -> None:
        self.request_id, self.conditions, self.version = (
            slot.request_id,
            slot.conditions,
            slot.version,
        )
        self.salts, self.salt_at = slot.salts, slot.salt_at
        self.tables = tables
        self.tokens = text  # known tokens, and the drafts up to its last
        self.cells: list[list[int]] = [[] for _ in tables]


class Branches:
    """The branches of one slot in a step."""

    def __init__(self, slot: Slot, main: Sequence[int], branches: Sequence[Branch]) -> None:
        self.tokens, self.parents = numbered(main, branches)
        self._slot = slot
        self._known = len(slot.tokens)
        self._num_main = len(main)
        self._branches = branches
        # Of each draft: the tables through which its row is read.
        self._tables: list[list[list[int]]] = [slot.tables] * len(main)

    def compute(self, groups: Sequence[Rows], first: int, size: int) -> None:
        """Write and read all rows behind those of the slot's chunk, which begins at `first`."""
        number = self._num_main
        for branch in self._branches:
            last = number + len(branch.tokens) - 1
            path = path_to(self.parents, last)
            text = [*self._slot.tokens, *[self.tokens[each] for each in path]]
            begin = len(text) - len(branch.tokens)
            before = self._slot.tables if branch.after == ROOT else self._tables[branch.after]
            entry = begin // size
            tables = [[*table] for table in before]
            for group, table, blocks in zip(groups, tables, branch.blocks, strict=True):
                wanted = 0
                if not group.is_owned and group.kind != "cross":
                    wanted = (len(text) - 1) // size + 1 - entry
                require(len(blocks) == wanted, f"{len(blocks)} blocks of a branch, not {wanted}")
                table[entry : entry + len(blocks)] = blocks
            view = BranchView(self._slot, tables, text)
            for group, blocks in zip(groups, branch.blocks, strict=True):
                if blocks:
                    self._write(group, view, path, (first, entry * size, begin), size)
            self._tables += [tables] * len(branch.tokens)
            number = last + 1

    def _write(
        self,
        group: Rows,
        view: BranchView,
        path: list[int],
        places: tuple[int, int, int],
        size: int,
    ) -> None:
        """Write what a branch's blocks get from this step, then its rows, and read all."""
        first, entry, begin = places
        memory = group.memory.cells[group.group]
        for position in range(max(first, entry), begin):
            source = self._row_tables(path, position)[group.group][position // size]
            target = view.tables[group.group][position // size]
            memory[target][position % size] = memory[source][position % size]
        view.cells[group.group].extend(group.codes_of(view, begin))  # type: ignore[arg-type]
        end = len(view.tokens)
        group.compute(view, begin, end, view.tokens[begin:end])  # type: ignore[arg-type]

    def _row_tables(self, path: list[int], position: int) -> list[list[int]]:
        """Return the tables through which this step has written a position of a path."""
        if position < self._known:
            return self._slot.tables
        return self._tables[path[position - self._known]]

    def accept(self, groups: Sequence[Rows], walk: Sequence[int], size: int) -> None:
        """Copy the blocks of the branch that holds the last accepted draft to the slot's own."""
        if not walk or self._tables[walk[-1]] is self._slot.tables:
            return
        num_blocks = (self._known + len(walk) - 1) // size + 1
        for group in groups:
            theirs = self._tables[walk[-1]][group.group][:num_blocks]
            for source, own in zip(theirs, self._slot.tables[group.group], strict=False):
                if source != own:
                    group.memory.copy(group.group, source, own)


def follow(groups: Sequence[Rows], slot: Slot) -> None:
    """Take the text of a slot, whose drafts were accepted, as the right content of its rows."""
    for group in groups:
        if not group.is_owned and group.kind != "cross":
            slot.cells[group.group][:] = group.codes_of(slot, len(slot.tokens))
