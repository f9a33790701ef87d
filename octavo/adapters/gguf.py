"""Adapters in a GGUF file, as llama.cpp's converter writes them from PEFT's form."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from octavo.adapters.pairs import Halves, Limits, Pairs
from octavo.adapters.targets import Targets
from octavo.backends.adapter_weights import AdapterWeights
from octavo.layers import ModelSpec
from octavo.loader.checkpoint import Checkpoint
from octavo.loader.errors import CheckpointError, TensorMismatchError, UnsupportedFormatError, quote
from octavo.models.gguf.names import TABLES, Original, Table, filled, look_up, pattern_of
from octavo.models.gguf.undo import AS_STORED, Heads

_DOWN, _UP = ".lora_a", ".lora_b"
_ALPHA, _INVOCATION = "adapter.lora.alpha", "adapter.alora.invocation_tokens"


def read_gguf_adapter(
    checkpoint: Checkpoint, spec: ModelSpec, targets: Targets, limits: Limits
) -> AdapterWeights:
    """Read an adapter; raise a CheckpointError, with the tensor's name, for one that is wrong."""
    table = _check_kind(checkpoint)
    scale_of = _scale(checkpoint)
    pairs = Pairs(checkpoint, targets, limits)
    heads = Heads(spec.heads, spec.kv_heads)
    stems: dict[str, None] = {}
    for name in checkpoint.tensors:
        if not name.endswith((_DOWN, _UP)):
            raise TensorMismatchError(
                f"its name must end in {_DOWN} or {_UP}", path=checkpoint.path, tensor=name
            )
        stems[name.removesuffix(_DOWN).removesuffix(_UP)] = None
    for stem in stems:
        halves = Halves(stem + _DOWN, stem + _UP)
        first = halves.down if halves.down in checkpoint else halves.up
        module, original = _module(checkpoint, table, stem, first)
        is_lookup = pairs.target(module, first).is_lookup
        order = None
        if halves.up in checkpoint:
            order = _order(original, checkpoint, halves.up, heads)
        # Of an embedding, these files have a row for each token, where PEFT's have a column.
        pairs.add(module, halves, scale_of, order=order, is_turned=is_lookup)
    return pairs.finish()


def _check_kind(checkpoint: Checkpoint) -> Table:
    """Refuse what is no LoRA; return the names of its architecture's tensors."""
    metadata, path = checkpoint.metadata, checkpoint.path
    kinds = {"general.type": "adapter", "adapter.type": "lora"}
    for key, wanted in kinds.items():
        found = metadata.string(key, "")
        if found != wanted:
            raise UnsupportedFormatError(
                f"{key} is {quote(found)}, must be {quote(wanted)}",
                path=path,
                advice="give a LoRA that llama.cpp's convert_lora_to_gguf.py has written",
            )
    if _INVOCATION in metadata:
        raise UnsupportedFormatError(
            "activated LoRA is not supported", path=path, advice="train a plain LoRA"
        )
    architecture = metadata.string("general.architecture")
    if architecture not in TABLES:
        raise UnsupportedFormatError(
            f"it is for models of the architecture {quote(architecture)}, which is not supported",
            path=path,
        )
    return TABLES[architecture]


def _scale(checkpoint: Checkpoint) -> Callable[[int], float]:
    """Return what gives the factor of a pair by its rank; an alpha of 0 means that it is 1."""
    stored = checkpoint.metadata.get(_ALPHA, 0.0)
    try:
        alpha = float(stored) if isinstance(stored, int | float | str) else math.nan
    except ValueError:
        alpha = math.nan
    if not math.isfinite(alpha):
        raise UnsupportedFormatError(
            f"{_ALPHA} is {quote(str(stored))}, must be a number", path=checkpoint.path
        )
    return lambda rank: alpha / rank if alpha else 1.0


def _module(checkpoint: Checkpoint, table: Table, stem: str, tensor: str) -> tuple[str, Original]:
    """Return the name of the module whose weight a pair changes."""
    pattern, numbers = pattern_of(stem)
    found = look_up(table, pattern)
    if found is not None:
        original, suffix = found
        name = filled(original.name, numbers) + suffix
        if name.endswith(".weight") and not original.also:
            return name.removesuffix(".weight"), original
    raise TensorMismatchError(
        "it changes no projection that is known in models of its architecture",
        path=checkpoint.path,
        tensor=tensor,
        advice="train the adapter without it, or merge it into its base",
    )


def _order(
    original: Original, checkpoint: Checkpoint, name: str, heads: Heads
) -> NDArray[np.int64] | None:
    """Return the stored row for each of the module's rows, if converters have moved them."""
    shape, undo = checkpoint.info(name).shape, original.undo
    if undo is AS_STORED or not undo.moves_rows or not shape:
        return None
    numbers = np.arange(shape[0], dtype=np.float32)[:, None]
    try:
        return undo.values([numbers], heads)[:, 0].astype(np.int64)
    except CheckpointError as error:
        raise error.at(checkpoint.path, name) from None
