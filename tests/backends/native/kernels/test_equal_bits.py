"""Whole models have equal bits in every tier that adds products up in one order.

The digests of the order that every processor has are recorded: other machines, with other tiers,
must have them too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.backends.base import Ints
from octavo.backends.native.backend import NativeBackend, NativeOptions
from octavo.backends.native.tiers import orders
from octavo.backends.step import (
    LAST_SAMPLE,
    NO_ROWS,
    Draws,
    HostBatch,
    PromptRows,
    SlotSampling,
)
from octavo.layers import Model
from octavo.loader import resolve
from octavo.models.build import bind
from octavo.models.kv_layout import place_layers
from octavo.models.load import open_model
from octavo.models.weights import Weights
from tests.backends.native.test_claims import write_model
from tests.models.made_up import MadeUpWeights, make_model

PROMPTS = (530, 37, 20)  # the first crosses the end of a split, at 512 positions
CUTS = (250, 20, 10)  # where the prompts are cut into chunks
STREAMS = np.arange(len(PROMPTS), dtype=np.int32)
SAMPLINGS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.9, "seed": 3},
    {"temperature": 1.5, "top_p": 0.8, "seed": 4},
)
DECODED = 5
BLOCKS = 34  # of 16 positions, for each stream and group

# Of the order "fma". They change if sums, weights or fixtures are meant to change, and only then.
DIGESTS = {
    "fp32": "92396d563965958b",
    "bf16": "2e5df4985dac51fc",
    "bf16 cache, windows, caps": "8fbe52aa8bde5305",
    "fp8 cache": "d6ffed1e79e67238",
    "wide fp8 cache": "213252162bfd01a3",
    "int4 cache": "0ae3dcd8c2989ecf",
    "int8, experts, sinks": "86b2e92125ebf829",
    "GGUF": "e5b444dacd807b76",
}


class WholeNumbers(MadeUpWeights):
    """Made-up weights that need no function of a mathematical library, whose bits may differ."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        generator = np.random.default_rng(7)
        for name, array in self.tensors.items():
            scale = 2.0 ** -(4 + array.shape[-1].bit_length() // 2)
            self.tensors[name] = np.float32(scale) * generator.integers(-32, 33, array.shape)


def tokens_of(stream: int) -> Ints:
    at = np.arange(PROMPTS[stream], dtype=np.int32)
    return (at * at * 7 + at * (3 + stream) + stream * 13) % 60


def batch_of(chunks: Sequence[tuple[int, int]], groups: int, wanted: Sequence[int]) -> HostBatch:
    """Return a batch of rows [first, end) of each stream; behind the prompt is the last sample."""
    ids = [
        np.append(tokens_of(s), [LAST_SAMPLE] * DECODED)[slice(*at)] for s, at in enumerate(chunks)
    ]
    tables = 1 + np.arange(groups * len(chunks) * BLOCKS, dtype=np.int32)
    rows = np.array(wanted, np.int32)
    return HostBatch(
        np.concatenate(ids).astype(np.int32),
        np.concatenate([np.arange(*at, dtype=np.int32) for at in chunks]),
        np.append(0, np.cumsum([end - first for first, end in chunks])).astype(np.int32),
        tuple(tables.reshape(groups, len(chunks), BLOCKS)),
        rows,
        rows,
        STREAMS,
    )


def steps(groups: int) -> Iterator[tuple[HostBatch, Draws]]:
    """Yield the prompts in two steps, then tokens of all streams together."""
    opened = tuple(
        (stream, SlotSampling(tokens_of(stream), PROMPTS[stream], logprobs=4, **sampling))
        for stream, sampling in enumerate(SAMPLINGS)
    )
    prompt = PromptRows(0, 0, tokens_of(0)[1 : CUTS[0] + 1], 3)
    draws = Draws((), opened, NO_ROWS, NO_ROWS, prompts=(prompt,))
    yield batch_of([(0, cut) for cut in CUTS], groups, range(CUTS[0])), draws
    draws = Draws((), (), STREAMS, STREAMS)
    chunks = [*zip(CUTS, PROMPTS, strict=True)]
    ends = np.cumsum([end - first for first, end in chunks]) - 1
    yield batch_of(chunks, groups, ends.tolist()), draws
    for step in range(DECODED):
        chunks = [(length + step, length + step + 1) for length in PROMPTS]
        yield batch_of(chunks, groups, range(len(PROMPTS))), draws


def digest(model: Model, checkpoint: Weights, **options: Any) -> str:
    """Compute all steps and return a digest of logits, hidden states, tokens and logprobs."""
    backend = NativeBackend(NativeOptions(num_threads=1, **options))
    layout = place_layers(model)
    groups = len(layout.windows)
    bind(model, backend, checkpoint)
    backend.prepare(model, layout, 16)
    backend.make_cache(1 + groups * len(PROMPTS) * BLOCKS)
    content = sha256()
    for batch, draws in steps(groups):
        output = backend.step(batch, draws).collect()
        assert not output.failures
        tokens = np.array(output.tokens, np.int32)
        described = [rows[1:] for rows in (*output.logprobs, *output.prompts)]
        for array in chain(backend._ready.results(), [tokens], *described):
            content.update(array.tobytes())
    return content.hexdigest()[:16]


MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "fp32": ("LlamaForCausalLM", {"weights": "float32", "kv_dtype": "float32"}),
    "bf16": ("LlamaForCausalLM", {"weights": "bf16"}),
    "bf16 cache, windows, caps": ("Gemma2ForCausalLM", {"weights": "float32"}),
    "fp8 cache": ("LlamaForCausalLM", {"weights": "float32", "kv_dtype": "fp8_e4m3"}),
    "wide fp8 cache": ("LlamaForCausalLM", {"weights": "float32", "kv_dtype": "fp8_e5m2"}),
    "int4 cache": ("LlamaForCausalLM", {"weights": "float32", "kv_dtype": "int4"}),
    "int8, experts, sinks": ("GptOssForCausalLM", {"weights": "int8", "kv_dtype": "int8"}),
}


def opened_model(name: str, directory: Path) -> tuple[Model, Weights, dict[str, Any]]:
    if name == "GGUF":
        # Values and the layer's output in six bits, as in llama.cpp's Q4_K_M.
        path = write_model(directory, "Q4_K", attn_v="Q6_K", ffn_down="Q6_K", token_embd="Q8_0")
        opened = open_model(resolve(str(path)))
        return opened.model, opened.weights, {}
    architecture, options = MODELS[name]
    model = make_model(architecture, sliding_window=300)
    return model, WholeNumbers(model), options


@pytest.mark.parametrize("name", DIGESTS)
def test_models_have_equal_bits_in_all_tiers_of_an_order(name: str, tmp_path: Path) -> None:
    found: dict[str, dict[str, str]] = {}
    for tier, order in orders().items():
        model, checkpoint, options = opened_model(name, tmp_path)
        found.setdefault(order, {})[tier] = digest(
            model, checkpoint, instruction_set=tier, **options
        )
    for tiers in found.values():
        assert len({*tiers.values()}) == 1, tiers
    assert {*found["fma"].values()} == {DIGESTS[name]}
