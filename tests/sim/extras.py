"""What only later worlds have: all kinds of KV groups, salts, encoders, holds, repetitions."""

from __future__ import annotations

import random
from dataclasses import replace

from octavo.core.config import CoreConfig, KVGroup
from octavo.core.kv.manager import KVManager
from octavo.core.request import EncoderInput
from octavo.core.sampling_params import SamplingParams
from octavo.core.stats import OUTSIDE
from octavo.core.stopping.repetition import RepetitionDetectionParams
from tests.sim.events import Arrival, Fault, Wait

MOST_ENCODED = 12  # positions of an encoder input


def encoded_positions(number: int) -> int:
    """Return the length of an encoder input, by its number."""
    return 1 + number * 5 % MOST_ENCODED


def encoder_input(number: int) -> EncoderInput:
    """Return an encoder input, by its number."""
    return EncoderInput(encoded_positions(number), b"input %d" % number)


def draw_repetition(rng: random.Random) -> RepetitionDetectionParams:
    """Return a repetition that the hashes of the toy model often have: few tokens, twice."""
    most = rng.choice((1, 2, 3, 8))
    return RepetitionDetectionParams(most, rng.randint(0, min(most, 2)), rng.choice((2, 2, 2, 3)))


def add_repetitions(
    rng: random.Random, events: list[tuple[int, Arrival | Fault]]
) -> list[tuple[int, Arrival | Fault]]:
    """Return the events with requests that a repetition ends, in some worlds."""
    rate = rng.choice((0.0, 0.0, 0.3, 0.9))
    return [
        (tick, replace(event, repetition=draw_repetition(rng)))
        if isinstance(event, Arrival) and rng.random() < rate
        else (tick, event)
        for tick, event in events
    ]


def draw_kinds(rng: random.Random, config: CoreConfig) -> CoreConfig:
    """Return the configuration with groups of any kinds and sizes, in most cases."""
    config = replace(config, hold_seconds=rng.choice((0.005, 0.02, 0.1)))
    choice = rng.random()
    if choice < 0.3:
        return config
    if choice < 0.35:
        return replace(
            config,
            groups=(KVGroup(kind="none"),),
            chunked_prefill=False,
            long_prefill_tokens=0,
            max_num_batched_tokens=max(config.max_num_batched_tokens, config.max_model_len),
        )
    sizes = rng.choice(((1,), (1, 2), (1, 3, 4), (2, 5), (1, 8)))
    groups = [_draw_group(rng, sizes) for _ in range(rng.choice((1, 2, 2, 3)))]
    if all(group.kind == "cross" for group in groups):
        groups.append(KVGroup(block_bytes=rng.choice(sizes)))
    rng.shuffle(groups)
    config = replace(config, groups=tuple(groups), num_blocks=100_000)
    needed = KVManager(replace(config, num_blocks=2), b"").peak_pages(
        config.max_model_len - 1, MOST_ENCODED
    )
    room = rng.choice((0, 0, 1, rng.randint(0, 12), rng.randint(0, 100)))
    return replace(config, num_blocks=1 + max(1, needed) + room)


def _draw_group(rng: random.Random, sizes: tuple[int, ...]) -> KVGroup:
    size, owner = rng.choice(sizes), rng.choice(("", "", "drafter"))
    kind = rng.choice(("full", "window", "latent", "state", "state", "cross"))
    if kind == "window":
        return KVGroup(rng.randint(1, 40), rng.choice(("full", "latent")), size, owner=owner)
    if kind == "state":
        every = rng.choice((1, 1, 2, 3, 8))
        return KVGroup(None, "state", size, every, owner)
    return KVGroup(None, kind, size, owner=owner)  # type: ignore[arg-type]


class Extras:
    """A generator of what requests have beside tokens and parameters."""

    def __init__(self, rng: random.Random, config: CoreConfig) -> None:
        self._rng = rng
        self._salt_rate = rng.choice((0.0, 0.0, 0.4))
        self._places = [rng.randint(0, config.max_model_len // 2) for _ in range(3)]
        self._hold_rate = rng.choice((0.0, 0.0, 0.3, 0.8))
        kinds = [group.kind for group in config.groups]
        self._encodes = "cross" in kinds
        self._has_states = "state" in kinds
        self._keeps_nothing = "none" in kinds
        self._encoders = [rng.randrange(100) for _ in range(rng.randint(1, 3))]

    def add_to(self, arrival: Arrival) -> Arrival:
        """Return the arrival with what this world gives its requests."""
        rng = self._rng
        is_salted = rng.random() < self._salt_rate
        places = sorted({rng.choice(self._places) for _ in range(rng.randint(1, 2))})
        salts = tuple((place, rng.choice((b"cat", b"dog"))) for place in places)
        holds: tuple[Wait, ...] = ()
        if rng.random() < self._hold_rate:
            reasons = rng.sample(OUTSIDE, rng.randint(1, len(OUTSIDE)))
            holds = tuple(Wait(reason, rng.randint(0, 12), self._end()) for reason in reasons)
        encoder = rng.choice(self._encoders)
        is_odd = rng.random() < 0.03
        most = 1 if self._keeps_nothing and not is_odd else arrival.max_tokens
        return replace(
            arrival,
            salts=salts if is_salted else (),
            holds=holds,
            encoder=encoder if self._encodes is not is_odd else None,
            # A state can be forked only where its parent has just stopped.
            keep=1000 if self._has_states and rng.random() < 0.5 else arrival.keep,
            max_tokens=most,
            min_tokens=min(arrival.min_tokens, most),
        )

    def _end(self) -> str:
        return self._rng.choice(("ready",) * 8 + ("error", "never"))


def sampler_state(state: int, sampling: SamplingParams, num_output: int) -> float | None:
    """Return what the sampler keeps behind a prefix with this hash, if it keeps anything."""
    return float(state) if sampling.has_state and num_output else None
