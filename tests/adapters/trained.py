"""Small models of transformers with adapters that PEFT has made, and engines that serve them."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import peft
import torch
from transformers import AutoModelForCausalLM, PretrainedConfig

from octavo.adapters.pairs import Limits
from octavo.adapters.read import PEFT_FILE, SETTINGS_FILE, AdapterReader
from octavo.backends.adapter_weights import AdapterSettings
from octavo.backends.base import Floats
from octavo.backends.step import NO_ADAPTER, HostBatch
from octavo.loader import resolve
from octavo.loader.mapped_file import MappedFile
from octavo.loader.safetensors import read_safetensors
from octavo.models.build import bind
from octavo.models.kv_layout import place_layers
from octavo.models.load import open_model
from tests.backends.both import AnyBackend

LENGTH = 21
_BLOCK_SIZE, _BLOCKS = 16, 2  # of a text
LIMITS = Limits(8, wholes=True)


class Trained(NamedTuple):
    """A model's directory, that of an adapter, and what both say about a text of random tokens."""

    base: Path
    adapter: Path
    tokens: list[int]
    plain: Floats  # logits of the model alone
    adapted: Floats  # of the model with the adapter


def train(config: PretrainedConfig, directory: Path, **settings: Any) -> Trained:
    """Make a model with random weights and an adapter of it, whose numbers are random too."""
    torch.manual_seed(1)
    model = _randomised(config)
    model.save_pretrained(directory / "base")
    tokens = torch.randint(0, config.vocab_size, (1, LENGTH))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = model(tokens).logits[0].numpy()
        chosen = peft.LoraConfig(**{"r": 4, "lora_alpha": 6, "task_type": "CAUSAL_LM", **settings})
        adapted = peft.get_peft_model(model, chosen).eval()
        for name, parameter in adapted.named_parameters():
            if parameter.requires_grad:
                size = parameter.abs().mean() / 4 if "magnitude" in name else 0.1
                parameter.add_(torch.randn_like(parameter) * size)
        adapted.save_pretrained(str(directory / "adapter"))
        logits = adapted(tokens).logits[0].numpy()
        if config.tie_word_embeddings and _changes_tied(adapted):
            # PEFT would merge a change of one of the two into the matrix that both have.
            other = AutoModelForCausalLM.from_pretrained(directory / "base", dtype=torch.float32)
            loaded = peft.PeftModel.from_pretrained(other, str(directory / "adapter")).eval()
            np.testing.assert_allclose(loaded(tokens).logits[0].numpy(), logits, atol=1e-5)
        else:
            _compare_merged(adapted, tokens, logits)
    return Trained(directory / "base", directory / "adapter", tokens[0].tolist(), plain, logits)


def _randomised(config: PretrainedConfig) -> Any:
    make: Any = AutoModelForCausalLM.from_config
    model = make(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # by default 1 in norms, 0 in biases
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


def _changes_tied(adapted: Any) -> bool:
    """Return whether an adapter changes the head or the embedding."""
    names = [name for name, each in adapted.named_parameters() if each.requires_grad]
    return any(word in name for name in names for word in ("lm_head", "embed_tokens", "wte"))


def _compare_merged(adapted: Any, tokens: torch.Tensor, logits: Floats) -> None:
    """Check that PEFT says the same of the model into which it merges the adapter."""
    try:
        merged = copy.deepcopy(adapted).merge_and_unload()
    except RuntimeError:  # of biases where the base has none
        return
    np.testing.assert_allclose(merged(tokens).logits[0].numpy(), logits, atol=1e-4)


class Serving:
    """A backend with one model, and the adapter of a directory in one of its slots."""

    def __init__(self, trained: Trained, backend: AnyBackend, limits: Limits = LIMITS) -> None:
        opened = open_model(resolve(str(trained.base)))
        self._layout = place_layers(opened.model)
        self._backend, self._tokens = backend, trained.tokens
        reader = AdapterReader(opened.model, limits)
        bind(opened.model, backend, opened.weights)
        settings = AdapterSettings(2, limits.max_rank, wholes=limits.wholes)
        backend.prepare(opened.model, self._layout, _BLOCK_SIZE, adapters=settings)
        backend.make_cache(1 + 8 * _BLOCKS * len(self._layout.windows))
        checkpoint = read_safetensors(MappedFile(trained.adapter / PEFT_FILE))
        self.weights = reader.read(checkpoint, (trained.adapter / SETTINGS_FILE).read_bytes())
        self.value = backend.adapter(self.weights)

    def logits(self, *slots: int, factor: float = 1.0) -> list[Floats]:
        """Compute the text once for each slot, all in one step; return the logits of each."""
        count, length = len(slots), len(self._tokens)
        rows = np.arange(count * length, dtype=np.int32)
        groups = len(self._layout.windows)
        tables = tuple(
            np.array(
                [
                    [1 + (n * groups + group) * _BLOCKS + block for block in range(_BLOCKS)]
                    for n in range(count)
                ],
                np.int32,
            )
            for group in range(groups)
        )
        batch = HostBatch(
            np.array(self._tokens * count, np.int32),
            np.tile(np.arange(length, dtype=np.int32), count),
            np.arange(count + 1, dtype=np.int32) * np.int32(length),
            tables,
            rows,
            adapters=np.repeat(np.array(slots, np.int32), length),
            adapter_slots=((0, self.value, factor),),
        )
        return np.split(self._backend.forward(batch).logits.copy(), count)


def check(trained: Trained, backend: AnyBackend, limits: Limits = LIMITS) -> Floats:
    """Check that rows with the adapter say what PEFT says, and rows without what they did.

    Return what the adapter says with half its factor.
    """
    assert np.abs(trained.adapted - trained.plain).max() > 0.05, "the adapter changes something"
    serving = Serving(trained, backend, limits)
    (alone,) = serving.logits(NO_ADAPTER)
    first, without, last = serving.logits(0, NO_ADAPTER, 0)
    close = {"rtol": 0, "atol": 3e-5 * np.abs(trained.adapted).max()}
    np.testing.assert_allclose(alone, trained.plain, **close)
    np.testing.assert_allclose(first, trained.adapted, **close)
    assert np.array_equal(first, last)
    assert np.array_equal(alone, without)
    (nothing,) = serving.logits(0, factor=0.0)
    np.testing.assert_allclose(nothing, trained.plain, **close)
    return serving.logits(0, factor=0.5)[0]
