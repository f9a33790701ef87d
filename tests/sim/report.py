"""The report of a failing world: the world as Python, and the state in which it failed."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from octavo.core.config import CoreConfig, KVGroup
from octavo.core.plan_draft import InFlight
from octavo.core.sequence import Sequence
from tests.sim.events import Arrival, Fault
from tests.sim.simulation import Simulation
from tests.sim.world import World

Written = World | CoreConfig | KVGroup | Arrival | Fault


def as_python(value: Written) -> str:
    """Return an expression that makes this value, without its defaults."""
    parts = []
    for each in fields(value):
        content = getattr(value, each.name)
        if each.default is MISSING or content != each.default:
            parts.append(f"{each.name}={_literal(content)}")
    return f"{type(value).__name__}({', '.join(parts)})"


def _literal(content: Any) -> str:
    if isinstance(content, Written):
        return as_python(content)
    if isinstance(content, tuple):
        items = [_literal(item) for item in content]
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
    return repr(content)


def world_as_python(world: World) -> str:
    """Return the world as Python with an event on each line, to be pasted into a test."""
    events = "".join(f"        ({tick}, {as_python(event)}),\n" for tick, event in world.events)
    rest = f"slowness={world.slowness!r}, refuse_at={world.refuse_at!r}, store={world.store!r}"
    if world.has_drafter:
        rest += ", has_drafter=True"
    return (
        f"World(\n    seed={world.seed},\n    config={as_python(world.config)},\n"
        f"    events=(\n{events}    ),\n    {rest},\n)"
    )


def state_of(simulation: Simulation) -> str:
    """Return the state of the core: sequences with counters and blocks, and plans in flight."""
    scheduler = simulation.engine.scheduler
    lines = [_row("running", sequence) for sequence in scheduler.running]
    lines += [_row("waiting", sequence) for sequence in scheduler.queue]
    lines += [_row("held", sequence) for sequence in scheduler.queue.held.values()]
    lines += [line for step in scheduler.in_flight for line in _plan(step)]
    lines.append(f"{scheduler.kv.pool.num_free} blocks free of {scheduler.kv.pool.num_blocks - 1}")
    return "\n".join(f"     {line}" for line in lines)


def _row(place: str, sequence: Sequence) -> str:
    counters = (
        f"known {len(sequence.tokens)}, computed {sequence.num_computed}, "
        f"planned {sequence.num_planned}, expected {sequence.num_expected}"
    )
    owned = f", slot {sequence.slot}, blocks {sequence.tables}" if sequence.tables else ""
    return f"{place} {sequence.request_id}: {counters}{owned}"


def _plan(step: InFlight) -> list[str]:
    """Return the lines of a plan in flight; the last plan may be the wrong one."""
    plan = step.plan
    opened = ", ".join(f"{new.request_id} in slot {new.slot}" for new in plan.opened)
    slots = f"freed {plan.freed}, opened ({opened}), copies {plan.copies}"
    lines = [f"plan {plan.step}: {slots}, new blocks {plan.new_blocks}, drafts {plan.drafts}"]
    for index, sequence in enumerate(step.sequences):
        owner = "dropped" if sequence is None else sequence.request_id
        end = plan.starts[index] + plan.counts[index]
        samples = ", samples" if plan.samples[index] else ""
        lines.append(f"  slot {plan.slots[index]}: {owner} {plan.starts[index]} to {end}{samples}")
    return lines
