"""Saves of what enters the prefix cache, and loads for a waiting sequence, by hand."""

from __future__ import annotations

from typing import Any

from octavo.core.check import check_integrity
from octavo.core.plan import NO_TOKEN, StepPlan, StepResult
from octavo.core.scheduler import Scheduler
from octavo.core.stats import FETCH
from tests.core.make import KEY, config, request, tokens


class Index:
    """An index that has whatever was saved."""

    def __init__(self) -> None:
        self.contents: dict[tuple[int, bytes], None] = {}

    def has(self, group: int, digest: bytes) -> bool:
        return (group, digest) in self.contents

    def forget(self, group: int, digest: bytes) -> None:
        self.contents.pop((group, digest), None)

    def reset(self) -> None:
        self.contents.clear()


def scheduler_with(index: Index, **settings: Any) -> Scheduler:
    return Scheduler(config(**settings), KEY, index=index)


def plan(scheduler: Scheduler, index: Index, now: float = 1.0) -> StepPlan:
    """Plan a step, which must exist, and save what it offers."""
    made = scheduler.schedule(now)
    assert made is not None
    index.contents.update(dict.fromkeys((save.group, save.digest) for save in made.saves))
    check_integrity(scheduler)
    return made


def land(
    scheduler: Scheduler, made: StepPlan, loaded: tuple[tuple[int, bool], ...] = (), token: int = 7
) -> None:
    sampled = tuple(token if samples else NO_TOKEN for samples in made.samples)
    scheduler.apply(StepResult(made.step, sampled, loaded=loaded), 1.0)
    check_integrity(scheduler)


def saved() -> Index:
    """Return an index with the two full blocks of a prompt of 9 tokens."""
    index = Index()
    scheduler = scheduler_with(index)
    scheduler.add(request("first", 9, max_tokens=1), 0.0)
    land(scheduler, plan(scheduler, index))
    made = plan(scheduler, index)  # nothing but the freed slot and the saves
    assert (len(made.saves), made.slots) == (2, ())
    land(scheduler, made)
    assert scheduler.schedule(1.0) is None, "each block is offered once"
    return index


def fetching() -> tuple[Scheduler, Index, StepPlan]:
    """Return a new engine in which a request with the same prompt fetches."""
    index = saved()
    scheduler = scheduler_with(index)
    scheduler.add(request("second", tokens(9), max_tokens=3), 0.0)
    made = plan(scheduler, index)
    assert [load.group for load in made.loads] == [0, 0]
    assert made.slots == ()
    assert list(scheduler.queue.held) == ["second"]
    return scheduler, index, made


def chunk(made: StepPlan) -> tuple[int, int]:
    """Return the start and the count of the only chunk."""
    assert len(made.slots) == 1
    return made.starts[0], made.counts[0]


def test_without_an_index_nothing_is_transferred() -> None:
    scheduler = Scheduler(config(), KEY)
    scheduler.add(request("first", 9, max_tokens=1), 0.0)
    made = scheduler.schedule(0.0)
    assert made is not None
    assert (made.loads, made.saves, scheduler.awaits_transfers) == ((), (), False)


def test_a_loaded_prefix_is_a_prefix_hit() -> None:
    scheduler, index, made = fetching()
    land(scheduler, made, tuple((load.number, True) for load in made.loads))
    made = plan(scheduler, index)
    assert (chunk(made), made.loads) == ((8, 1), ())
    assert scheduler.sequences["second"].stats.wait_seconds[FETCH] >= 0.0


def test_a_load_that_fails_is_recomputed() -> None:
    scheduler, index, made = fetching()
    first, second = made.loads
    land(scheduler, made, ((first.number, True), (second.number, False)))
    assert chunk(plan(scheduler, index)) == (4, 5)


def test_an_engine_with_nothing_else_to_do_asks_again() -> None:
    scheduler, index, made = fetching()
    land(scheduler, made)
    again = plan(scheduler, index)
    assert (again.slots, again.loads) == ((), ())
    assert scheduler.schedule(1.0) is None, "one step in flight is enough"
    land(scheduler, again, tuple((load.number, True) for load in made.loads))
    assert chunk(plan(scheduler, index)) == (8, 1)


def test_a_load_that_is_late_is_not_waited_for() -> None:
    """The request computes its prompt itself, and the late blocks are released."""
    scheduler, index, made = fetching()
    land(scheduler, made)
    assert scheduler.expire_holds(1000.0) == []
    own = plan(scheduler, index, 1000.0)
    assert chunk(own) == (0, 9)
    land(scheduler, own, tuple((load.number, True) for load in made.loads))
    scheduler.abort("second", 1000.0)
    check_integrity(scheduler)
    assert scheduler.kv.pool.num_free == scheduler.config.num_blocks - 1


def test_a_late_load_does_not_end_another_hold() -> None:
    """A request whose load is late may follow another one by then, and goes on doing so."""
    index = saved()
    scheduler = scheduler_with(index, max_num_batched_tokens=6, long_prefill_tokens=4)
    scheduler.add(request("late", [*tokens(9), *tokens(8, 5)], max_tokens=1, arrival=2.0), 0.0)
    made = plan(scheduler, index)
    assert len(made.loads) == 2
    land(scheduler, made)
    other = request("other", [*tokens(9), *tokens(8, 5)], max_tokens=1, arrival=1.0)
    scheduler.add(other, 0.0)
    index.reset()
    own = plan(scheduler, index)
    scheduler.expire_holds(1000.0)
    land(scheduler, own)
    follows = plan(scheduler, index, 1000.0)
    assert list(scheduler.queue.held) == ["late"]
    land(scheduler, follows, tuple((load.number, True) for load in made.loads))
    assert list(scheduler.queue.held) == ["late"]


def test_a_failed_request_takes_back_what_it_has_saved() -> None:
    index = Index()
    scheduler = scheduler_with(index)
    scheduler.add(request("first", 9, max_tokens=9), 0.0)
    land(scheduler, plan(scheduler, index))
    made = plan(scheduler, index)
    assert len(index.contents) == 2
    scheduler.apply(StepResult(made.step, (NO_TOKEN,), errors=((made.slots[0], "wrong"),)), 1.0)
    assert index.contents == {}


def test_a_reset_uses_nothing_that_is_being_loaded() -> None:
    scheduler, index, made = fetching()
    scheduler.reset_prefix_cache()
    land(scheduler, made, tuple((load.number, True) for load in made.loads))
    assert chunk(plan(scheduler, index)) == (0, 9)


def test_a_fetch_needs_a_block_for_each_load() -> None:
    index = saved()
    scheduler = scheduler_with(index)
    scheduler.add(request("second", tokens(9), max_tokens=3), 0.0)
    pool, transfers = scheduler.kv.pool, scheduler.kv.transfers
    assert transfers is not None
    taken = pool.allocate(pool.num_free - 1)
    assert taken is not None
    contents = list(index.contents)
    assert transfers.fetch(scheduler.sequences["second"], contents, 1) == 0
    assert (transfers.loads, transfers.loading, pool.num_free) == ([], {}, 1)


def test_content_that_may_be_wrong_is_not_loaded_to_be_shared() -> None:
    scheduler, index, made = fetching()
    transfers = scheduler.kv.transfers
    assert transfers is not None
    for load in made.loads:
        transfers.forget(load.group, load.digest)
        assert not index.has(load.group, load.digest)
    land(scheduler, made, tuple((load.number, True) for load in made.loads))
    assert chunk(plan(scheduler, index)) == (0, 9)
