"""A real AsyncLLM and core over a runner that needs no model: the next token is a
function of all that came before it.
"""

from __future__ import annotations

import json
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from dataclasses import replace as replaced
from hashlib import blake2b
from pathlib import Path

from msgspec.structs import replace

from octavo.adapter_copies.copies import AdapterCopies
from octavo.adapter_copies.files import SETTINGS
from octavo.api.async_llm import AsyncLLM
from octavo.api.control import CommandFailedError
from octavo.client.inline import InlineClient
from octavo.client.vitals import EngineVitals
from octavo.core.config import CoreConfig
from octavo.core.engine import EngineCore
from octavo.core.plan import (
    NO_TOKEN,
    HiddenPayload,
    LogprobsPayload,
    NewSlot,
    StepPlan,
    StepResult,
    TokenLogprobs,
)
from octavo.core.pooling import Pooling
from octavo.core.sampling_params import SamplingParams
from octavo.core.snapshot import EngineSnapshot, take_snapshot
from octavo.engine.tensor_files import UNFIT
from octavo.exec.inline import InlineExecutor
from octavo.model_facts import GenerationDefaults, PoolingFacts
from octavo.options.engine import EngineArguments
from octavo.text.token_table import unpack
from octavo.text.tokenizer import Tokenizer
from octavo.wire.facts import EngineFacts
from tests.api.tiny import make_tokenizer_files
from tests.exec.at_once import AtOnce

VOCABULARY = 300
END = 1
WIDTH = 8  # of embeddings
CLASSES = 3
FACTS = EngineFacts(
    name="tiny",
    architecture="chain",
    directory="",
    weights=(),
    vocabulary=VOCABULARY,
    max_model_len=256,
    longest_tokens=256,
    block_size=4,
    num_blocks=512,
    max_num_seqs=8,
    max_num_waiting=10_000,
    max_waiting_tokens=100_000_000,
    dtype="none",
    instruction_set="abacus",
    accumulation_order="fma",
    pooling=PoolingFacts(width=WIDTH),
    num_parameters=134_515_008,
    weight_type="BF16",
)


@dataclass
class Slot:
    """The runner's state of one sequence."""

    new: NewSlot
    tokens: array[int]
    state: int  # the hash of them all
    sampler_state: float | None  # which changes with each token, where the sampler has one


class ChainRunner:
    """A runner whose next token is a hash of the whole prefix, with log-probabilities if wanted."""

    def __init__(
        self, before_step: Callable[[], object] = lambda: None, script: Sequence[int] = ()
    ) -> None:
        self.script = script  # the tokens of every answer, instead of hashes
        self.slots: dict[int, Slot] = {}
        self.before_step = before_step
        self.poisoned: set[str] = set()  # requests whose next step fails

    def run(self, plan: StepPlan) -> StepResult:
        """Compute one step of the plan."""
        self.before_step()
        for number in plan.freed:
            del self.slots[number]
        for new in plan.opened:
            state = first_state(new)
            for token in new.tokens:
                state = extended(state, token)
            first = new.sampler_state or (0.0 if new.sampling.has_state else None)
            self.slots[new.slot] = Slot(new, new.tokens[:], state, first)
        tokens, payloads, errors, states = [], [], [], []
        chunks = zip(plan.slots, plan.starts, plan.counts, plan.samples, strict=True)
        for number, start, count, samples in chunks:
            slot = self.slots[number]
            if any(slot.new.request_id.startswith(name) for name in self.poisoned):
                tokens.append(NO_TOKEN)
                errors.append((number, "SECRET internals of a worker"))
                continue
            is_drawn = samples and not slot.new.sampling.is_about_prompt
            token = self._next(slot) if is_drawn else NO_TOKEN
            payload = self._payload(slot, start, count, token)
            if payload is not None:
                payloads.append((number, payload))
            if is_drawn:
                slot.tokens.append(token)
                slot.state = extended(slot.state, token)
                if slot.sampler_state is not None:
                    slot.sampler_state += 0.5
                    states.append((number, slot.sampler_state))
            tokens.append(token)
        return StepResult(
            plan.step,
            tuple(tokens),
            payloads=tuple(payloads),
            errors=tuple(errors),
            states=tuple(states),
        )

    def _next(self, slot: Slot) -> int:
        if self.script:
            return self.script[(len(slot.tokens) - slot.new.num_prompt) % len(self.script)]
        state = slot.state
        if slot.sampler_state is not None:
            state = extended(state, int(2 * slot.sampler_state))
        return chosen(state, slot.new.sampling)

    def _payload(
        self, slot: Slot, start: int, count: int, token: int
    ) -> LogprobsPayload | HiddenPayload | None:
        sampling = slot.new.sampling
        if sampling.pooling is not None:
            return vectors_of(slot.new, sampling.pooling, start, start + count)
        sampled: tuple[TokenLogprobs, ...] = ()
        prompt: list[TokenLogprobs] = []
        first = max(1, start)
        if sampling.logprobs is not None and token != NO_TOKEN:
            sampled = (
                logprobs_of(slot.state, token, sampling.logprobs, sampling.logprob_token_ids),
            )
        if sampling.prompt_logprobs is not None:
            state = first_state(slot.new)
            for position, here in enumerate(slot.new.tokens[: slot.new.num_prompt]):
                if first <= position <= start + count:
                    prompt.append(logprobs_of(state, here, sampling.prompt_logprobs))
                state = extended(state, here)
        if not (sampled or prompt):
            return None
        return LogprobsPayload(sampled, first, tuple(prompt))


def vectors_of(new: NewSlot, pooling: Pooling, start: int, end: int) -> HiddenPayload | None:
    """Return the vectors of positions, or the only one of a prompt that is complete."""
    width = CLASSES if pooling.head == "classify" else WIDTH
    prompt = new.tokens[: new.num_prompt]
    if pooling.kind == "all":
        values = array("f")
        for position in range(start, end):
            values.extend(vector_of(prompt[: position + 1], width))
        return HiddenPayload(values, end - start, start)
    if end < new.num_prompt:
        return None
    read = [*prompt, pooling.second_from]
    return HiddenPayload(vector_of(read, width, first_state(new)))


def vector_of(tokens: Sequence[int], width: int = WIDTH, state: int = 0) -> array[float]:
    """Return an invented vector, the same for the same tokens."""
    for token in tokens:
        state = extended(state, token)
    return array("f", [extended(state, place) % 2001 / 1000 - 1 for place in range(width)])


def first_state(new: NewSlot) -> int:
    """Return the hash of no tokens, which depends on the adapter."""
    return 0 if new.lora is None else int(blake2b(new.lora.encode()).hexdigest()[:12], 16)


def extended(state: int, token: int) -> int:
    """Extend the hash by one token."""
    return (state * 1_000_003 + token + 17) % 2**61


def chosen(state: int, sampling: SamplingParams) -> int:
    """Return the next token: never a special one, so that a text ends by its length."""
    if sampling.temperature:
        state = extended(state, (sampling.seed or 0) % 1_000_000_007)
    if sampling.allowed_token_ids:
        return sampling.allowed_token_ids[state % len(sampling.allowed_token_ids)]
    return 2 + state % (VOCABULARY - 2)


def logprobs_of(before: int, token: int, most: int, named: Sequence[int] = ()) -> TokenLogprobs:
    """Return invented log-probabilities in order: the likeliest token is the greedy choice.

    Those of the tokens that are named come instead of the likeliest.
    """
    most = VOCABULARY if most == -1 else most
    best = 2 + before % (VOCABULARY - 2)
    likeliest = [(best + offset) % VOCABULARY for offset in range(most)]
    if named:
        likeliest = list(named)
    values = [-0.5 - (each - best) % VOCABULARY for each in likeliest]
    rank = (token - best) % VOCABULARY + 1
    ids, logprobs = [token, *likeliest], [0.5 - rank, *values]
    return TokenLogprobs(array("i", ids), array("f", logprobs), rank)


class FakeEngine(AsyncLLM):
    """An AsyncLLM over a real core whose model is a `ChainRunner`."""

    def __init__(
        self,
        directory: Path,
        *,
        max_model_len: int = 256,
        max_num_seqs: int = 8,
        num_blocks: int = 512,
        max_num_batched_tokens: int = 128,
        max_new_tokens: int | None = None,
        longest_tokens: int | None = None,
        runner: ChainRunner | None = None,
        is_ready: bool = True,
        max_logprobs: int = 20,
        pooling: PoolingFacts | None = None,
        max_loras: int = 0,
    ) -> None:
        self.loaded: list[str] = []  # digests of adapters that the engine has been given
        self.refusal = ""  # the code with which it refuses the next adapters
        self.runner = runner or ChainRunner()
        self.is_ready = is_ready
        config = CoreConfig(
            num_blocks=num_blocks,
            max_model_len=max_model_len,
            block_size=4,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_loras=max_loras,
        )
        executor = InlineExecutor(AtOnce(self.runner.run))
        self.core = EngineCore(config, executor, time.monotonic, b"k" * 32)
        facts = replace(
            FACTS,
            directory=str(directory),
            weights=(str(directory / "none.safetensors"),),
            max_model_len=max_model_len,
            longest_tokens=longest_tokens or max_model_len,
            num_blocks=num_blocks,
            max_num_seqs=max_num_seqs,
            generation=GenerationDefaults(max_new_tokens=max_new_tokens),
            pooling=pooling or PoolingFacts(width=WIDTH),
            fair_share=config.fair_share,
        )
        arguments = EngineArguments(model="tiny", max_logprobs=max_logprobs)
        copies = None
        if max_loras:
            arguments = replaced(arguments, enable_lora=True, max_loras=max_loras)
            copies = AdapterCopies(1 << 20, 1 << 18, directory / "copies")
        self._settle(InlineClient(self.core, facts), arguments, (), copies=copies)
        tokenizer = self.model.tokenizer
        assert isinstance(tokenizer, Tokenizer)
        self.splitter = tokenizer  # a server has none, so that only its prompt workers split texts
        self.model.tokenizer = unpack(tokenizer.pack())

    async def load_adapter(self, digest: str, place: Path) -> bool:
        """Refuse an adapter whose settings say that it does not fit, as an engine would."""
        if "unfit" in json.loads((place / SETTINGS).read_text()):
            raise CommandFailedError(UNFIT, "tensor 'lora_A': it does not fit")
        if self.refusal:
            raise CommandFailedError(self.refusal, "not as things are")
        self.loaded.append(digest)
        return self.is_ready

    async def unload_adapter(self, digest: str) -> None:
        """Forget an adapter that was loaded."""
        if digest in self.loaded:
            self.loaded.remove(digest)

    @property
    def vitals(self) -> EngineVitals:
        """The counts and times of the engine's life."""
        return self.engines[0].vitals

    def is_well(self) -> bool:
        """Return what the test has set."""
        return self.is_ready

    def snapshot(self) -> EngineSnapshot:
        """Return the core's statistics of this moment."""
        return take_snapshot(self.core, time.monotonic())


def make_directory(directory: Path) -> Path:
    """Write a model directory without weights, which this engine does not need."""
    return make_tokenizer_files(directory)
