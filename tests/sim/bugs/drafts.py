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
        "a step is planned behind a sample that drafts may follow",
        "scheduler.py",
        "        if self.lifecycle.num_drafting and self.in_flight:",
        "        if self.lifecycle.num_drafting and len(self.in_flight) > 1:",
        kind="predictions",
    ),
    Bug(
        "a request that switches speculation off has drafts",
        "scheduler.py",
        "request.sampling.speculation and not",
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
        "a steady step goes on beside a sequence that may draft",
        "steady/next_plan.py",
        "            not self._lifecycle.num_drafting\n            and 0 <",
        "            0 <",
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
        "drafts are left out from the front",
        "pace/draft_counts.py",
        "each.drafts[:count]",
        "each.drafts[len(each.drafts) - count :]",
        kind="predictions",
    ),
)
