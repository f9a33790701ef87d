"""A small model on a backend with adapters, and steps of sequences that have one each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from octavo.backends.adapter_weights import AdapterSettings, AdapterWeights
from octavo.backends.base import ForwardResult
from octavo.backends.native.backend import NativeBackend, NativeOptions
from octavo.backends.step import NO_ADAPTER, HostBatch
from octavo.layers import Value
from octavo.models.build import bind
from octavo.models.kv_layout import place_layers
from tests.backends.both import AnyBackend
from tests.backends.native.tiny import EXACT
from tests.models.made_up import EXPERTS, MadeUpWeights, make_model

BLOCK_SIZE = 16
SLOTS, MAX_RANK = 4, 8
_BLOCKS = 4  # of a sequence
MORE: dict[str, Any] = {
    **EXPERTS,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 8,
    "attn_logit_softcapping": 5.0,
    "final_logit_softcapping": 3.0,
    "sliding_window": 5,
}


class Text(NamedTuple):
    """Rows of a sequence in a step, with the slot of their adapter."""

    name: int
    first: int
    rows: int
    slot: int = NO_ADAPTER


class Adapted:
    """A model with made-up weights, on a backend that has room for adapters unless `bare`."""

    def __init__(
        self,
        backend: AnyBackend,
        architecture: str,
        *,
        bare: bool = False,
        wholes: bool = False,
        **more: Any,
    ) -> None:
        self.backend = backend
        self.model = make_model(architecture, **{**MORE, **more})
        layout = place_layers(self.model)
        self._groups = len(layout.windows)
        bind(self.model, backend, MadeUpWeights(self.model))
        settings = None if bare else AdapterSettings(SLOTS, MAX_RANK, wholes=wholes)
        backend.prepare(self.model, layout, BLOCK_SIZE, adapters=settings)
        backend.make_cache(1 + 64 * _BLOCKS)

    def pack(self, *adapters: AdapterWeights) -> list[Value]:
        return [self.backend.adapter(each) for each in adapters]

    def fill(self, *adapters: AdapterWeights, factor: float = 1.0) -> None:
        """Put adapters into the slots, in their order."""
        values = self.pack(*adapters)
        filling = tuple((slot, value, factor) for slot, value in enumerate(values))
        self.run([Text(9, 0, 1)], filling)

    def run(
        self, texts: Sequence[Text], filling: tuple[tuple[int, Value | None, float], ...] = ()
    ) -> ForwardResult:
        """Compute the rows of some sequences; return logits and states of all of them."""
        batch = self.batch(texts)._replace(adapter_slots=filling)
        found = self.backend.forward(batch)
        return ForwardResult(found.logits.copy(), found.hidden.copy())

    def batch(self, texts: Sequence[Text]) -> HostBatch:
        vocabulary = self.model.embed.vocabulary
        at = [np.arange(text.first, text.first + text.rows) for text in texts]
        ids = [(p * p * 7 + p + t.name * 13) % vocabulary for p, t in zip(at, texts, strict=True)]
        starts = np.cumsum([0, *(text.rows for text in texts)]).astype(np.int32)
        tables = tuple(
            np.array(
                [
                    [1 + (text.name * self._groups + group) * _BLOCKS + n for n in range(_BLOCKS)]
                    for text in texts
                ],
                np.int32,
            )
            for group in range(self._groups)
        )
        rows = np.arange(starts[-1], dtype=np.int32)
        slots = np.repeat([text.slot for text in texts], [text.rows for text in texts])
        return HostBatch(
            np.concatenate(ids).astype(np.int32),
            np.concatenate(at).astype(np.int32),
            starts,
            tables,
            rows,
            rows,
            adapters=slots.astype(np.int32),
        )


def native(
    architecture: str = "LlamaForCausalLM", *, bare: bool = False, **options: Any
) -> Adapted:
    """Make a model on the native engine, exact and with two threads unless options differ."""
    chosen = NativeOptions(**{**EXACT, "num_threads": 2, **options})
    return Adapted(NativeBackend(chosen), architecture, bare=bare)
