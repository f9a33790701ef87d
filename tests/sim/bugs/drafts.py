"""Bugs in what is drafted for whom, which the worlds with predictions must catch."""

from __future__ import annotations

from tests.sim.bugs.core import Bug

DRAFT_BUGS = (
    Bug(
        "a preempted sequence loses its prediction",
        "lifecycle.py",
        "prediction=sequence.request.prediction,",
        "prediction=sequence.request.prediction[: 0 if stats.num_preemptions else None],",
        kind="predictions",
    ),
    Bug(
        "drafts that come too late are sent",
        "apply.py",
        "        if sequence.in_flight:\n            first",
        "        if sequence.in_flight and not drafts:\n            first",
        kind="predictions",
    ),
    Bug(
        "a request that switches speculation off has drafts",
        "scheduler.py",
        "sampling.speculation and not",
        "not",
        kind="predictions",
    ),
    Bug(
        "an engine without a proposer expects drafts of all",
        "scheduler.py",
        "self.config.proposes or bool(request.prediction)",
        "True",
        kind="predictions",
    ),
    Bug(
        "a steady step goes on though drafts have come",
        "apply.py",
        "        self._steady.forget()\n        sequence.drafts",
        "        sequence.drafts",
        kind="predictions",
    ),
    Bug(
        "a sequence that has left is counted among those that may draft",
        "lifecycle.py",
        "        self.num_drafting -= sequence.may_draft\n",
        "",
        kind="predictions",
    ),
    Bug(
        "the drafts of a step exceed what it has room for",
        "pace/draft_counts.py",
        "        room = min(room, self._most_drafts)\n",
        "",
        kind="predictions",
    ),
    Bug(
        "the likeliest drafts are sent, whatever there is room for",
        "pace/draft_counts.py",
        "    offers = offers[:room]\n",
        "",
        kind="predictions",
    ),
    Bug(
        "drafts are left out from the front",
        "sequence.py",
        "            self.drafts = self.drafts[:count]\n",
        "            self.drafts = self.drafts[len(self.drafts) - count :]\n",
        kind="predictions",
    ),
    Bug(
        "a branch's first block lacks what was computed before the step",
        "kv/branches.py",
        "            if begin * self._size < start:\n",
        "            if begin * self._size < start < 0:\n",
        kind="trees",
    ),
    Bug(
        "a branch begins where the chunk's drafts do",
        "kv/branches.py",
        "len(sequence.tokens) + (0 if after == ROOT else depths[after])",
        "len(sequence.tokens)",
        kind="trees",
    ),
    Bug(
        "a branch has no block for its last rows",
        "kv/branches.py",
        "(first + len(tokens) - 1) // self._size + 1",
        "first // self._size + 1",
        kind="trees",
    ),
    Bug(
        "the blocks of a branch are free while its plan is made",
        "kv/branches.py",
        "            self._held.extend([(block, group) for block in blocks[group]])\n",
        "            for block in blocks[group]:\n                pool.release(block, group)\n",
        kind="trees",
    ),
    Bug(
        "the blocks of branches are never free again",
        "scheduler.py",
        "            self._branches.give_back()\n",
        "            pass\n",
        kind="trees",
    ),
    Bug(
        "the chunk's own drafts are taken for those of the walk",
        "outcome.py",
        "    if walk:\n",
        "    if walk and not sequence.side:\n",
        kind="trees",
    ),
    Bug(
        "branches are kept whose chain is cut",
        "plan_draft.py",
        "                    sequence.side = ()  # what they follow may be left out\n",
        "                    pass\n",
        kind="trees",
    ),
    Bug(
        "a tree is cut in the order in which its branches end",
        "trees/form.py",
        "        ending[number] = branch\n",
        "        ending[parent] = branch\n",
        kind="trees",
    ),
    Bug(
        "the main chain is not the longest",
        "trees/form.py",
        "depths.index(max(depths))",
        "depths.index(min(depths))",
        kind="trees",
    ),
)
