"""Bugs in what is kept for a second model, which the worlds with one must catch."""

from __future__ import annotations

from tests.sim.bugs.core import Bug

PROGRAM_BUGS = (
    Bug(
        "a cached prefix lacks the second model's KV",
        "kv/manager.py",
        "                limit = policy.longest(each, limit)\n",
        "                if not policy.group.owner:\n"
        "                    limit = policy.longest(each, limit)\n",
        kind="programs",
    ),
    Bug(
        "a fork does not copy the second model's last block",
        "kv/manager.py",
        "policy.forked_tail(parent, num_tokens) for",
        "0 if policy.group.owner else policy.forked_tail(parent, num_tokens) for",
        kind="programs",
    ),
    Bug(
        "KV of refused drafts counts as computed",
        "outcome.py",
        "    sequence.num_planned -= len(drafts) - num_accepted\n",
        "    sequence.num_computed += len(drafts) - num_accepted\n",
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
)
