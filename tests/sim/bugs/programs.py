"""Bugs in what is kept for a second model, which the worlds with one must catch."""

from __future__ import annotations

from tests.sim.bugs.core import Bug

PROGRAM_BUGS = (
    Bug(
        "the second model reads a token that a step in flight draws",
        "scheduler.py",
        "        return bool(offers) or self._may_propose()\n",
        "        return bool(offers)\n",
        kind="programs",
    ),
    Bug(
        "a cached prefix lacks the second model's KV",
        "kv/manager.py",
        "                limit = policy.longest(each, limit)\n",
        "                if not policy.group.owner:\n"
        "                    limit = policy.longest(each, limit)\n",
        kind="programs",
    ),
    Bug(
        "KV of refused drafts counts as computed",
        "outcome.py",
        "    sequence.num_planned -= num_sent - num_accepted\n",
        "    sequence.num_computed += num_sent - num_accepted\n",
        kind="programs",
    ),
    Bug(
        "the second model's window moves with drafts that may be refused",
        "kv/policies.py",
        "        first, table = self.first_block(sequence.num_computed), sequence.tables[index]\n",
        "        at = sequence.num_computed + (len(sequence.drafts) if self.group.owner else 0)\n"
        "        first, table = self.first_block(at), sequence.tables[index]\n",
        kind="programs",
    ),
    Bug(
        "the second model proposes more than its blocks hold",
        "pace/ahead_counts.py",
        "                count = 0 if self._in_block else room\n",
        "",
        kind="programs",
    ),
    Bug(
        "blocks for proposals come before those of the chunk",
        "plan_draft.py",
        "(*a, *b) for a, b in",
        "(*b, *a) for a, b in",
        kind="programs",
    ),
    Bug(
        "blocks for proposals are not announced",
        "pace/ahead_counts.py",
        "                if added:\n                    draft.add_blocks(sequence.slot, added)\n",
        "",
        kind="programs",
    ),
    Bug(
        "the second model proposes where a chunk samples nothing",
        "pace/ahead_counts.py",
        "            (sampling if samples else reading).append(sequence)\n",
        "            sampling.append(sequence)\n",
        kind="programs",
    ),
)
