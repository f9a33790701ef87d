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
    is_complete = places == Counter(scheduler.sequences.keys())
    _require(is_complete, "sequences lost or listed twice: {}", places)
    for sequence in scheduler.running:
        name, status = sequence.request_id, sequence.status
        _require(status is Status.RUNNING, "{} runs as {!r}", name, status)
    for before, after in pairwise(scheduler.running):
        _require(before.order < after.order, "running out of order at {}", after.request_id)


def _check_slots(scheduler: Scheduler) -> None:
    """Require that a slot has one sequence or is free, and that freed slots are announced once."""
    lifecycle = scheduler.lifecycle
    used = {s.slot: s for s in scheduler.running}
    _require(len(used) == len(scheduler.running), "two sequences in one slot")
    for slot, owner in enumerate(lifecycle.slots):
        _require(owner is used.get(slot), "slot {} and its sequence disagree", slot)
    free, freed = lifecycle.free_slots, lifecycle.freed_slots
    _require(_distinct(free), "a slot is free twice: {}", free)
    _require(len(free) + len(used) == len(lifecycle.slots), "a slot is lost")
    _require(used.keys().isdisjoint(free), "a slot in use is free")
    _require(used.keys().isdisjoint(freed), "slots in use are announced as freed: {}", freed)
    _require(_distinct(freed), "a slot is announced as freed twice: {}", freed)


def _check_queue(scheduler: Scheduler) -> None:
    """Require that the queue is in order, its sums are right, and its sequences own nothing."""
    queue = scheduler.queue
    for before, after in pairwise(queue):
        _require(before.order < after.order, "queue out of order at {}", after.request_id)
    waiting = [*queue, *queue.following.values()]
    counted, num_tokens = queue.num_tokens, sum(len(s.tokens) for s in waiting)
    _require(counted == num_tokens, "the queue counts {} tokens, not {}", counted, num_tokens)
    for sequence in queue:
        name, status = sequence.request_id, sequence.status
        _require(status is Status.WAITING, "{} waits as {!r}", name, status)
    followers = {f.request_id: f for s in scheduler.running for _, f in s.followers}
    for sequence in queue.following.values():
        name, status = sequence.request_id, sequence.status
        _require(status is Status.FOLLOWING, "{} follows as {!r}", name, status)
        _require(followers.get(name) is sequence, "{} follows no running sequence", name)
    for sequence in waiting:
        name, is_exact = sequence.request_id, sequence.num_expected == len(sequence.tokens)
        owns = sequence.tables or sequence.num_capacity or sequence.slot != NO_SLOT
        moved = sequence.num_computed or sequence.num_planned or sequence.drafts
        _require(not owns and not moved, "{} waits and owns slots, blocks or chunks", name)
        _require(is_exact, "{} waits and expects a sample", name)


def _check_counters(scheduler: Scheduler, sequence: Sequence) -> None:
    """Require that planned minus computed is exactly what is in flight."""
    in_flight = sampling = 0
    for step in scheduler.in_flight:
        for index, owner in enumerate(step.sequences):
            if owner is sequence:
                in_flight += step.plan.counts[index]
                sampling += step.plan.samples[index]
    name, known, drafts = sequence.request_id, len(sequence.tokens), sequence.drafts
    computed, planned = sequence.num_computed, sequence.num_planned
    expected = sequence.num_expected
    message = "{}: planned {} is not computed {} plus {} in flight"
    _require(computed >= 0, "{}: computed < 0", name)
    _require(planned == computed + in_flight, message, name, planned, computed, in_flight)
    message = "{}: expects {}, knows {}, {} chunks in flight sample"
    _require(expected == known + sampling, message, name, expected, known, sampling)
    _require(computed < known, "{}: computed {} of {} known tokens", name, computed, known)
    limit = expected - bool(sampling) + len(sequence.verifying)
    _require(planned <= limit, "{}: planned {} past {}", name, planned, limit)
    _require(known < sequence.max_total, "{}: still runs with {} tokens", name, known)
    _require(len(drafts) <= scheduler.config.max_drafts, "{}: too many drafts", name)
    _require(not (drafts and sequence.in_flight), "{}: drafts behind a step in flight", name)


def _check_tables(scheduler: Scheduler, sequence: Sequence) -> None:
    """Require tables of one length, just long enough, and null only out of the window."""
    kv, name = scheduler.kv, sequence.request_id
    _require(len(sequence.tables) == len(kv.groups), "{}: not one table for each group", name)
    num_blocks = len(sequence.tables[0])
    alike = all(len(table) == num_blocks for table in sequence.tables)
    _require(alike, "{}: tables of different lengths", name)
    counted, capacity = sequence.num_capacity, num_blocks * kv.block_size
    _require(counted == capacity, "{}: capacity {} is not {}", name, counted, capacity)
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
    counts, free = pool.ref_counts, pool.free_blocks()
    tables = (table for sequence in scheduler.running for table in sequence.tables)
    holders = Counter(block for table in tables for block in table if block != NULL_BLOCK)
    num_listed, num_free = len(free), pool.num_free
    _require(num_listed == num_free, "{} free blocks listed, {} counted", num_listed, num_free)
    _require(_distinct(free), "a block is free twice")
    _require(counts[NULL_BLOCK] == 0, "the null block is in use")
    message = "block {}: reference count {}, {} holders"
    for block in range(1, pool.num_blocks):
        _require(counts[block] == holders[block], message, block, counts[block], holders[block])
    _require(not any(block in holders for block in free), "a block in use is free")
    _require(len(free) + len(holders) == pool.num_blocks - 1, "blocks are lost")


def _check_sharing(scheduler: Scheduler) -> None:
    """Require that a shared block is full, computed, at one index, and after equal tokens."""
    seen: dict[int, tuple[Sequence, int, int]] = {}
    for sequence in scheduler.running:
        for group, table in enumerate(sequence.tables):
            for index, block in enumerate(table):
                place = (sequence, group, index)
                other = seen.setdefault(block, place)
                if block != NULL_BLOCK and other != place:
                    end = (index + 1) * scheduler.kv.block_size
                    _require(other[1:] == place[1:], "block {} is at two places", block)
                    _check_shared_block(block, end, sequence, other[0])


def _check_shared_block(block: int, end: int, one: Sequence, other: Sequence) -> None:
    is_computed = end <= min(one.num_computed, other.num_computed)
    _require(is_computed, "block {} is shared before it is computed", block)
    are_equal = one.tokens[:end] == other.tokens[:end]
    _require(are_equal, "block {} is shared after different tokens", block)
    first, second = one.request, other.request
    _require(first.lora == second.lora, "block {} is shared between adapters", block)
    is_allowed = first.cache_scope == second.cache_scope
    _require(is_allowed, "block {} is shared between scopes", block)


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
        num_full = sequence.num_computed // kv.block_size
        for group, table in enumerate(sequence.tables):
            for index, block in enumerate(table):
                label = pool.labels[block]
                if label is not None:
                    _require(index < num_full, "block {} is cached before it is full", block)
                    is_own = label == (group, sequence.digests[index])
                    _require(is_own, "block {} is cached under another digest", block)
    for digest, owner in kv.upcoming.items():
        name, digests = owner.request_id, owner.digests[owner.num_committed :]
        _require(owner.status is Status.RUNNING, "{} computes a block, but does not run", name)
        _require(digest in digests, "{} computes a block of another digest", name)


def _check_plans(scheduler: Scheduler) -> None:
    """Require that plans in flight respect every bound and have consecutive numbers."""
    config, in_flight = scheduler.config, scheduler.in_flight
    _require(len(in_flight) <= config.pipeline_depth, "{} plans in flight", len(in_flight))
    plans = [step.plan for step in in_flight]
    for before, after in pairwise(plans):
        is_next = before.step + 1 == after.step
        _require(is_next, "plan {} is followed by plan {}", before.step, after.step)
    for plan in plans:
        _require(_distinct(plan.slots), "step {}: a slot has two chunks", plan.step)
        fits = plan.num_tokens <= config.max_num_batched_tokens
        _require(fits, "step {}: {} tokens", plan.step, plan.num_tokens)
        _require(min(plan.counts, default=1) > 0, "step {}: an empty chunk", plan.step)


def _check_adapters(scheduler: Scheduler) -> None:
    """Require that the adapter limiter counts exactly the adapters that run."""
    running: dict[str, dict[str, None]] = {}
    for sequence in scheduler.running:
        if sequence.request.lora is not None:
            running.setdefault(sequence.request.lora, {})[sequence.request_id] = None
    for limiter in scheduler.limiters:
        if isinstance(limiter, AdapterSlots):
            counted = limiter.running
            _require(counted == running, "adapters {} run, {} are counted", running, counted)
            _require(len(running) <= limiter.num_slots, "{} adapters run", len(running))
