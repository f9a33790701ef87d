"""An engine is closed at any time of its steps, while a stage reads nothing: all of it ends."""

from __future__ import annotations

import ctypes
import random

import pytest

from tests.sim.groups.bugs import NativeBug
from tests.sim.groups.group import Row, Step, packed
from tests.sim.groups.library import Chances, has_compiler, load

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not has_compiler(), reason="there is no C++ compiler"),
]
NUM_WORLDS = 300
LONG = 100.0  # seconds
BUGS = (
    NativeBug(
        "a step is passed on in an engine that has ended",
        "step/further_stages.cpp",
        "    if (is_over_) return;",
        "",
    ),
    NativeBug(
        "the links of stages that have steps stay",
        "step/further_stages.cpp",
        "      if (!stage.sent.empty()) stage.link->close();",
        "      ;",
    ),
)


def all_end(library: ctypes.CDLL, seed: int) -> bool:
    """Run some steps, let a stage read nothing, and close the engine; return whether it ends."""
    rng = random.Random(seed)
    members = rng.randint(3, 4)
    chances = Chances(late=0.02, longest_late=0.01, longest_delay=0.001)
    group = library.group_new(1, members, 1, 8, 4, seed, ctypes.byref(chances))
    try:
        for position in range(3):
            step = Step([[Row(5, position)]], [[0]], [0], [])
            library.group_begin(group, *packed(step))
            assert library.group_run(group, LONG) == 0
        library.group_idle(group, library.group_now(group) + rng.uniform(0, 0.002))
        library.group_fill(group, rng.randint(1, members - 1))
        library.group_idle(group, library.group_now(group) + rng.uniform(0, 0.002))
        library.group_close(group)
        has_ended = library.group_run(group, LONG) == 0
        library.group_settle(group, LONG)
        return has_ended and not library.group_num_carriers(group)
    finally:
        library.group_free(group)


def test_an_engine_that_is_closed_waits_for_no_stage() -> None:
    library = load()
    assert [seed for seed in range(NUM_WORLDS) if not all_end(library, seed)] == []


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_planted_bugs_are_found(bug: NativeBug) -> None:
    library = load({bug.file: (bug.before, bug.after)})
    assert not all(all_end(library, seed) for seed in range(NUM_WORLDS))
