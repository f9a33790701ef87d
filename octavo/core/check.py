"""Every invariant of the core in one place; it can be checked between any two verbs.

Each check is a part of the proof of correctness, written as code. The checks read everything and
write nothing, so a production engine may run them, but when it is idle rather than between steps:
long shared prefixes are compared token by token.
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
    """A contradiction in the core's state: a defect of the program, never of a request."""


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
    """Require that every living sequence is in exactly one place: running, waiting or following."""
    places = Counter(s.request_id for s in scheduler.running)
    places.update(s.request_id for s in scheduler.queue)
    places.update(scheduler.queue.following.keys())
    _require(
        places == Counter(scheduler.sequences.keys()), "sequences lost or listed twice: {}", places
    )
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
    """Require that a slot has one sequence or is free, and that freed slots are announced once."""
    lifecycle = scheduler.lifecycle
    taken = {s.slot: s for s in scheduler.running}
    _require(len(taken) == len(scheduler.running), "two sequences in one slot")
    for slot, owner in enumerate(lifecycle.slots):
        _require(owner is taken.get(slot), "slot {} and its sequence disagree", slot)
    free = lifecycle.free_slots
    _require(_distinct(free), "a slot is free twice: {}", free)
    _require(len(free) + len(taken) == len(lifecycle.slots), "a slot is lost")
    _require(not any(slot in taken for slot in free), "a slot in use is free")
    freed = lifecycle.freed_slots
    _require(
        not any(slot in taken for slot in freed), "slots in use are announced as freed: {}", freed
    )
    _require(_distinct(freed), "a slot is announced as freed twice: {}", freed)


def _check_queue(scheduler: Scheduler) -> None:
    """Require that the queue is in order, its sums are right, and its sequences own nothing."""
    queue = scheduler.queue
    for before, after in pairwise(queue):
        _require(before.order < after.order, "queue out of order at {}", after.request_id)
    waiting = [*queue, *queue.following.values()]
    num_tokens = sum(len(s.tokens) for s in waiting)
    _require(
        queue.num_tokens == num_tokens,
        "the queue counts {} tokens, not {}",
        queue.num_tokens,
        num_tokens,
    )
    for sequence in queue:
        _require(
            sequence.status is Status.WAITING,
            "{} waits as {!r}",
            sequence.request_id,
            sequence.status,
        )
    followers = {f.request_id: f for s in scheduler.running for _, f in s.followers}
    for sequence in queue.following.values():
        _require(
            sequence.status is Status.FOLLOWING,
            "{} follows as {!r}",
            sequence.request_id,
            sequence.status,
        )
        is_led = followers.get(sequence.request_id) is sequence
        _require(is_led, "{} follows no running sequence", sequence.request_id)
    for sequence in waiting:
        owns = sequence.tables or sequence.num_capacity or sequence.slot != NO_SLOT
        moved = sequence.num_computed or sequence.num_planned or sequence.drafts
        _require(
            not owns and not moved, "{} waits and owns slots, blocks or chunks", sequence.request_id
        )
        _require(
            sequence.num_expected == len(sequence.tokens),
            "{} waits and expects a sample",
            sequence.request_id,
        )


def _check_counters(scheduler: Scheduler, sequence: Sequence) -> None:
    """Require that planned minus computed is exactly what is in flight."""
    planned = sampling = 0
    for step in scheduler.in_flight:
        for index, owner in enumerate(step.sequences):
            if owner is sequence:
                planned += step.plan.counts[index]
                sampling += step.plan.samples[index]
    name, known = sequence.request_id, len(sequence.tokens)
    _require(sequence.num_computed >= 0, "{}: computed < 0", name)
    _require(
        sequence.num_planned == sequence.num_computed + planned,
        "{}: planned {} is not computed {} plus {} in flight",
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
    _require(known < sequence.max_total, "{}: still runs with {} tokens", name, known)
    _require(len(sequence.drafts) <= scheduler.config.max_drafts, "{}: too many drafts", name)
    _require(
        not (sequence.drafts and sequence.in_flight), "{}: drafts behind a step in flight", name
    )


def _check_tables(scheduler: Scheduler, sequence: Sequence) -> None:
    """Require tables of one length, just long enough, and null only out of the window."""
    kv, name = scheduler.kv, sequence.request_id
    _require(len(sequence.tables) == len(kv.groups), "{}: not one table for each group", name)
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
    _require(sequence.num_committed <= full, "{}: committed before computed", name)
    current = kv.config.prefix_caching and sequence.cache_epoch == kv.epoch
    _require(not current or sequence.num_committed == full, "{}: computed, but not committed", name)


def _check_blocks(scheduler: Scheduler) -> None:
    """Require that reference counts equal the entries in tables, and that all others are free."""
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
    _require(
        NULL_BLOCK not in holders and pool.ref_counts[NULL_BLOCK] == 0, "the null block is in use"
    )
    for block in range(1, pool.num_blocks):
        _require(
            pool.ref_counts[block] == holders[block],
            "block {}: reference count {}, {} holders",
            block,
            pool.ref_counts[block],
            holders[block],
        )
    _require(not any(block in holders for block in free), "a block in use is free")
    _require(len(free) + len(holders) == pool.num_blocks - 1, "blocks are lost")


def _check_sharing(scheduler: Scheduler) -> None:
    """Require that a shared block is full, computed, at one index, and after equal tokens."""
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
                _require(other[1:] == (group, index), "block {} is at two places", block)
                for holder in (sequence, other[0]):
                    _require(
                        end <= holder.num_computed,
                        "block {} is shared before it is computed",
                        block,
                    )
                _require(
                    sequence.tokens[:end] == other[0].tokens[:end],
                    "block {} is shared after different tokens",
                    block,
                )
                one, two = sequence.request, other[0].request
                _require(one.lora == two.lora, "block {} is shared between adapters", block)
                _require(
                    one.cache_scope == two.cache_scope, "block {} is shared between scopes", block
                )


def _check_index(scheduler: Scheduler) -> None:
    """Require that index and labels agree, and that a block's label is its own digest."""
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
                        "block {} is cached before it is full",
                        block,
                    )
                    _require(
                        label == (group, sequence.digests[index]),
                        "block {} is cached under another digest",
                        block,
                    )
    for digest, owner in kv.upcoming.items():
        _require(
            owner.status is Status.RUNNING,
            "{} is announced to compute a block, but does not run",
            owner.request_id,
        )
        _require(
            digest in owner.digests[owner.num_committed :],
            "{} is announced to compute a block of another digest",
            owner.request_id,
        )


def _check_plans(scheduler: Scheduler) -> None:
    """Require that plans in flight respect every bound and have consecutive numbers."""
    config, in_flight = scheduler.config, scheduler.in_flight
    _require(len(in_flight) <= config.pipeline_depth, "{} plans in flight", len(in_flight))
    for before, after in pairwise(in_flight):
        _require(
            before.plan.step + 1 == after.plan.step,
            "plan {} is followed by plan {}",
            before.plan.step,
            after.plan.step,
        )
    for step in in_flight:
        plan = step.plan
        _require(_distinct(plan.slots), "step {}: a slot has two chunks", plan.step)
        _require(
            plan.num_tokens <= config.max_num_batched_tokens,
            "step {}: {} tokens",
            plan.step,
            plan.num_tokens,
        )
        _require(min(plan.counts, default=1) > 0, "step {}: an empty chunk", plan.step)


def _check_adapters(scheduler: Scheduler) -> None:
    """Require that the adapter limiter counts exactly the adapters that run."""
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
