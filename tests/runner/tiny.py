"""A small random model on the torch backend, and an engine around it that runs in the test."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import structs

from octavo.backends.base import ForwardResult, KVLayout, LogitsBackend, VectorSize
from octavo.backends.step import Draws, HostBatch, Pending, StepOutput
from octavo.backends.stored_rows import StoredRows
from octavo.backends.torch.footprint import kv_pages
from octavo.backends.torch.sampling.step_sampler import StepSampler
from octavo.core.config import CoreConfig, KVGroup
from octavo.core.engine import EngineCore
from octavo.core.plan import StepPlan
from octavo.core.request import Request, TokenEvent
from octavo.core.sampling_params import SamplingParams
from octavo.exec.inline import InlineExecutor
from octavo.layers import (
    Block,
    ExpertSpec,
    LatentSpec,
    Model,
    ModelSpec,
    Routing,
    standard_block,
)
from octavo.layers.rope import Rope, plain
from octavo.models.build import bind
from octavo.models.deepseek import DeepSeek
from octavo.models.kv_layout import place_layers
from octavo.models.lfm2 import Lfm2
from octavo.models.llama import Llama
from octavo.runner.kv_cache import groups_of
from octavo.runner.model_runner import ModelRunner, StepInFlight
from tests.runner.host_store import HostStore

if TYPE_CHECKING:
    from octavo.backends.torch.backend import TorchBackend

VOCABULARY = 61
FULL: tuple[int | None, ...] = (None, None)
Windows = tuple[int | None, ...]
Family = Callable[[ModelSpec], Model]


class RandomWeights:
    """Random weights that depend only on the seed and the name of the tensor."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._shapes: dict[str, tuple[int, ...]] = {}

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    def check(self, expected: Mapping[str, tuple[int, ...]], extra: Iterable[str]) -> None:
        self._shapes = dict(expected)

    def rows(self, name: str) -> StoredRows:
        generator = np.random.default_rng([self._seed, *name.encode()])
        shape = self._shapes[name]
        spread = 0.1 if len(shape) == 1 else 2.0 / np.sqrt(shape[-1])
        values = generator.standard_normal(shape) * spread + (len(shape) == 1)
        return StoredRows.of(values.reshape(-1, shape[-1]))

    def row_type(self, name: str) -> str:
        return "F32"

    def is_in_act_order(self, name: str) -> bool:
        return False

    def stored_types(self) -> Mapping[str, str]:
        return {}


def make_spec(windows: Windows) -> ModelSpec:
    """Make a specification with one layer for each window."""
    return ModelSpec(
        vocabulary=VOCABULARY,
        hidden=16,
        layers=len(windows),
        heads=2,
        kv_heads=1,
        head_dim=8,
        ffn=24,
        eps=1e-6,
        activation="silu",
        max_len=512,
        attention_scale=8**-0.5,
        ropes=(Rope(plain(8, 100.0)),) * len(windows),
        windows=windows,
    )


class Mixed(Llama):
    """A decoder whose layers keep keys and values of two shapes, in turn."""

    def block(self, layer: int) -> Block:
        wide = structs.replace(self.spec, kv_heads=2, head_dim=16)
        return standard_block(wide if layer % 2 else self.spec, layer)


def latent(spec: ModelSpec) -> DeepSeek:
    """Declare a decoder that keeps a latent row, and chooses experts in groups."""
    routing = Routing(2, "sigmoid", True, 1.5, groups=2, top_groups=1, group_best=2)
    experts = ExpertSpec(4, 8, routing, shared_ffn=8, shared_gate=False, correction=True)
    return DeepSeek(
        structs.replace(
            spec,
            kv_heads=1,
            head_dim=24,
            latent=LatentSpec(latent=16, queries=12, turning=8, still=8, value=8),
            experts=(None, *(experts,) * (spec.layers - 1)),
        )
    )


def convolving(spec: ModelSpec) -> Lfm2:
    """Declare a decoder that convolves in its first layer, and attends in the others."""
    first = (True, *(False,) * (spec.layers - 1))
    return Lfm2(structs.replace(spec, convolutions=first, kernel=3, qk_norm=True))


def make_model(windows: Windows, family: Family = Llama) -> tuple[Model, KVLayout]:
    """Return a bound model and its layout; both are stateless, so engines can share them."""
    return _made(windows, family)


@lru_cache(maxsize=64)
def _made(windows: Windows, family: Family) -> tuple[Model, KVLayout]:
    from octavo.backends.torch.backend import TorchBackend  # slow to import, and not always needed

    model = family(make_spec(windows))
    layout = place_layers(model)
    bind(model, TorchBackend(), RandomWeights())
    return model, layout


def make_backend(
    windows: Windows, num_blocks: int, block_size: int, family: Family = Llama
) -> TorchBackend:
    """Make a backend with an empty cache."""
    from octavo.backends.torch.backend import TorchBackend

    model, layout = make_model(windows, family)
    backend = TorchBackend()
    backend.prepare(model, layout, block_size)
    backend.make_cache(num_blocks)
    return backend


def make_groups(
    windows: Windows, block_size: int, family: Family = Llama, kv_dtype: str = "float32"
) -> tuple[KVGroup, ...]:
    """Return the groups of the model's layers in the core's terms."""
    layout = make_model(windows, family)[1]
    if kv_dtype == "torch fp8":
        return groups_of(layout, kv_pages(layout, block_size, "float32", has_short_kv=True))
    others = {"float32": (32, 0), "bfloat16": (16, 0), "int4": (4, 4)}
    vector, exact = VectorSize(*others.get(kv_dtype, (8, 4))), VectorSize(32)
    pages = layout.pages(block_size, lambda spec: exact if spec.kind == "state" else vector)
    return groups_of(layout, pages)


def make_config(windows: Windows = FULL, **settings: Any) -> CoreConfig:
    """Make a configuration with generous limits; `settings` override them."""
    usual: dict[str, Any] = {
        "num_blocks": 400,
        "max_model_len": 128,
        "block_size": 4,
        "max_num_batched_tokens": 512,
        "max_num_seqs": 32,
        "groups": make_groups(windows, settings.get("block_size", 4)),
    }
    return CoreConfig(**{**usual, **settings})


class Engine:
    """An engine core over the real runner."""

    def __init__(
        self,
        windows: Windows = FULL,
        *,
        proposer: Any = None,
        make: Callable[[Windows, int, int], LogitsBackend] = make_backend,
        store: HostStore | None = None,
        **settings: Any,
    ) -> None:
        self.config = make_config(windows, **settings)
        backend = make(windows, self.config.num_blocks, self.config.block_size)
        self.runner = ModelRunner(backend, VOCABULARY, self.config, proposer=proposer, store=store)
        self.plans: list[StepPlan] = []
        self.core = EngineCore(
            self.config, InlineExecutor(self), lambda: 0.0, b"key", index=store, check_interval=1
        )

    def submit(self, plan: StepPlan) -> StepInFlight:
        """Record the plan and start it."""
        self.plans.append(plan)
        return self.runner.submit(plan)

    def step(self) -> list[TokenEvent]:
        """Run one step of the core."""
        return self.core.step()

    def finish(self) -> list[TokenEvent]:
        """Run steps until no work is left, and return the events."""
        events: list[TokenEvent] = []
        while self.core.has_work:
            events.extend(self.core.step())
        return events

    def answer(self, *requests: Request) -> dict[str, list[TokenEvent]]:
        """Run these requests together and return the events of each."""
        for request in requests:
            self.core.on_event(request)
        answers: dict[str, list[TokenEvent]] = {request.request_id: [] for request in requests}
        for event in self.finish():
            answers[event.request_id].append(event)
        return answers


def make_request(name: str, prompt: Sequence[int], **fields: Any) -> Request:
    """Make a request; fields that Request lacks are its sampling parameters."""
    ours = {key: fields.pop(key) for key in _REQUEST_FIELDS if key in fields}
    if "emitted" in ours:
        ours["emitted"] = array("i", ours["emitted"])
    return Request(name, array("i", prompt), SamplingParams(**fields), 0.0, **ours)


_REQUEST_FIELDS = (
    *("emitted", "eos_token_ids", "parent_id", "cache_scope", "priority", "lora"),
    "sampler_state",
)


def tokens_of(events: Iterable[TokenEvent]) -> list[int]:
    """Return the tokens of these events."""
    return [token for event in events for token in event.tokens]


class StubBackend:
    """A backend that returns given logits and records its batches, with the tokens known.

    The hidden state of a row is its token and its position. A step is computed when it is
    collected, so that it is surely in flight until then.
    """

    can_continue = False

    def __init__(self, logits: Any) -> None:
        self.logits = logits  # called with a batch
        self.batches: list[HostBatch] = []
        self.submitted: list[HostBatch] = []
        self.sampler = StepSampler()
        self.saved: tuple[np.ndarray, ...] = ()  # by the next step

    def block_bytes(self, group: int) -> int:
        return 64

    def step(self, batch: HostBatch, draws: Draws) -> Pending:
        self.submitted.append(batch)
        return StubPending(partial(self._run, batch, draws))

    def _run(self, batch: HostBatch, draws: Draws) -> StepOutput:
        self.sampler.change(draws)
        if not len(batch.token_ids):
            saved, self.saved = self.saved, ()
            output = self.sampler.finish(draws, NOTHING.logits, NOTHING.hidden)
            return output._replace(saved=saved)
        batch = self.sampler.with_tokens(batch)
        self.batches.append(batch)
        return self.sampler.finish(draws, *self.forward(batch)[:2])

    def forward(self, batch: HostBatch) -> ForwardResult:
        places = (batch.token_ids[batch.hidden_rows], batch.positions[batch.hidden_rows])
        hidden = np.stack(places, 1).astype(np.float32)
        return ForwardResult(np.asarray(self.logits(batch), np.float32), hidden)


NOTHING = ForwardResult(np.zeros((0, 0), np.float32), np.zeros((0, 0), np.float32))


class StubPending:
    """A step that is computed when it is collected, or when a test lets it."""

    def __init__(self, run: Callable[[], StepOutput]) -> None:
        self._run = run
        self._output: StepOutput | None = None

    def done(self) -> bool:
        return self._output is not None

    def finish(self) -> None:
        """Compute the step now."""
        self._output = self._run()

    def collect(self) -> StepOutput:
        if self._output is None:
            self.finish()
        assert self._output is not None
        return self._output
