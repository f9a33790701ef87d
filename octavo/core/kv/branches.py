"""Blocks for the branches of drafts, for the time of one step.

The rows of a branch have positions that rows of the chunk have too, so they need places of their
own. They get blocks that no table has, and only where others are free. Workers run plans in order,
and leave what is accepted in the sequence's own blocks. So a branch's blocks are free again as soon
as nothing else can get them in the same plan.
"""

from __future__ import annotations

from octavo.core.config import CoreConfig, KVGroup
from octavo.core.kv.manager import KVManager
from octavo.core.plan import Branch
from octavo.core.plan_draft import PlanDraft
from octavo.core.sequence import Sequence
from octavo.core.trees.form import ROOT


def _is_branched(group: KVGroup) -> bool:
    """Return whether the first model writes rows of drafts there."""
    return not group.owner and group.kind != "cross"


class BranchBlocks:
    """The blocks of the branches of one step."""

    def __init__(self, config: CoreConfig, kv: KVManager) -> None:
        self._kv = kv
        self._size = config.block_size
        self._most = config.max_branches
        self._most_tokens = config.max_num_batched_tokens
        self._groups = [index for index, each in enumerate(config.groups) if _is_branched(each)]
        self._held: list[tuple[int, int]] = []  # (block, group)

    def take(self, draft: PlanDraft) -> None:
        """Add to a plan the branches of its sequences that there is room for."""
        left = self._most_tokens - sum(draft.counts)
        for sequence, start in zip(draft.sequences, draft.starts, strict=True):
            if sequence is None or not sequence.side:
                continue
            depths = [*range(1, len(sequence.verifying) + 1)]
            num_kept = 0
            for after, tokens in sequence.side:
                first = len(sequence.tokens) + (0 if after == ROOT else depths[after])
                has_room = len(tokens) <= left and len(draft.branches) < self._most
                if not (has_room and self._add(sequence, start, first, after, tokens, draft)):
                    break
                left -= len(tokens)
                begin = first - len(sequence.tokens) + 1
                depths.extend(range(begin, begin + len(tokens)))
                num_kept += 1
            sequence.side = sequence.side[:num_kept]

    def _add(
        self,
        sequence: Sequence,
        start: int,
        first: int,
        after: int,
        tokens: tuple[int, ...],
        draft: PlanDraft,
    ) -> bool:
        """Add a branch that begins at the position `first`; return False if blocks are short.

        Each sequence can still have another block then, so that nothing is preempted for it.
        """
        pool, num_groups = self._kv.pool, len(self._kv.groups)
        begin, end = first // self._size, (first + len(tokens) - 1) // self._size + 1
        counts = [(end - begin) * (group in self._groups) for group in range(num_groups)]
        spare = len(draft.sequences) * num_groups
        has_room = pool.pages_for(counts) + spare <= pool.num_free
        taken = pool.allocate(*counts) if has_room else None
        if taken is None:
            return False
        blocks: list[tuple[int, ...]] = [()] * num_groups
        for at, group in enumerate(self._groups):
            blocks[group] = tuple(taken[at * (end - begin) : (at + 1) * (end - begin)])
            self._held.extend([(block, group) for block in blocks[group]])
            if begin * self._size < start:
                draft.copies.append((sequence.tables[group][begin], blocks[group][0], group))
        draft.branches.append(Branch(sequence.slot, after, tokens, tuple(blocks)))
        return True

    def give_back(self) -> None:
        """Return all blocks, when nothing more of the plan needs any."""
        for block, group in reversed(self._held):
            self._kv.pool.release(block, group)
        self._held.clear()
