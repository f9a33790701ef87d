"""Comparison of a family with its reference implementation on a small random checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PretrainedConfig

from octavo.backends.base import Floats, KVLayout, LogitsBackend
from octavo.backends.native.backend import NativeBackend, NativeOptions
from octavo.backends.native.refusals import HEAD_MULTIPLE
from octavo.backends.step import HostBatch
from octavo.backends.torch.backend import TorchBackend
from octavo.backends.torch.footprint import kv_pages
from octavo.layers import Model
from octavo.loader import resolve
from octavo.models.build import bind
from octavo.models.checkpoint_weights import CheckpointWeights
from octavo.models.config_reader import Config
from octavo.models.kv_layout import place_layers
from octavo.models.registry import family_of
from octavo.program.listing import UnsupportedError

BLOCK_SIZE = 4
NATIVE_BLOCK_SIZE = 16
NUM_BLOCKS = 128
PROMPT_LENGTH = 37  # longer than a window, a tile of queries and a block, and a multiple of none


class Runner:
    """A bound model and the cache of one sequence, which it computes in chunks."""

    def __init__(self, model: Model, backend: LogitsBackend, layout: KVLayout) -> None:
        self.model = model
        self.backend = backend
        self.layout = layout
        is_torch = isinstance(backend, TorchBackend)
        backend.prepare(model, layout, BLOCK_SIZE if is_torch else NATIVE_BLOCK_SIZE)
        backend.make_cache(NUM_BLOCKS)
        per_group = (NUM_BLOCKS - 1) // len(layout.windows)
        pages = kv_pages(layout, BLOCK_SIZE if is_torch else NATIVE_BLOCK_SIZE, "float32")
        # Each block is the first one of a page of its own.
        self.tables = tuple(
            np.arange(1 + group * per_group, 1 + (group + 1) * per_group, dtype=np.int32)[None]
            * np.int32(per_page)
            for group, per_page in enumerate(pages.blocks_per_page)
        )

    def logits(self, tokens: list[int], start: int = 0) -> Floats:
        """Compute the logits after each of `tokens`, whose positions begin at `start`."""
        count = len(tokens)
        rows = np.arange(count, dtype=np.int32)
        batch = HostBatch(
            np.array(tokens, np.int32),
            rows + np.int32(start),
            np.array([0, count], np.int32),
            self.tables,
            rows,
        )
        return self.backend.forward(batch).logits.copy()

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        """Generate as a greedy sampler does."""
        tokens = list(prompt)
        row = self.logits(tokens)[-1]
        for _ in range(count):
            tokens.append(int(row.argmax()))
            row = self.logits(tokens[-1:], len(tokens) - 1)[-1]
        return tokens[len(prompt) :]


def exact_native() -> NativeBackend:
    """Make a native backend that computes in fp32, as the reference does."""
    return NativeBackend(NativeOptions(kv_dtype="float32", weights="float32", num_threads=2))


def load(
    directory: Path, max_len: int | None = None, backend: LogitsBackend | None = None
) -> Runner:
    """Load a checkpoint directory on a backend, by default on torch."""
    values: dict[str, Any] = json.loads((directory / "config.json").read_text())
    family = family_of(values["architectures"][0])
    model = family(family.read(Config(values, max_len)))
    layout = place_layers(model)
    backend = backend or TorchBackend()
    bind(model, backend, CheckpointWeights(resolve(str(directory)).open()))
    return Runner(model, backend, layout)


def compare(config: PretrainedConfig, directory: Path, *, max_len: int | None = None) -> None:
    """Check logits and greedy text against the reference, whole and in chunks."""
    torch.manual_seed(0)
    make: Any = AutoModelForCausalLM.from_config
    reference = make(config, dtype=torch.float32).eval()
    with torch.no_grad():
        learned = [b for name, b in reference.named_buffers() if name.endswith("_bias")]
        for parameter in (*reference.parameters(), *learned):  # by default 1 in norms, 0 in biases
            parameter.add_(torch.randn_like(parameter) * 0.05)
    reference.save_pretrained(directory)
    generator = np.random.default_rng(1)
    prompt = generator.integers(0, config.vocab_size, PROMPT_LENGTH).tolist()
    with torch.no_grad():
        expected = reference(torch.tensor([prompt])).logits[0].numpy()
        text = reference.generate(
            torch.tensor([prompt]),
            max_new_tokens=12,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )[0, PROMPT_LENGTH:].tolist()
    runner = load(directory, max_len)
    _check(runner, prompt, expected, text)
    odd = [each.spec.dim for each in runner.layout.groups if each.spec.dim % HEAD_MULTIPLE]
    if odd:
        with pytest.raises(UnsupportedError, match=f"heads of {odd[0]} numbers"):
            load(directory, max_len, exact_native())
    else:
        _check(load(directory, max_len, exact_native()), prompt, expected, text)


def _check(runner: Runner, prompt: list[int], expected: Floats, text: list[int]) -> None:
    """Check that a backend computes these logits and this text, whole and in chunks."""
    whole = runner.logits(prompt)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(whole, expected, rtol=0, atol=2e-5 * scale)
    starts = range(0, PROMPT_LENGTH, 7)
    chunks = [runner.logits(prompt[start : start + 7], start) for start in starts]
    assert np.array_equal(np.concatenate(chunks), whole), "chunking changes bits"
    assert runner.greedy(prompt, 12) == text
