"""The view of an engine between two steps: its sequences, and where they hold blocks."""

import pytest

from octavo.core import snapshot
from octavo.core.engine import EngineCore
from octavo.core.kv.occupancy import Occupancy
from octavo.core.snapshot import EngineView, take_view
from tests.core.make import KEY, Wire, Worker, config, request, tokens


def engine(**settings: int) -> EngineCore:
    """Return an engine with two slots and 63 blocks of 4 tokens."""
    made = config(max_num_seqs=2, **settings)
    return EngineCore(made, Wire(Worker(made)), lambda: 0.0, KEY)


def test_an_idle_engine_shows_its_empty_pool() -> None:
    view = take_view(engine())
    assert view == EngineView((), 0, Occupancy(1, (0,) * 63, (0,) * 63), "")


def test_running_sequences_come_first_and_show_their_progress_and_blocks() -> None:
    core = engine()
    for name, family in (("first", 1), ("second", 2), ("third", 3)):
        core.on_event(request(name, tokens(6, family), max_tokens=10))
    core.step()
    view = take_view(core)
    assert [each.name for each in view.sequences] == ["first", "second", "third"]
    first, _, third = view.sequences
    assert (first.state, first.num_prompt, first.num_computed) == ("running", 6, 6)
    assert (first.num_known, first.max_total, first.num_cached) == (7, 16, 0)
    assert (third.state, third.num_computed, third.cells, third.reason) == ("waiting", 0, (), "")
    assert view.blocked_by == "slots"
    used = [place for place, share in enumerate(view.occupancy.used) if share]
    assert used == sorted(cell for each in view.sequences for cell in each.cells)


def test_a_sequence_that_is_held_says_for_what() -> None:
    core = engine()
    for name in ("first", "second"):
        core.on_event(request(name, tokens(9), max_tokens=2))
    core.step(wait=False)
    held = take_view(core).sequences[1]
    assert (held.name, held.state, held.reason) == ("second", "held", "prefix")


def test_the_prefix_that_was_found_is_shown() -> None:
    core = engine()
    core.on_event(request("first", tokens(9), max_tokens=1))
    while core.has_work:
        core.step()
    core.on_event(request("second", tokens(9), max_tokens=4))
    core.step()
    view = take_view(core)
    assert [(each.name, each.num_cached) for each in view.sequences] == [("second", 8)]
    assert view.blocked_by == "", "nothing waits"


def test_more_sequences_than_the_bound_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "MAX_SEQUENCES_SEEN", 1)
    core = engine()
    for name in ("first", "second", "third"):
        core.on_event(request(name, 3, max_tokens=10))
    core.step()
    view = take_view(core)
    assert ([each.name for each in view.sequences], view.num_left_out) == (["first"], 2)


def test_of_long_tables_not_every_block_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "MAX_ENTRIES_READ", 4)
    core = engine()
    core.on_event(request("long", 40, max_tokens=2))
    core.step()
    (view,) = take_view(core).sequences
    assert len(view.cells) == 4, "every third of ten blocks"
