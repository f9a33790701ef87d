"""Every invariant of the core in one place; it can be checked between any two verbs.

Each check is a part of the proof of correctness, written as code. The checks read everything and
write nothing, so a production engine may run them, but when it is idle rather than between steps:
long shared prefixes are compared token by token.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from octavo.core.kv.check import IntegrityError, check_kv, distinct, require
from octavo.core.lifecycle import NO_DEADLINE
from octavo.core.limits import AdapterSlots
from octavo.core.plan import NO_ADAPTER
from octavo.core.scheduler import Scheduler
from octavo.core.sequence import NO_SLOT, Sequence, Status
from octavo.core.stats import FETCH, PREFIX


def check_integrity(scheduler: Scheduler) -> None:
    """Raise IntegrityError if any invariant does not hold."""
    _check_places(scheduler)
    _check_slots(scheduler)
    _check_queue(scheduler)
    for sequence in scheduler.running:
        _check_counters(scheduler, sequence)
    check_kv(scheduler.kv, scheduler.running)
    _check_plans(scheduler)
    _check_adapters(scheduler)


def _check_places(scheduler: Scheduler) -> None:
    """Require that every living sequence is in exactly one place: running, waiting or held."""
    places = Counter(s.request_id for s in scheduler.running)
    places.update(s.request_id for s in scheduler.queue)
    places.update(scheduler.queue.held.keys())
    is_complete = places == Counter(scheduler.sequences.keys())
    require(is_complete, "sequences lost or listed twice: {}", places)
    for sequence in scheduler.running:
        name, status = sequence.request_id, sequence.status
        require(status is Status.RUNNING, "{} runs as {!r}", name, status)
    for before, after in pairwise(scheduler.running):
        require(before.place < after.place, "running out of order at {}", after.request_id)
    num_running = Counter(sequence.line for sequence in scheduler.running)
    for line in scheduler.queue.lines.values():
        right, counted = num_running[line], line.num_running
        require(counted == right, "{} runs {} sequences, {} counted", line.name, right, counted)


def _check_slots(scheduler: Scheduler) -> None:
    """Require that a slot has one sequence or is free, and that freed slots are announced once."""
    lifecycle = scheduler.lifecycle
    used = {s.slot: s for s in scheduler.running}
    require(len(used) == len(scheduler.running), "two sequences in one slot")
    for slot, owner in enumerate(lifecycle.slots):
        require(owner is used.get(slot), "slot {} and its sequence disagree", slot)
    free, freed = lifecycle.free_slots, lifecycle.freed_slots
    require(distinct(free), "a slot is free twice: {}", free)
    require(len(free) + len(used) == len(lifecycle.slots), "a slot is lost")
    require(used.keys().isdisjoint(free), "a slot in use is free")
    require(used.keys().isdisjoint(freed), "slots in use are announced as freed: {}", freed)
    require(distinct(freed), "a slot is announced as freed twice: {}", freed)
    num_drafting = sum(each.may_draft for each in scheduler.running)
    counted = lifecycle.num_drafting
    require(
        counted == num_drafting, "{} sequences may draft, {} are counted", num_drafting, counted
    )


def _check_queue(scheduler: Scheduler) -> None:
    """Require that the queue is in order, its sums are right, and its sequences own nothing."""
    queue = scheduler.queue
    for line in queue.lines.values():
        for after, before in pairwise(line.waiting):
            require(before.order < after.order, "queue out of order at {}", after.request_id)
    waiting = [*queue, *queue.held.values()]
    counted, num_tokens = queue.num_tokens, sum(s.num_kept for s in waiting)
    require(counted == num_tokens, "the queue counts {} tokens, not {}", counted, num_tokens)
    for sequence in queue:
        name, status = sequence.request_id, sequence.status
        require(status is Status.WAITING, "{} waits as {!r}", name, status)
        require(sequence.hold is None, "{} waits and is held", name)
    followers = {f.request_id: f for s in scheduler.running for _, f in s.followers}
    for sequence in queue.held.values():
        name, status, hold = sequence.request_id, sequence.status, sequence.hold
        require(status is Status.HELD, "{} is held as {!r}", name, status)
        if hold is None or not hold.reasons:
            raise IntegrityError(f"{name} is held without a reason")
        follows = followers.get(name) is sequence
        is_right = follows == (hold.reasons == (PREFIX,))
        require(is_right, "{} is held by {} and follows: {}", name, hold.reasons, follows)
        num_loads = _num_loads(scheduler, sequence) if hold.reasons == (FETCH,) else 0
        message = "{} waits for {} loads, not {}"
        require(hold.num_loads == num_loads, message, name, hold.num_loads, num_loads)
        is_untimed = all(reason in scheduler.config.untimed_holds for reason in hold.reasons)
        is_bounded = scheduler.lifecycle.next_deadline <= hold.deadline < NO_DEADLINE
        require(follows or is_untimed or is_bounded, "{} is held past {}", name, hold.deadline)
    for sequence in waiting:
        name, is_exact = sequence.request_id, sequence.num_expected == len(sequence.tokens)
        owns = sequence.tables or sequence.num_capacity or sequence.slot != NO_SLOT
        moved = sequence.num_computed or sequence.num_planned or sequence.drafts
        require(not owns and not moved, "{} waits and owns slots, blocks or chunks", name)
        require(is_exact, "{} waits and expects a sample", name)
        require(sequence.catching_up, "{} waits and is taken for one that decodes", name)


def _num_loads(scheduler: Scheduler, sequence: Sequence) -> int:
    transfers = scheduler.kv.transfers
    loads = () if transfers is None else transfers.loading.values()
    return sum(load.waiters.count(sequence) for load in loads)


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
    most = 1 if scheduler.config.num_stages > 1 else len(scheduler.in_flight)
    require(sampling <= most, "{}: {} chunks in stages sample", name, sampling)
    message = "{}: planned {} is not computed {} plus {} in flight"
    require(computed >= 0, "{}: computed < 0", name)
    require(planned == computed + in_flight, message, name, planned, computed, in_flight)
    message = "{}: expects {}, knows {}, {} chunks in flight sample"
    require(expected == known + sampling, message, name, expected, known, sampling)
    require(computed < known, "{}: computed {} of {} known tokens", name, computed, known)
    limit = expected - bool(sampling) + len(sequence.verifying)
    require(planned <= limit, "{}: planned {} past {}", name, planned, limit)
    require(known < sequence.max_total, "{}: still runs with {} tokens", name, known)
    require(len(drafts) <= scheduler.config.max_drafts, "{}: too many drafts", name)
    require(not (drafts and sequence.in_flight), "{}: drafts behind a step in flight", name)


def _check_plans(scheduler: Scheduler) -> None:
    """Require that plans in flight respect every bound and have consecutive numbers."""
    config, in_flight = scheduler.config, scheduler.in_flight
    require(len(in_flight) <= config.pipeline_depth, "{} plans in flight", len(in_flight))
    plans = [step.plan for step in in_flight]
    for before, after in pairwise(plans):
        is_next = before.step + 1 == after.step
        require(is_next, "plan {} is followed by plan {}", before.step, after.step)
    for plan in plans:
        require(distinct(plan.slots), "step {}: a slot has two chunks", plan.step)
        fits = plan.num_tokens <= config.max_num_batched_tokens
        require(fits, "step {}: {} tokens", plan.step, plan.num_tokens)
        require(min(plan.counts, default=1) > 0, "step {}: an empty chunk", plan.step)


def _check_adapters(scheduler: Scheduler) -> None:
    """Require that the adapter limiter counts exactly the adapters that run."""
    running: dict[str, dict[str, None]] = {}
    for sequence in scheduler.running:
        if sequence.request.lora is not None:
            running.setdefault(sequence.request.lora, {})[sequence.request_id] = None
    for limiter in scheduler.limiters:
        if isinstance(limiter, AdapterSlots):
            counted = limiter.running
            require(counted == running, "adapters {} run, {} are counted", running, counted)
            require(len(running) <= limiter.num_slots, "{} adapters run", len(running))
            slots = limiter.slots
            numbers = sorted(slots.values())
            is_sound = numbers == [*range(len(slots))] and len(slots) <= limiter.num_slots
            require(is_sound, "adapters have the slots {}", slots)
            for sequence in scheduler.running:
                right = slots.get(sequence.request.lora or "", NO_ADAPTER)
                name, has = sequence.request_id, sequence.adapter
                require(has == right, "{} has adapter slot {}, not {}", name, has, right)
