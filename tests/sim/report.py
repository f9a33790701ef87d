"""What a person is shown of a world that fails: the world as Python, and the state it failed in."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from octavo.core.config import CoreConfig, KVGroup
from octavo.core.plan_draft import InFlight
from octavo.core.sequence import Sequence
from tests.sim.simulation import Simulation
from tests.sim.world import Arrival, Fault, World

Written = World | CoreConfig | KVGroup | Arrival | Fault


def as_python(value: Written) -> str:
    """An expression that makes this value again, without what it has by default."""
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
    """The world as Python, an event a line, to be pasted into a test."""
    events = "".join(f"        ({tick}, {as_python(event)}),\n" for tick, event in world.events)
    rest = f"slowness={world.slowness!r}, refuse_at={world.refuse_at!r}"
    return (
        f"World(\n    seed={world.seed},\n    config={as_python(world.config)},\n"
        f"    events=(\n{events}    ),\n    {rest},\n)"
    )


def state_of(simulation: Simulation) -> str:
    """Who runs and waits with which counters and blocks, and the plans in flight."""
    scheduler = simulation.engine.scheduler
    lines = [_row("running", sequence) for sequence in scheduler.running]
    lines += [_row("waiting", sequence) for sequence in scheduler.queue]
    lines += [_row("held", sequence) for sequence in scheduler.queue.following.values()]
    lines += [line for flight in scheduler.in_flight for line in _plan(flight)]
    lines.append(f"{scheduler.kv.pool.num_free} blocks free of {scheduler.kv.pool.num_blocks - 1}")
    return "\n".join(f"     {line}" for line in lines)


def _row(place: str, sequence: Sequence) -> str:
    counters = (
        f"known {len(sequence.tokens)}, computed {sequence.num_computed}, "
        f"planned {sequence.num_planned}, expected {sequence.num_expected}"
    )
    owned = f", slot {sequence.slot}, blocks {sequence.tables}" if sequence.tables else ""
    return f"{place} {sequence.request_id}: {counters}{owned}"


def _plan(flight: InFlight) -> list[str]:
    """One plan in flight; its last may be the one that was found to be wrong."""
    plan = flight.plan
    opened = ", ".join(f"{new.request_id} in slot {new.slot}" for new in plan.opened)
    told = f"freed {plan.freed}, opened ({opened}), copies {plan.copies}"
    lines = [f"plan {plan.step}: {told}, new blocks {plan.new_blocks}, drafts {plan.drafts}"]
    for index, sequence in enumerate(flight.sequences):
        owner = "nobody" if sequence is None else sequence.request_id
        end = plan.starts[index] + plan.counts[index]
        samples = ", samples" if plan.samples[index] else ""
        lines.append(f"  slot {plan.slots[index]}: {owner} {plan.starts[index]} to {end}{samples}")
    return lines
