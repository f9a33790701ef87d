"""Mistakes with the states of samplers, which travel with the tokens."""

from __future__ import annotations

from tests.sim.bugs.core import Bug

STATE_BUGS = (
    Bug(
        "a sampler's state is forgotten on resumption",
        "sequence.py",
        "        self.sampler_state = request.sampler_state  ",
        "        self.sampler_state = None  ",
    ),
    Bug(
        "a sampler's state is not kept for a preemption",
        "apply.py",
        "        sequence.sampler_state = results.states.get(slot, sequence.sampler_state)\n",
        "",
    ),
    Bug(
        "a sampler's state is not reported",
        "apply.py",
        "            sampler_state=results.states.get(slot),\n",
        "",
    ),
    Bug(
        "a sampler's state does not reach the workers",
        "lifecycle.py",
        "            sampler_state=sequence.sampler_state,\n",
        "",
    ),
    Bug(
        "a sampler with a state gets drafts",
        "scheduler.py",
        "is_drawn and not sampling.has_state\n",
        "is_drawn\n",
    ),
)
