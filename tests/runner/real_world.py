"""The simulator's worlds over the real runner: a small random model instead of a hash.

The world, the core, the front end's journals and nearly all checks are the simulator's own. The
expected output of a request comes from one forward pass over that request alone, on a separate
backend, and from the slow sampler of reference.py. It is computed when the request ends: by then
the whole text is known and one pass verifies it.
"""

from __future__ import annotations

import random
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from octavo.backends.base import Backend, Floats, ForwardResult, LogitsBackend
from octavo.backends.step import NOT_FINITE, Draws, HostBatch, Pending, StepOutput
from octavo.core.config import CoreConfig, KVGroup
from octavo.core.plan import HiddenPayload, LogprobsPayload, NewSlot, StepPlan, StepResult
from octavo.core.pooling import POOLINGS
from octavo.core.request import FinishReason, Request, TokenEvent
from octavo.core.sampling_params import SamplingParams
from octavo.exec.inline import InlineExecutor
from octavo.runner.model_runner import ModelRunner
from octavo.runner.speculate.proposer import Proposal, Turn
from tests.runner import reference
from tests.runner.checked_batches import CheckedBatches, CheckedTwice
from tests.runner.draw_samplers import draw_samplers
from tests.runner.host_store import HostStore
from tests.runner.tiny import VOCABULARY, Windows, make_backend, make_groups
from tests.sim.events import Arrival
from tests.sim.executor import Faults, WorkerDiedError
from tests.sim.extras import draw_repetition
from tests.sim.journal import Journal
from tests.sim.kv.memory import require
from tests.sim.simulation import Simulation
from tests.sim.truth import repeats
from tests.sim.world import World

# Makes a backend from the windows, the number of blocks and the size of a block.
MakeBackend = Callable[[Windows, int, int], LogitsBackend]
# Makes the groups of its cache in the core's terms from the windows and the size of a block.
MakeGroups = Callable[[Windows, int], tuple[KVGroup, ...]]


class Truth:
    """The expected output of each request, found by running it alone; results are cached."""

    def __init__(
        self,
        windows: Windows,
        make: MakeBackend = make_backend,
        make_groups: MakeGroups = make_groups,
    ) -> None:
        self._backend = make(windows, 1 + 3 * 10, 16)
        per_page = CoreConfig(2, 2, groups=make_groups(windows, 16)).blocks_per_page
        pages = np.arange(1, 1 + 10 * len(per_page), dtype=np.int32).reshape(-1, 1, 10)
        # Each block is the first one of a page of its own.
        self._tables = tuple(pages * np.array(per_page, np.int32)[:, None, None])
        self._known: dict[tuple[Any, ...], tuple[list[int], FinishReason]] = {}

    def whole_output(
        self, request: Request, max_model_len: int, guess: list[int]
    ) -> tuple[list[int], FinishReason]:
        """Return the whole output and its finish reason; a right guess only makes this faster."""
        key = (request.prompt.tobytes(), request.sampling, request.eos_token_ids)
        if key not in self._known:
            self._known[key] = self._find(request, max_model_len, guess)
        return self._known[key]

    def confirm(self, request: Request, output: list[int], max_model_len: int) -> bool:
        """Return whether the request's expected output begins with `output`."""
        rows = self._forward([*request.prompt, *output])
        return all(
            self._next(request, rows, output[:index]) == token for index, token in enumerate(output)
        )

    def _find(
        self, request: Request, max_model_len: int, guess: list[int]
    ) -> tuple[list[int], FinishReason]:
        sampling = request.sampling
        if sampling.is_about_prompt:
            return [], "stop"
        most = min(sampling.max_tokens, max_model_len - len(request.prompt))
        output: list[int] = []
        rows = self._forward([*request.prompt, *guess])
        while True:
            if output != guess[: len(output)] or len(output) > len(guess):
                guess = list(output)
                rows = self._forward([*request.prompt, *output])
            token = self._next(request, rows, output)
            output.append(token)
            if token in _stop_ids(request) and len(output) >= sampling.min_tokens:
                return output, "stop"
            if len(output) >= most:
                return output, "length"
            if repeats(output, sampling):
                return output, "repetition"

    def likeliest(self, tokens: list[int]) -> int:
        """Return the model's most likely next token."""
        return int(self._forward(tokens)[-1].argmax())

    def _next(self, request: Request, rows: Floats, output: list[int]) -> int:
        sampling, prompt, stops = request.sampling, request.prompt, _stop_ids(request)
        first = len(prompt) - 1
        before = rows[first : first + len(output)].tolist() if sampling.has_state else ()
        mu = reference.state_behind(before, sampling, prompt, output, stops)
        row = rows[first + len(output)]
        return reference.sample(row.tolist(), sampling, prompt, output, stops, mu)

    def pool(self, request: Request) -> array[float]:
        """Return the pooled vector of the prompt's hidden states, or all of them."""
        pooling = request.sampling.pooling
        assert pooling is not None
        states = self._run(list(request.prompt)).hidden
        vectors: dict[str, Any] = {
            "mean": np.add.accumulate(states.astype(np.float64))[-1:] / len(states),
            "cls": states[:1],
            "last": states[-1:],
            "all": states,
        }
        return array("f", vectors[pooling.kind].astype(np.float32).tobytes())

    def _forward(self, tokens: list[int]) -> Floats:
        return self._run(tokens).logits.copy()

    def _run(self, tokens: list[int]) -> ForwardResult:
        count = len(tokens)
        rows = np.arange(count, dtype=np.int32)
        starts = np.array([0, count], np.int32)
        ids = np.array(tokens, np.int32)
        return self._backend.forward(HostBatch(ids, rows, starts, self._tables, rows, rows))


def _stop_ids(request: Request) -> list[int]:
    eos = () if request.sampling.ignore_eos else request.eos_token_ids
    return sorted({*request.sampling.stop_token_ids, *eos})


class PoisonedBackend:
    """A backend whose model gives NaN for the chunks that the world has poisoned.

    It also checks the use of arrays. Those of a step in flight must not change. Those of an output
    are valid until the next one is collected, and are overwritten then: a runner that keeps a part
    of them returns wrong results.
    """

    def __init__(self, backend: LogitsBackend) -> None:
        self._backend = backend
        self.poisoned: list[int] = []  # chunks of the next step
        self._forwards: deque[list[int]] = deque()  # poisoned chunks of the passes to come
        self._last: tuple[np.ndarray, ...] = ()
        self._gives_nan = type(backend).__name__ == "TorchBackend"
        if self._gives_nan:  # its steps run their passes by this method
            self._forward = backend.forward
            backend.forward = self._poisoned_forward  # type: ignore[method-assign]

    @property
    def can_continue(self) -> bool:
        return self._backend.can_continue

    def block_bytes(self, group: int) -> int:
        return self._backend.block_bytes(group)

    def step(self, batch: HostBatch, draws: Draws) -> Pending:
        self._forwards.append(self.poisoned)
        pending = self._backend.step(batch, draws)
        all_slots = batch.slots if batch.continues is None else draws.slots
        slots = frozenset(all_slots[self.poisoned].tolist())
        drawn = frozenset((*draws.slots.tolist(), *(part.slot for part in draws.prompts)))
        failing = frozenset() if self._gives_nan else slots & drawn
        return CheckedPending(self, pending, _arrays_of(batch, draws), failing)

    def _poisoned_forward(self, batch: HostBatch) -> ForwardResult:
        logits, hidden, _ = self._forward(batch)
        owners = np.searchsorted(batch.row_starts, batch.logits_rows, side="right") - 1
        logits[np.isin(owners, self._forwards.popleft())] = np.nan
        return ForwardResult(logits, hidden)

    def replace_last(self, output: StepOutput) -> None:
        """Replace what the arrays of the output before this one hold."""
        for values in self._last:
            if values.flags.writeable:
                values.fill(np.nan if values.dtype == np.float32 else -7)
        rows = (*output.logprobs, *output.prompts)
        described = [values for each in rows for values in (each.token_ids, each.logprobs)]
        self._last = (*described, *(vector for _, vector in output.pooled))


class CheckedPending:
    """A step in flight whose arrays must not change, and the failures that the world adds."""

    def __init__(
        self,
        backend: PoisonedBackend,
        pending: Pending,
        arrays: tuple[np.ndarray, ...],
        failing: frozenset[int],
    ) -> None:
        self._backend = backend
        self._pending = pending
        self._arrays = arrays
        self._before = [values.copy() for values in arrays]
        self._failing = failing

    def done(self) -> bool:
        return self._pending.done()

    def collect(self) -> StepOutput:
        output = self._pending.collect()
        for values, before in zip(self._arrays, self._before, strict=True):
            np.testing.assert_array_equal(values, before, "a step in flight was changed")
        self._backend.replace_last(output)
        failures = (*((slot, NOT_FINITE) for slot in self._failing), *output.failures)
        return output._replace(failures=failures)


def _arrays_of(batch: HostBatch, draws: Draws) -> tuple[np.ndarray, ...]:
    return (*batch[:3], *batch.tables, *batch[4:7], draws.slots, draws.first_rows, draws.drafts)


class Draft:
    """A proposer of the likeliest tokens, or of what followed the last token earlier."""

    most = 64

    def __init__(self, truth: Truth) -> None:
        self._truth = truth
        self._open: set[int] = set()

    def open(self, new: NewSlot) -> None:
        slot = new.slot
        require(slot not in self._open, f"the proposer's slot {slot} is opened while in use")
        self._open.add(slot)

    def free(self, slot: int) -> None:
        self._open.remove(slot)

    def forget(self) -> None:
        pass

    def propose(self, turns: Sequence[Turn]) -> list[Proposal]:
        require({turn.slot for turn in turns} <= self._open, "a turn of a slot that is not open")
        return [Proposal(self._drafts(tokens, most)) for _, tokens, most in turns]

    def _drafts(self, tokens: Any, most: int) -> tuple[int, ...]:
        if len(tokens) % 5 == 0:
            text: list[int] = tokens.tolist()
            for _ in range(min(most, 3)):
                text.append(self._truth.likeliest(text))
            return tuple(text[len(tokens) :])
        earlier = np.flatnonzero(tokens[:-1] == tokens[-1])
        if not len(earlier):
            return tuple(range(int(tokens[-1]) % (most + 1)))
        return tuple(tokens[earlier[-1] + 1 :][:most].tolist())


class RealExecutor(InlineExecutor):
    """The inline executor with the delays and failures of a simulated world."""

    def __init__(
        self,
        windows: Windows,
        truth: Truth,
        config: CoreConfig,
        is_slow: Callable[[], bool],
        faults: Faults,
        check_plan: Callable[[StepPlan], None],
        make: MakeBackend = make_backend,
        store: HostStore | None = None,
    ) -> None:
        self._backend = PoisonedBackend(make(windows, config.num_blocks, config.block_size))
        poisoned = cast(Backend, self._backend)
        self._model = ModelRunner(poisoned, VOCABULARY, config, proposer=Draft(truth), store=store)
        state = self._model.state
        self._model._batches = (
            CheckedBatches(state, can_continue=True)
            if self._backend.can_continue
            else CheckedTwice(state)
        )
        super().__init__(self._model)
        self._is_slow = is_slow
        self._faults = faults
        self._check_plan = check_plan
        self._names: dict[int, str] = {}

    @property
    def workers(self) -> tuple[Any, ...]:
        """The open slots, which the simulation checks at the end."""
        names = {s: n for s, n in enumerate(self._model.state.request_ids) if n is not None}
        return (type("Worker", (), {"slots": names}),)

    def submit(self, plan: StepPlan) -> None:
        if self._faults.die_at_submit:
            raise WorkerDiedError
        self._check_plan(plan)
        self._names.update((new.slot, new.request_id) for new in plan.opened)
        poisoned = self._faults.poisoned
        named = [self._names[slot] for slot in plan.slots]
        self._backend.poisoned = [i for i, name in enumerate(named) if name in poisoned]
        super().submit(plan)

    def collect(self, wait: bool) -> StepResult | None:
        if self._faults.die_at_collect:
            raise WorkerDiedError
        if not wait and self._is_slow():
            return None
        return super().collect(wait=True)  # when a thread is done must not change the world

    def reset(self) -> None:
        """Keep the model: making it again would take time and change no result."""

    def distrust(self, request_id: str) -> list[tuple[int, int]]:
        """Return no block to avoid: only logits were poisoned, not the KV cache."""
        return []


class RealSimulation(Simulation):
    """The simulation of a world with the real runner."""

    def __init__(
        self,
        world: World,
        make: MakeBackend = make_backend,
        make_groups: MakeGroups = make_groups,
    ) -> None:
        self._make_backend = make
        windows = tuple(group.window for group in world.config.groups)
        self.windows: Windows = (None, None) if windows == (None,) else windows
        if len(self.windows) == 1:
            self.windows = self.windows * 2
        groups = make_groups(self.windows, world.config.block_size)
        self.truth = Truth(self.windows, make, make_groups)
        self.num_verified = 0
        self.pooled: set[str] = set()  # requests whose vector has been returned
        events = tuple(
            (tick, replace(event, lora=None) if isinstance(event, Arrival) else event)
            for tick, event in world.events
        )
        num_tokens = (0, 3, 11)[world.seed % 3] if world.config.chunked_prefill else 0
        config = replace(world.config, groups=groups, prompt_logprob_tokens=num_tokens)
        if any(group.kind == "state" for group in groups):  # the runner cannot take states back
            config = replace(config, max_drafts=0)
        super().__init__(replace(world, config=config, events=events))

    def _make_executor(self) -> Any:
        return RealExecutor(
            self.windows,
            self.truth,
            self.config,
            self._is_slow,
            self.faults,
            self._check_plan,
            self._make_backend,
            self.host_store if self.world.store != "none" else None,
        )

    def _make_store(self) -> Any:
        """Return a store in memory, which outlives the engines."""
        self.host_store = HostStore(self.world.seed, self.world.store)
        return self.host_store

    def _expect(self, request: Request) -> tuple[list[int], FinishReason]:
        """Return as many placeholders as the output may have: it is not known yet."""
        most = min(request.sampling.max_tokens, self.config.max_model_len)
        return [-1] * most, "length"

    def _sampling(self, arrival: Arrival) -> SamplingParams:
        """Draw parameters, any feature among them, from the world's seed and the request's name."""
        rng = random.Random(f"{self.world.seed} {arrival.name}")

        def sometimes(chance: float, value: Any, otherwise: Any) -> Any:
            return value if rng.random() < chance else otherwise

        ids = [rng.randrange(VOCABULARY) for _ in range(6)]
        sampling = replace(
            super()._sampling(arrival),
            seed=rng.randrange(2**40),
            temperature=sometimes(0.4, 0.0, rng.choice((0.5, 1.0, 1.5))),
            top_p=sometimes(0.2, 0.8, 1.0),
            top_k=sometimes(0.2, rng.randint(1, 30), 0),
            min_p=sometimes(0.1, 0.05, 0.0),
            presence_penalty=sometimes(0.15, rng.uniform(-2, 2), 0.0),
            frequency_penalty=sometimes(0.15, rng.uniform(-2, 2), 0.0),
            repetition_penalty=sometimes(0.15, rng.uniform(0.5, 2), 1.0),
            logit_bias=sometimes(0.15, {ids[0]: 5.0, ids[1]: -100.0}, ()),
            bad_words_token_ids=sometimes(0.1, (ids[2:3], ids[3:5]), ()),
            allowed_token_ids=sometimes(0.05, range(5, 55), None),
            logprobs=sometimes(0.15, rng.choice((0, 3, -1)), None),
            prompt_logprobs=sometimes(0.1, 2, None),
        )
        apart = random.Random(f"{self.world.seed} {arrival.name} repetition")
        if apart.random() < 0.3:
            sampling = replace(sampling, repetition_detection=draw_repetition(apart))
        apart = random.Random(f"{self.world.seed} {arrival.name} samplers")
        if apart.random() < 0.3:
            sampling = replace(sampling, sampler_options=draw_samplers(apart))
        if (sampling.logprobs, sampling.prompt_logprobs) != (None, None):
            return sampling
        pooling = sometimes(0.2, rng.choice(POOLINGS), None)
        if pooling is not None and rng.random() < 0.5:
            return replace(sampling, pooling=pooling, max_tokens=0, min_tokens=0)
        return replace(sampling, pooling=pooling)

    def _receive(self, event: TokenEvent) -> None:
        """Record the event; when it ends the request, check all of the request's tokens."""
        journal = self.journals[event.request_id]
        request = journal.request
        output = [*journal.output, *event.tokens]
        if event.finish_reason in ("stop", "length", "repetition"):
            most = self.config.max_model_len
            journal.expected, reason = self.truth.whole_output(request, most, output)
            journal.expected_reason = reason
            self.num_verified += 1
        else:
            journal.expected = [*output, -1]  # any token, since more will follow
            if event.finish_reason in ("abort", "error") and output:
                right = self.truth.confirm(request, output, self.config.max_model_len)
                require(right, f"{event.request_id}: wrong tokens before its {event.finish_reason}")
        super()._receive(event)

    def _check_payload(self, journal: Journal, event: TokenEvent) -> None:
        sampling = journal.request.sampling
        payload = event.payload
        require(
            (sampling.logprobs is not None) <= (payload is not None) or not event.tokens,
            f"{event.request_id}: tokens without their log-probabilities",
        )
        if sampling.pooling is not None and (event.tokens or event.finish_reason == "stop"):
            has_vector = payload is not None or journal.request.request_id in self.pooled
            require(has_vector, f"{event.request_id}: tokens before the prompt's vector")
        if payload is None:
            return
        if isinstance(payload, HiddenPayload):
            self.pooled.add(event.request_id)
            right = self.truth.pool(journal.request)
            if sampling.pooling is not None and sampling.pooling.kind == "all":  # a chunk's
                width = len(payload.values) // payload.num_vectors
                right = right[payload.start * width :][: len(payload.values)]
            require(payload.values == right, f"{event.request_id}: a wrong vector")
            return
        assert isinstance(payload, LogprobsPayload), f"{event.request_id}: {payload}"
        described = [entry.token_ids[0] for entry in payload.sampled][: len(event.tokens)]
        wanted = list(event.tokens) if sampling.logprobs is not None else []
        message = f"{event.request_id}: log-probabilities of {described}, not of {wanted}"
        require(described == wanted, message)
        start = payload.prompt_start
        expected = list(journal.request.prompt)[start : start + len(payload.prompt)]
        described = [entry.token_ids[0] for entry in payload.prompt]
        message = f"{event.request_id}: prompt from {start}: {described}, not {expected}"
        require(described == expected, message)
