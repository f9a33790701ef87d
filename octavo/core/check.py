"""Every invariant of the core in one place, to be called at any moment between two verbs.

Each check is a paragraph of the program's proof, stated as code. They read everything and write
nothing, so a production engine may run them, when it is idle rather than between steps: long
shared prefixes are compared token by token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

from octavo.core.block_pool import NULL_BLOCK
from octavo.core.limits import AdapterSlots
from octavo.core.scheduler import Scheduler
from octavo.core.sequence import NO_SLOT, Sequence, Status


class IntegrityError(AssertionError):
    """The core's state contradicts itself: a defect in the program, never in a request."""


def _distinct(numbers: Iterable[int]) -> bool:
    return max(Counter(numbers).values(), default=1) == 1


def _require(condition: bool, message: str, *details: object) -> None:
    if not condition:
        raise IntegrityError(message.format(*details))


def check_integrity(scheduler: Scheduler) -> None:
    """Raise IntegrityError if any invariant does not hold."""
    _check_places(scheduler)
    _check_slots(scheduler)
    _check_queue(scheduler)
    for sequence in scheduler.running:
        _check_counters(scheduler, sequence)
        _check_tables(scheduler, sequence)
    _check_blocks(scheduler)
    _check_sharing(scheduler)
    _check_index(scheduler)
    _check_plans(scheduler)
    _check_adapters(scheduler)


def _check_places(scheduler: Scheduler) -> None:
    """Every living sequence stands in exactly one place: running, queue or held aside."""
    places = Counter(s.request_id for s in scheduler.running)
    places.update(s.request_id for s in scheduler.queue)
    places.update(scheduler.queue.held.keys())
    _require(places == Counter(scheduler.sequences.keys()), "lost or doubled: {}", places)
    for sequence in scheduler.running:
        _require(
            sequence.status is Status.RUNNING,
            "{} runs as {!r}",
            sequence.request_id,
            sequence.status,
        )
    for before, after in pairwise(scheduler.running):
        _require(before.order < after.order, "running out of order at {}", after.request_id)


def _check_slots(scheduler: Scheduler) -> None:
    """A slot has one sequence or is free; slots to be announced as freed are free, named once."""
    taken = {s.slot: s for s in scheduler.running}
    _require(len(taken) == len(scheduler.running), "two sequences in one slot")
    for slot, owner in enumerate(scheduler.slots):
        _require(owner is taken.get(slot), "slot {} and its sequence disagree", slot)
    free = scheduler.free_slots
    _require(_distinct(free), "a slot is free twice: {}", free)
    _require(len(free) + len(taken) == len(scheduler.slots), "a slot is lost")
    _require(not any(slot in taken for slot in free), "a slot in use is free")
    freed = scheduler.freed_slots
    _require(not any(slot in taken for slot in freed), "slots in use are to be freed: {}", freed)
    _require(_distinct(freed), "a slot is to be freed twice: {}", freed)


def _check_queue(scheduler: Scheduler) -> None:
    """The queue is in order, its sums are right, and its sequences own nothing."""
    queue = scheduler.queue
    for before, after in pairwise(queue):
        _require(before.order < after.order, "queue out of order at {}", after.request_id)
    waiting = [*queue, *queue.held.values()]
    num_tokens = sum(len(s.tokens) for s in waiting)
    _require(
        queue.num_tokens == num_tokens, "queue says {} tokens, not {}", queue.num_tokens, num_tokens
    )
    for sequence in queue:
        _require(
            sequence.status is Status.WAITING,
            "{} waits as {!r}",
            sequence.request_id,
            sequence.status,
        )
    led = {f.request_id: f for s in scheduler.running for _, f in s.followers}
    for sequence in queue.held.values():
        _require(
            sequence.status is Status.HELD,
            "{} is held as {!r}",
            sequence.request_id,
            sequence.status,
        )
        _require(led.get(sequence.request_id) is sequence, "{} follows nobody", sequence.request_id)
    for sequence in waiting:
        owns = sequence.tables or sequence.num_capacity or sequence.slot != NO_SLOT
        moved = sequence.num_computed or sequence.num_planned or sequence.drafts
        _require(not owns and not moved, "{} waits and owns something", sequence.request_id)
        _require(
            sequence.num_expected == len(sequence.tokens),
            "{} waits and expects tokens",
            sequence.request_id,
        )


def _check_counters(scheduler: Scheduler, sequence: Sequence) -> None:
    """Between fact and plan lies exactly what is in flight."""
    planned = sampling = 0
    for flight in scheduler.flights:
        for index, owner in enumerate(flight.sequences):
            if owner is sequence:
                planned += flight.plan.counts[index]
                sampling += flight.plan.samples[index]
    name, known = sequence.request_id, len(sequence.tokens)
    _require(sequence.num_computed >= 0, "{}: computed < 0", name)
    _require(
        sequence.num_planned == sequence.num_computed + planned,
        "{}: planned {} is not computed {} and {} in flight",
        name,
        sequence.num_planned,
        sequence.num_computed,
        planned,
    )
    _require(
        sequence.num_expected == known + sampling,
        "{}: expects {}, knows {}, {} chunks in flight sample",
        name,
        sequence.num_expected,
        known,
        sampling,
    )
    _require(
        sequence.num_computed < known,
        "{}: computed {} of {} known tokens",
        name,
        sequence.num_computed,
        known,
    )
    limit = sequence.num_expected - bool(sampling) + len(sequence.verifying)
    _require(
        sequence.num_planned <= limit, "{}: planned {} past {}", name, sequence.num_planned, limit
    )
    _require(known < sequence.max_total, "{}: {} tokens, and still running", name, known)
    _require(len(sequence.drafts) <= scheduler.config.max_drafts, "{}: too many drafts", name)
    _require(not (sequence.drafts and sequence.in_flight), "{}: drafts behind a flight", name)


def _check_tables(scheduler: Scheduler, sequence: Sequence) -> None:
    """Tables of all groups are alike, long enough, hardly longer, and null only out of window."""
    kv, name = scheduler.kv, sequence.request_id
    _require(len(sequence.tables) == len(kv.groups), "{}: a table a group", name)
    num_blocks = len(sequence.tables[0])
    alike = all(len(table) == num_blocks for table in sequence.tables)
    _require(alike, "{}: tables of different lengths", name)
    capacity = num_blocks * kv.block_size
    _require(
        sequence.num_capacity == capacity,
        "{}: capacity {} is not {}",
        name,
        sequence.num_capacity,
        capacity,
    )
    _require(sequence.num_planned <= capacity, "{}: planned past its tables", name)
    most = sequence.num_planned + kv.block_size + scheduler.config.max_drafts
    _require(capacity < most, "{}: tables {} tokens too long", name, capacity - most)
    for group, table in zip(kv.groups, sequence.tables, strict=True):
        first = group.first_needed(sequence.num_computed) // kv.block_size
        _require(NULL_BLOCK not in table[first:], "{}: null block in the window", name)
    full = sequence.num_computed // kv.block_size
    _require(sequence.num_committed <= full, "{}: offered before computed", name)
    current = kv.config.prefix_caching and sequence.cache_epoch == kv.epoch
    _require(not current or sequence.num_committed == full, "{}: computed, not offered", name)


def _check_blocks(scheduler: Scheduler) -> None:
    """A block is held as often as tables name it, and free just if none does."""
    pool = scheduler.kv.pool
    holders = Counter(
        block
        for sequence in scheduler.running
        for table in sequence.tables
        for block in table
        if block != NULL_BLOCK
    )
    free = pool.free_blocks()
    _require(
        len(free) == pool.num_free, "{} free blocks listed, {} counted", len(free), pool.num_free
    )
    _require(_distinct(free), "a block is free twice")
    _require(NULL_BLOCK not in holders and pool.ref_counts[NULL_BLOCK] == 0, "null block held")
    for block in range(1, pool.num_blocks):
        _require(
            pool.ref_counts[block] == holders[block],
            "block {}: {} holds, {} holders",
            block,
            pool.ref_counts[block],
            holders[block],
        )
    _require(not any(block in holders for block in free), "a held block is free")
    _require(len(free) + len(holders) == pool.num_blocks - 1, "blocks are lost")


def _check_sharing(scheduler: Scheduler) -> None:
    """A block in two tables is full and computed, at one place, behind the same tokens."""
    kv = scheduler.kv
    seen: dict[int, tuple[Sequence, int, int]] = {}
    for sequence in scheduler.running:
        for group, table in enumerate(sequence.tables):
            for index, block in enumerate(table):
                if block == NULL_BLOCK:
                    continue
                other = seen.setdefault(block, (sequence, group, index))
                if other == (sequence, group, index):
                    continue
                end = (index + 1) * kv.block_size
                _require(other[1:] == (group, index), "block {} at two places", block)
                for holder in (sequence, other[0]):
                    _require(end <= holder.num_computed, "shared block {} not computed", block)
                _require(
                    sequence.tokens[:end] == other[0].tokens[:end],
                    "block {} shared behind different tokens",
                    block,
                )
                one, two = sequence.request, other[0].request
                _require(one.lora == two.lora, "block {} shared between adapters", block)
                _require(
                    one.cache_scope == two.cache_scope, "block {} shared between scopes", block
                )


def _check_index(scheduler: Scheduler) -> None:
    """The index and the labels say the same, and a held block's label is its own digest."""
    kv, pool = scheduler.kv, scheduler.kv.pool
    indexed = {
        block: (group, digest)
        for group in range(len(kv.groups))
        for digest, block in pool.indexed(group).items()
    }
    labelled = {block: label for block, label in enumerate(pool.labels) if label is not None}
    _require(indexed == labelled, "index and labels disagree")
    for sequence in scheduler.running:
        for group, table in enumerate(sequence.tables):
            for index, block in enumerate(table):
                label = pool.labels[block]
                if label is not None:
                    _require(
                        index < sequence.num_computed // kv.block_size,
                        "block {} offered before it is full",
                        block,
                    )
                    _require(
                        label == (group, sequence.digests[index]),
                        "block {} offered as what it is not",
                        block,
                    )
    for digest, owner in kv.upcoming.items():
        _require(owner.status is Status.RUNNING, "{} computes nothing", owner.request_id)
        _require(
            digest in owner.digests[owner.num_committed :],
            "{} computes another block",
            owner.request_id,
        )


def _check_plans(scheduler: Scheduler) -> None:
    """Plans in flight are within every bound and follow each other."""
    config, flights = scheduler.config, scheduler.flights
    _require(len(flights) <= config.pipeline_depth, "{} plans in flight", len(flights))
    for before, after in pairwise(flights):
        _require(
            before.plan.step + 1 == after.plan.step,
            "plans {} and {}",
            before.plan.step,
            after.plan.step,
        )
    for flight in flights:
        plan = flight.plan
        _require(_distinct(plan.slots), "step {}: a slot twice", plan.step)
        _require(
            plan.num_tokens <= config.max_num_batched_tokens,
            "step {}: {} tokens",
            plan.step,
            plan.num_tokens,
        )
        _require(min(plan.counts, default=1) > 0, "step {}: an empty chunk", plan.step)


def _check_adapters(scheduler: Scheduler) -> None:
    """The adapter limiter knows exactly the adapters that run."""
    running: dict[str, dict[str, None]] = {}
    for sequence in scheduler.running:
        if sequence.request.lora is not None:
            running.setdefault(sequence.request.lora, {})[sequence.request_id] = None
    for limiter in scheduler.limiters:
        if isinstance(limiter, AdapterSlots):
            _require(
                limiter.running == running,
                "adapters {} run, {} are counted",
                running,
                limiter.running,
            )
            _require(len(running) <= limiter.num_slots, "{} adapters run", len(running))
