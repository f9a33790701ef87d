"""Every invariant, broken on purpose: a check that cannot fail proves nothing."""

import ast
import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from octavo.core import check
from octavo.core.check import check_integrity
from octavo.core.config import KVGroup
from octavo.core.kv import check as kv_check
from octavo.core.kv.block_pool import NULL_BLOCK, BlockPool
from octavo.core.kv.check import IntegrityError
from octavo.core.limits import AdapterSlots
from octavo.core.plan import StepPlan
from octavo.core.plan_draft import InFlight
from octavo.core.scheduler import Scheduler
from octavo.core.sequence import Hold, Sequence, Status
from tests.core.kv.test_check_pages import PAGES
from tests.core.make import Rig, tokens


def healthy() -> Scheduler:
    """Return a scheduler in the middle of step 5 with sequences in every place.

    "a" (slot 1) and "b" (slot 0) decode and share two blocks in each group; "long" (slot 2) catches
    up, and "d" follows it; "c1" and "c2" wait for an adapter; slot 3 is to be announced as freed,
    and its chunk in flight was dropped.
    """
    rig = Rig(
        groups=(KVGroup(), KVGroup(window=6)),
        pipeline_depth=2,
        max_loras=1,
        max_num_batched_tokens=32,
        long_prefill_tokens=10,
        max_drafts=2,
    )
    rig.add("over", tokens(5, 9), max_tokens=3, speculation=False)
    for _ in range(2):
        rig.plan()
        rig.land()
    rig.plan()
    rig.add("a", [*tokens(9), 1], lora="x")
    rig.add("long", tokens(25, 2), arrival=90.0)
    rig.add("d", tokens(25, 2), arrival=91.0)
    rig.plan()
    rig.land()
    rig.land()
    rig.add("b", [*tokens(9), 2], lora="x")
    rig.add("gone", tokens(9, 5), arrival=92.0)
    rig.plan()
    rig.land()
    rig.add("c1", tokens(5, 3), lora="y", arrival=93.0)
    rig.add("c2", tokens(5, 4), lora="y", arrival=94.0)
    rig.plan()
    rig.abort("gone")
    assert (rig.running, rig.waiting, rig.following) == (["a", "b", "long"], ["c1", "c2"], ["d"])
    assert [len(step.plan.slots) for step in rig.scheduler.in_flight] == [4]
    assert rig.scheduler.lifecycle.freed_slots == [3]
    return rig.scheduler


def pool_of(scheduler: Scheduler) -> BlockPool:
    """Return the pool of a scheduler whose blocks have one size."""
    assert isinstance(scheduler.kv.pool, BlockPool)
    return scheduler.kv.pool


def setting(request_id: str, **values: Any) -> Callable[[Scheduler], None]:
    """Return a sabotage that overwrites fields of one sequence."""

    def sabotage(scheduler: Scheduler) -> None:
        for name, value in values.items():
            setattr(scheduler.sequences[request_id], name, value)

    return sabotage


def moving(request_id: str, **steps: int) -> Callable[[Scheduler], None]:
    """Return a sabotage that moves counters of one sequence."""

    def sabotage(scheduler: Scheduler) -> None:
        for name, step in steps.items():
            sequence = scheduler.sequences[request_id]
            setattr(sequence, name, getattr(sequence, name) + step)

    return sabotage


def planning(**values: Any) -> Callable[[Scheduler], None]:
    """Return a sabotage that overwrites parts of the plan in flight."""

    def sabotage(scheduler: Scheduler) -> None:
        step = scheduler.in_flight[0]
        step.plan = step.plan._replace(**values)

    return sabotage


def launching(*plans: tuple[int, int | None]) -> Callable[[Scheduler], None]:
    """Return a sabotage that adds plans (step, tokens of its one chunk) with dropped chunks."""

    def sabotage(scheduler: Scheduler) -> None:
        for step, count in plans:
            chunk = () if count is None else (count,)
            some = (7,) * len(chunk)
            plan = StepPlan(step, (), (), (), (), some, some, chunk, (True,) * len(chunk), ())
            scheduler.in_flight.append(InFlight(plan, [None] * len(chunk), 0.0))

    return sabotage


def put(scheduler: Scheduler, one: Sequence, group: int, index: int, block: int) -> None:
    """Put another block into a table, with correct reference counts."""
    pool = pool_of(scheduler)
    pool.release(one.tables[group][index])
    pool.ref_counts[block] += 1
    one.tables[group][index] = block


def take_out_of_the_free_list(scheduler: Scheduler) -> None:
    pool = pool_of(scheduler)
    block = pool._next[0]
    after = pool._next[block]
    pool._next[0], pool._previous[after] = after, 0
    pool.num_free -= 1


def put_into_the_free_list(scheduler: Scheduler, block: int) -> None:
    pool = pool_of(scheduler)
    head = pool._next[0]
    pool._next[0], pool._previous[head] = block, block
    pool._next[block], pool._previous[block] = head, 0
    pool.num_free += 1


def let_the_free_list_go_in_a_circle(scheduler: Scheduler) -> None:
    pool = pool_of(scheduler)
    first = pool._next[0]
    second = pool._next[first]
    pool._next[second], pool._previous[first] = first, second
    pool.num_free = pool.num_blocks + 1


def lengthen_tables(scheduler: Scheduler) -> None:
    added = pool_of(scheduler).allocate(4)
    assert added is not None
    one = scheduler.sequences["a"]
    for table in one.tables:
        table.extend((added.pop(), added.pop()))
    one.num_capacity += 8


def shorten_tables(scheduler: Scheduler) -> None:
    one = scheduler.sequences["a"]
    for table in one.tables:
        table.pop()
    one.num_capacity -= 4


def another_block_in_the_middle_of_a(scheduler: Scheduler, group: int, owner: str) -> None:
    put(scheduler, scheduler.sequences["a"], 0, 2, scheduler.sequences[owner].tables[group][2])


def adapter_slots(scheduler: Scheduler) -> AdapterSlots:
    """Return the limiter that counts adapters."""
    return next(each for each in scheduler.limiters if isinstance(each, AdapterSlots))


def forget_adapters(scheduler: Scheduler) -> None:
    adapter_slots(scheduler).running.clear()


def change_request(scheduler: Scheduler, **values: Any) -> None:
    one = scheduler.sequences["b"]
    one.request = replace(one.request, **values)


def tokens_differ(scheduler: Scheduler) -> None:
    scheduler.sequences["a"].tokens[0] += 1


def swap_waiting(scheduler: Scheduler) -> None:
    scheduler.sequences["c1"].line.waiting.reverse()


def hold_too_long(scheduler: Scheduler) -> None:
    scheduler.sequences["long"].followers.clear()
    scheduler.sequences["d"].hold = Hold(("grammar",), 0.0, -1.0, is_optional=False)
    scheduler.lifecycle.next_deadline = 0.0


Case = tuple[str, Callable[[Scheduler], object]]
PLACES: list[Case] = [
    ("sequences lost or listed twice: ", lambda s: s.running.pop()),
    ("a runs as <Status.HELD: 1>", setting("a", status=Status.HELD)),
    ("running out of order at b", lambda s: s.running.reverse()),
    (" runs 3 sequences, 2 counted", lambda s: setattr(s.running[0].line, "num_running", 2)),
    ("two sequences in one slot", setting("b", slot=1)),
    ("slot 5 and its sequence disagree", lambda s: s.lifecycle.slots.__setitem__(5, s.running[0])),
    ("a slot is free twice: ", lambda s: s.lifecycle.free_slots.append(s.lifecycle.free_slots[0])),
    ("a slot is lost", lambda s: s.lifecycle.free_slots.pop()),
    ("a slot in use is free", lambda s: s.lifecycle.free_slots.__setitem__(0, 1)),
    ("slots in use are announced as freed: [3, 1]", lambda s: s.lifecycle.freed_slots.append(1)),
    ("a slot is announced as freed twice: [3, 3]", lambda s: s.lifecycle.freed_slots.append(3)),
    (
        "3 sequences may draft, 4 are counted",
        lambda s: setattr(s.lifecycle, "num_drafting", 4),
    ),
    ("queue out of order at c1", swap_waiting),
    ("the queue counts 36 tokens, not 35", lambda s: setattr(s.queue, "num_tokens", 36)),
    ("c1 waits as <Status.HELD: 1>", setting("c1", status=Status.HELD)),
    ("d is held as <Status.WAITING: 0>", setting("d", status=Status.WAITING)),
    ("c1 waits and is held", setting("c1", hold=Hold(("grammar",), 0.0, 0.0, False))),
    ("d is held without a reason", setting("d", hold=None)),
    (
        "d is held by ('prefix',) and follows: False",
        lambda s: s.sequences["long"].followers.clear(),
    ),
    ("d is held past -1.0", hold_too_long),
    ("c1 waits and owns slots, blocks or chunks", setting("c1", tables=([1], [2]))),
    ("c1 waits and owns slots, blocks or chunks", setting("c1", num_capacity=4)),
    ("c1 waits and owns slots, blocks or chunks", setting("c1", slot=7)),
    ("c1 waits and owns slots, blocks or chunks", setting("c1", num_computed=1)),
    ("c1 waits and owns slots, blocks or chunks", setting("c1", num_planned=1)),
    ("c1 waits and owns slots, blocks or chunks", setting("c1", drafts=(1,))),
    ("d waits and expects a sample", moving("d", num_expected=1)),
    ("d waits and is taken for one that decodes", setting("d", catching_up=False)),
]


def in_two_stages(scheduler: Scheduler) -> None:
    """Let a step be in flight twice, where stages have it."""
    scheduler.config = replace(scheduler.config, num_stages=2)
    scheduler.in_flight.append(scheduler.in_flight[0])


COUNTERS: list[Case] = [
    ("a: 2 chunks in stages sample", in_two_stages),
    ("a: computed < 0", setting("a", num_computed=-1)),
    ("a: planned 13 is not computed 11 plus 1 in flight", moving("a", num_planned=1)),
    ("a: expects 14, knows 12, 1 chunks in flight sample", moving("a", num_expected=1)),
    ("a: computed 12 of 12 known tokens", moving("a", num_computed=1, num_planned=1)),
    (
        "a: planned 13 past 12",
        lambda s: (moving("a", num_planned=1)(s), planning(counts=(2, 1, 5, 1))(s)),
    ),
    ("a: still runs with 12 tokens", setting("a", max_total=12)),
    ("a: too many drafts", setting("a", drafts=(1, 2, 3))),
    ("a: drafts behind a step in flight", setting("a", drafts=(1,))),
]
TABLES: list[Case] = [
    (
        "a: not one table for each group",
        lambda s: setting("a", tables=s.sequences["a"].tables[:1])(s),
    ),
    ("a: a table of 2 entries, not 3", lambda s: s.sequences["a"].tables[1].pop()),
    ("a: capacity 13", moving("a", num_capacity=1)),
    ("a: planned past its tables", shorten_tables),
    ("a: tables 2 tokens too long", lengthen_tables),
    ("a: null block in the window", lambda s: s.sequences["a"].tables[1].__setitem__(2, 0)),
    ("a: committed before computed", setting("a", num_committed=3)),
    ("a: computed, but not committed", setting("a", num_committed=1)),
]
BLOCKS: list[Case] = [
    ("44 free blocks listed, 7 counted", lambda s: setattr(s.kv.pool, "num_free", 7)),
    ("a block is free twice", let_the_free_list_go_in_a_circle),
    ("the null block is in use", lambda s: pool_of(s).ref_counts.__setitem__(NULL_BLOCK, 1)),
    ("block 5: reference count 3, 2 holders", lambda s: pool_of(s).ref_counts.__setitem__(5, 3)),
    ("a block in use is free", lambda s: put_into_the_free_list(s, 5)),
    ("blocks are lost", take_out_of_the_free_list),
]
SHARING: list[Case] = [
    ("block 10 is at two places", lambda s: another_block_in_the_middle_of_a(s, 1, "a")),
    (
        "block 19 is shared before it is computed",
        lambda s: another_block_in_the_middle_of_a(s, 0, "b"),
    ),
    ("block 5 is shared after different tokens", tokens_differ),
    ("block 5 is shared between adapters", lambda s: change_request(s, lora=None)),
    ("block 5 is shared between scopes", lambda s: change_request(s, cache_scope="other")),
    ("index and labels disagree", lambda s: pool_of(s).labels.__setitem__(5, None)),
    ("block 7 is cached before it is full", lambda s: s.kv.pool.label(7, 0, b"early")),
    (
        "block 5 is cached under another digest",
        lambda s: s.sequences["a"].digests.__setitem__(0, b"wrong"),
    ),
    (
        "d computes a block, but does not run",
        lambda s: s.kv.upcoming.__setitem__(b"x", s.sequences["d"]),
    ),
    (
        "a computes a block of another digest",
        lambda s: s.kv.upcoming.__setitem__(b"x", s.sequences["a"]),
    ),
]
PLANS: list[Case] = [
    ("3 plans in flight", launching((6, None), (7, None))),
    ("plan 5 is followed by plan 9", launching((9, None))),
    ("step 5: a slot has two chunks", planning(slots=(1, 1, 2, 3))),
    ("step 6: 33 tokens", launching((6, 33))),
    ("step 6: an empty chunk", launching((6, 0))),
    ("adapters {'x': {'a': None, 'b': None}} run, {} are counted", forget_adapters),
    ("1 adapters run", lambda s: setattr(adapter_slots(s), "num_slots", 0)),
    ("adapters have the slots {'x': 1}", lambda s: adapter_slots(s).slots.update(x=1)),
    ("a has adapter slot 1, not 0", lambda s: setattr(s.running[0], "adapter", 1)),
]
CASES = [*PLACES, *COUNTERS, *TABLES, *BLOCKS, *SHARING, *PLANS]


def test_a_healthy_core_passes() -> None:
    check_integrity(healthy())


@pytest.mark.parametrize(("message", "sabotage"), CASES, ids=[message for message, _ in CASES])
def test_a_broken_invariant_is_found(message: str, sabotage: Callable[[Scheduler], object]) -> None:
    scheduler = healthy()
    sabotage(scheduler)
    with pytest.raises(IntegrityError, match=re.escape(message)):
        check_integrity(scheduler)


def test_every_invariant_has_a_case() -> None:
    """Each message of the checks occurs in a case above, or in test_check_pages.py."""
    templates = [
        call.args[1].value
        for module in (check, kv_check)
        for call in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id == "require"
        and isinstance(call.args[1], ast.Constant)
    ]
    assert len(templates) > 40
    messages = [message for message, _ in (*CASES, *PAGES)]
    for template in templates:
        # A case must contain the words between the placeholders, in their order.
        words = [word for word in re.split(r"\{.*?\}", str(template)) if word.strip()]
        pattern = ".*".join(re.escape(word.strip(" :,")) for word in words)
        assert any(re.search(pattern, message) for message in messages), template
