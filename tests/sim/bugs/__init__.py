"""Bugs that the simulator must catch, each a change of the source text of the core."""

from tests.sim.bugs.core import CORE_BUGS, Bug
from tests.sim.bugs.drafts import DRAFT_BUGS
from tests.sim.bugs.kv import KV_BUGS
from tests.sim.bugs.programs import PROGRAM_BUGS
from tests.sim.bugs.schedule import SCHEDULE_BUGS
from tests.sim.bugs.states import STATE_BUGS

BUGS = (*CORE_BUGS, *KV_BUGS, *SCHEDULE_BUGS, *PROGRAM_BUGS, *DRAFT_BUGS, *STATE_BUGS)

__all__ = ["BUGS", "Bug"]
