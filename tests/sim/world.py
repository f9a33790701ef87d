"""A world: one configuration and all events in it, drawn from a seed.

A seed first draws which features are on and how extreme they are, then the events ("swarm
testing": a world with few features tests each of them more deeply). A world is plain data, so it
can be shrunk by leaving events out, and run again.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from octavo.core.config import CoreConfig, KVGroup
from octavo.core.kv.manager import KVManager
from octavo.core.request import Request
from tests.sim.costs import Costs, as_long_prompt, as_stream, draw_costs
from tests.sim.drafts.predicted import with_prediction
from tests.sim.events import Arrival, Fault
from tests.sim.extras import Extras, add_repetitions, draw_kinds
from tests.sim.shares.owners import draw_owners
from tests.sim.truth import VOCABULARY

# The kinds of Fault, and the meaning of their arguments.
KINDS = {
    "abort": "argument: the name of a request in any state, or an unknown name",
    "pause": "until a resume",
    "resume": "",
    "reset": "the prefix cache is reset",
    "die": "argument: 'submit', 'collect' or 'between'; the engine dies there and is restarted",
    "refuse": "number: so many of the next allocations fail",
    "nan": "argument: the request whose logits are not finite from now on",
    "jump": "number: seconds by which the clock jumps, forward or back",
    "abort all": "all requests are aborted, with work in flight, as in a shutdown",
}


@dataclass(frozen=True)
class World:
    """A configuration, and its events by tick."""

    seed: int
    config: CoreConfig
    events: tuple[tuple[int, Arrival | Fault], ...]
    slowness: float  # the chance that a result has not arrived yet when it is collected
    refuse_at: int | None = None  # the number of one allocation that fails, counted from 1
    store: str = "none"  # another place for KV: a "good" one, or a slow one that lies
    forces: bool = False  # a grammar often knows what follows a drawn token
    has_drafter: bool = False  # a second model over the same slots proposes tokens
    costs: Costs | None = None  # what steps take; None: the world decides when results arrive
    predicts: bool = False  # requests have predictions of what they will answer

    def predicting(self, request: Request, expected: Sequence[int]) -> Request:
        """Return a request with the prediction that this world gives it."""
        return with_prediction(self.seed, request, expected) if self.predicts else request


# The first worlds have nothing but full and windowed groups of equal sizes, and no salts or holds:
# their golden traces are the oldest.
NUM_PLAIN = 50
# Nor do the first have grammars, so that traces and totals of the others stay as they were.
FIRST_FORCED = 200
# Nor do steps take a time that depends on their work; later it does in every fifth world.
FIRST_TIMED = 600
# … or several owners of requests.
FIRST_SHARED = 200
# … or requests that end where their text repeats itself.
FIRST_REPEATING = 400


def draw_world(seed: int, is_plain: bool = False) -> World:
    """Return the world of a seed; a plain one has what every real model has."""
    is_plain = is_plain or seed < NUM_PLAIN
    rng = random.Random(seed)
    config = _draw_config(rng)
    if seed % 4 == 1 and all(group.window for group in config.groups):
        config = _tighten(config)
    extra = random.Random(f"{seed} extras")  # so that the other draws are as they always were
    if not is_plain:
        config = draw_kinds(extra, config)
    costs = None
    if seed >= FIRST_TIMED and seed % 5 == 3:
        config, costs = draw_costs(random.Random(f"{seed} costs"), config)
    maker = _Arrivals(rng, config, None if is_plain else extra)
    num_ticks = rng.choice((10, 25, 50))
    events: list[tuple[int, Arrival | Fault]] = [
        (tick, maker.draw()) for tick in _draw_ticks(rng, num_ticks)
    ]
    if costs is not None and config.chunked_prefill:
        events.extend(
            (extra.randrange(5), as_stream(extra, maker.draw())) for _ in range(extra.randint(1, 5))
        )
        events.extend(
            (extra.randrange(120), as_long_prompt(extra, maker.draw(), config.max_model_len))
            for _ in range(extra.randint(3, 12))
        )
    if rng.random() < 0.6:
        events.extend(_draw_faults(rng, num_ticks, maker))
    events.sort(key=lambda event: event[0])
    slowness = rng.choice((0.0, 0.0, 0.3, 0.8))
    store = "none" if is_plain else extra.choice(("none", "good", "bad", "bad"))
    if seed >= FIRST_SHARED and seed % 3 == 0:
        store = "none"  # shares are owed in worlds in which nothing is loaded
    if store != "none":  # a new engine has nothing of its own
        ticks = (num_ticks // 3, num_ticks // 2, extra.randrange(num_ticks))
        events.extend((tick, Fault("die", "between")) for tick in ticks)
        events.sort(key=lambda event: event[0])
    if seed >= FIRST_SHARED:
        config, events = draw_owners(random.Random(f"{seed} owners"), config, events)
    forces = seed >= FIRST_FORCED and random.Random(f"{seed} forced").random() < 0.4
    if seed >= FIRST_REPEATING:
        events = add_repetitions(random.Random(f"{seed} repetitions"), events)
    kept = tuple(events)
    return World(seed, config, kept, slowness, store=store, forces=forces, costs=costs)


def _log_uniform(rng: random.Random, low: int, high: int) -> int:
    return int(low * (high / low) ** rng.random() + 0.5)


def _draw_config(rng: random.Random) -> CoreConfig:
    block_size = rng.choice((1, 2, 3, 4, 4, 5, 8, 16, 32))
    groups = _draw_groups(rng)
    # In a crowded world many sequences grow at once, and blocks are scarce.
    crowded = rng.random() < 0.4
    blocks = (rng.randint(4, 12), rng.randint(12, 60), rng.randint(60, 400))
    num_blocks = rng.choice(blocks[:2] if crowded else blocks)
    most = (num_blocks - 1) // len(groups) * block_size  # the longest sequence that fits alone
    lengths = (24, 60, 150, most * 2, most, most // 2, most // 3, most // 5)
    max_model_len = max(4, min(rng.choice(lengths[4:] if crowded else lengths), 150))
    chunked = rng.random() < 0.85
    budget = _log_uniform(rng, 16 if crowded else 1, 512)
    return CoreConfig(
        num_blocks=num_blocks,
        max_model_len=max_model_len,
        block_size=block_size,
        groups=groups,
        max_num_batched_tokens=budget if chunked else max(budget, max_model_len // 2),
        max_num_seqs=_log_uniform(rng, 6 if crowded else 1, 64),
        pipeline_depth=rng.choice((1, 1, 2, 2, 3)),
        prefix_caching=rng.random() < 0.75,
        chunked_prefill=chunked,
        long_prefill_tokens=rng.randint(1, 16) if chunked and rng.random() < 0.2 else 0,
        max_drafts=rng.randint(1, 5) if rng.random() < 0.3 else 0,
        policy="priority" if rng.random() < 0.35 else "fcfs",
        ageing_seconds=rng.choice((0.0, 0.02, 0.5)),
        max_num_waiting=rng.randint(1, 6) if rng.random() < 0.1 else 1000,
        max_waiting_tokens=rng.randint(20, 200) if rng.random() < 0.05 else 100_000,
        max_loras=rng.choice((0, 0, 0, 1, 2)),
        watermark=0.0 if crowded else rng.choice((0.0, 0.01, 0.2)),
    )


def _tighten(config: CoreConfig) -> CoreConfig:
    """Return the config with a pool just as large as its longest, windowed sequence needs."""
    budget = min(config.max_num_batched_tokens, 12) if config.chunked_prefill else 150
    config = replace(config, max_model_len=150, max_num_batched_tokens=budget, num_blocks=1000)
    return replace(config, num_blocks=KVManager(config, b"").peak_pages(149) + 1)


def _draw_groups(rng: random.Random) -> tuple[KVGroup, ...]:
    kind = rng.random()
    if kind < 0.65:
        return (KVGroup(),)
    window = KVGroup(_log_uniform(rng, 1, 60))
    if kind < 0.75:
        return (window,)
    if kind < 0.95:
        return (KVGroup(), window)
    return (window, KVGroup(), KVGroup(rng.randint(1, 20)))


def _draw_ticks(rng: random.Random, num_ticks: int) -> list[int]:
    """Return the ticks of arrivals: spread evenly, or in bursts."""
    count = _log_uniform(rng, 3, 40)
    if rng.random() < 0.5:
        return sorted(rng.randrange(num_ticks) for _ in range(count))
    bursts = [rng.randrange(num_ticks) for _ in range(rng.randint(1, 3))]
    return sorted(rng.choice(bursts) for _ in range(count))


class _Arrivals:
    """A generator of requests that share prefixes as real ones do."""

    def __init__(self, rng: random.Random, config: CoreConfig, extra: random.Random | None) -> None:
        self.rng = rng
        self.config = config
        self.extras = None if extra is None else Extras(extra, config)
        self.names: list[str] = []
        self.past: list[tuple[int, ...]] = []
        longest = config.max_model_len
        self.longest_prompt = most = max(1, longest // rng.choice((1, 1, 4)))
        self.families = [self._tokens(rng.randint(1, most)) for _ in range(rng.randint(1, 3))]
        self.longest_output = max(1, min(_log_uniform(rng, 1, 60), longest))
        self.fork_rate = rng.choice((0.0, 0.0, 0.25, 0.6))
        self.stop_rate = rng.choice((0.0, 0.3, 0.8))
        self.scopes = rng.choice((("",), ("",), ("", "a", "b")))
        self.loras = (None,) if not config.max_loras else (None, "x", "y", "z")
        self.odd_rate = rng.choice((0.0, 0.1))

    def _tokens(self, count: int) -> tuple[int, ...]:
        return tuple(self.rng.randrange(VOCABULARY) for _ in range(count))

    def draw(self, again: str | None = None) -> Arrival:
        """Return one more request; with `again`, one with the prompt of that request."""
        rng = self.rng
        name = f"r{len(self.names)}"
        parent = rng.choice(self.names) if self.names and rng.random() < self.fork_rate else None
        prompt = self._prompt()
        if again is not None:
            parent, prompt = None, self.past[self.names.index(again)]
        self.names.append(name)
        self.past.append(prompt)
        max_tokens = rng.randint(1, self.longest_output)
        stops = rng.random() < self.stop_rate
        arrival = Arrival(
            name=name,
            prompt=self._tokens(rng.randint(0, 2)) if parent else prompt,
            max_tokens=max_tokens,
            min_tokens=rng.randint(0, max_tokens) if rng.random() < 0.2 else 0,
            stop_token_ids=self._tokens(rng.randint(0, 12)) if stops else (),
            eos_token_ids=self._tokens(rng.randint(0, 4)) if stops else (),
            ignore_eos=rng.random() < 0.2,
            priority=rng.randint(-2, 2),
            lora=rng.choice(self.loras) if rng.random() > self.odd_rate / 5 else "x",
            scope=rng.choice(self.scopes),
            parent=parent,
            keep=rng.choice((0, 0, rng.randint(0, self.longest_output))),
            inherits=rng.random() < 0.8,
        )
        return arrival if self.extras is None else self.extras.add_to(arrival)

    def _prompt(self) -> tuple[int, ...]:
        rng, size, longest = self.rng, self.config.block_size, self.longest_prompt
        if rng.random() < self.odd_rate:
            most = self.config.max_model_len
            return self._tokens(rng.choice((0, most, 3 * most, most - 1)))
        family = rng.choice(self.families)
        match rng.randrange(6):
            case 0:
                return self._tokens(rng.randint(1, longest))
            case 1:  # around a block border
                blocks = rng.randint(1, max(1, longest // size))
                return self._tokens(max(1, blocks * size + rng.choice((-1, 0, 1))))
            case 2:
                return self._tokens(1)
            case 3 if self.past:
                return rng.choice(self.past) or (1,)
            case 4:  # a family's prefix up to around a block border
                cut = rng.randint(0, len(family) // size) * size + rng.choice((-1, 0, 1))
                return family[: max(1, cut)]
            case _:
                head = family[: rng.randint(1, len(family))]
                return head + self._tokens(rng.randint(0, max(1, longest // 4)))


def _draw_faults(
    rng: random.Random, num_ticks: int, maker: _Arrivals
) -> list[tuple[int, Arrival | Fault]]:
    """Return faults: a few kinds, a few times each."""
    events: list[tuple[int, Arrival | Fault]] = []
    names = list(maker.names)

    def add(event: Arrival | Fault) -> int:
        tick = rng.randrange(num_ticks + 10)
        events.append((tick, event))
        return tick

    for kind in rng.sample(list(KINDS), rng.randint(1, 3)):
        for _ in range(rng.randint(1, 4)):
            match kind:
                case "abort":
                    add(Fault(kind, rng.choice([*names, "nobody"])))
                case "nan":
                    name = rng.choice(names)
                    tick = add(Fault(kind, name))
                    # Requests with the same prompt follow soon: they must not hit the wrong KV.
                    ticks = range(tick + 1, tick + 1 + rng.randint(0, 3))
                    events.extend((later, maker.draw(again=name)) for later in ticks)
                case "pause":
                    add(Fault("pause"))
                    add(Fault("resume"))
                case "die":
                    add(Fault("die", rng.choice(("submit", "collect", "between"))))
                case "refuse":
                    add(Fault("refuse", number=rng.choice((1, 1, 2, 5, 20))))
                case "jump":
                    add(Fault("jump", number=rng.choice((-3600.0, 3600.0, -0.01, 0.05))))
                case _:
                    add(Fault(kind))
    return events
