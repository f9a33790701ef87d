"""Seeded worlds of engines that are groups of ranks or stages, and planted bugs they must find."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from tests.sim.groups import planted
from tests.sim.groups.bugs import ENDING_BUGS, NATIVE_BUGS, NativeBug
from tests.sim.groups.command import quiet
from tests.sim.groups.library import has_compiler, load
from tests.sim.groups.world import GROUP_FAULTS, GroupWorld
from tests.sim.shell.one_tokenizer import one_tokenizer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not has_compiler(), reason="there is no C++ compiler"),
]
NUM_WORLDS = 25
OFTEN = (
    *GROUP_FAULTS,
    "killed",
    "drained",
    "restarts",
    "ranks",
    "stages",
    "sums",
    "moved",
    "steps in several stages",
)


@pytest.fixture(scope="module", autouse=True)
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with one_tokenizer(tmp_path_factory.mktemp("tiny")), quiet():
        yield


def world(seed: int) -> GroupWorld:
    """Return a world that has been run."""
    made = GroupWorld(seed, load())
    try:
        made.run()
    except BaseException as error:
        error.add_note(f"replay: python -m tests.sim --kind groups --seeds 1 --from {seed}")
        raise
    return made


def test_worlds() -> None:
    happened: Counter[str] = Counter()
    for seed in range(NUM_WORLDS):
        happened.update(world(seed).num_events)
    for what in OFTEN:  # what never happens is not tested
        assert happened[what], happened


def test_a_seed_determines_a_world() -> None:
    once, again = world(7), world(7)
    assert once.num_events == again.num_events
    assert once.loop.now == again.loop.now


@pytest.mark.sample(1)
@pytest.mark.parametrize("bug", NATIVE_BUGS, ids=lambda bug: bug.name)
def test_planted_bugs_of_ranks_and_stages_are_found(bug: NativeBug) -> None:
    assert planted.is_found(bug.name)


@pytest.mark.sample(1)
@pytest.mark.parametrize("plant", ENDING_BUGS)
def test_planted_bugs_of_ends_are_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    for seed in range(planted.NUM_WORLDS):
        try:
            world(seed)
        except (AssertionError, TimeoutError):
            return
    raise AssertionError(f"no world of {planted.NUM_WORLDS} found {plant.__name__}")
