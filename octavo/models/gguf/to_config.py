"""Conversion of a GGUF file's metadata to the values of a config.json."""

from __future__ import annotations

from typing import Any

from octavo.loader import Checkpoint
from octavo.loader.errors import CorruptFileError, UnsupportedFormatError, quote
from octavo.models.gguf.architectures import ARCHITECTURES, INTEGERS, NUMBERS
from octavo.models.gguf.keys import GgufKeys
from octavo.models.gguf.rope import ROPE_KEYS, rope_parameters
from octavo.nearest import nearest


def read_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the values of the config.json that this model would have."""
    keys = GgufKeys(checkpoint)
    architecture = ARCHITECTURES.get(keys.architecture)
    if architecture is None:
        raise _unknown(keys)
    for stored in ("embedding_length", "block_count", "attention.head_count"):
        keys.whole(stored)  # raises if it is missing
    _check(keys)
    values: dict[str, Any] = {"architectures": [architecture.name], **architecture.fixed}
    # If an architecture has a name of its own for a number, both names are set.
    for stored, key in [*INTEGERS.items(), *architecture.integers.items()]:
        if keys.has(stored) and stored not in architecture.by_block:
            values[key] = keys.whole(stored)
    for stored, key in [*NUMBERS.items(), *architecture.numbers.items()]:
        if keys.has(stored):
            values[key] = keys.number(stored)
    values["vocab_size"] = keys.rows("token_embd.weight")
    values["tie_word_embeddings"] = not keys.has_tensor("output.weight")
    values["rope_parameters"] = rope_parameters(keys)
    if architecture.derive is not None:
        values.update(architecture.derive(keys, values))
    _check_pattern(keys, values)
    return values


def stored_names(checkpoint: Checkpoint) -> dict[str, str]:
    """Return the file's key for each value of the config.json that has one."""
    name = checkpoint.metadata.string("general.architecture")
    own = ARCHITECTURES[name]
    pairs = [*INTEGERS.items(), *NUMBERS.items(), *own.integers.items(), *own.numbers.items()]
    return {key: f"{name}.{stored}" for stored, key in [*pairs, *ROPE_KEYS.items()]}


def _check(keys: GgufKeys) -> None:
    path = keys.checkpoint.path
    blocks = keys.whole("block_count")
    if blocks > len(keys.checkpoint):
        raise CorruptFileError(
            f"the file states {blocks:,} blocks and only {len(keys.checkpoint):,} tensors exist",
            path=path,
        )
    size = keys.whole("attention.key_length", 0)
    has_latents = keys.has("attention.kv_lora_rank")
    if size and not has_latents and keys.whole("attention.value_length", size) != size:
        raise UnsupportedFormatError(
            "keys and values of different sizes are not supported", path=path
        )


def _check_pattern(keys: GgufKeys, values: dict[str, Any]) -> None:
    kinds, blocks = values.get("layer_types"), values["num_hidden_layers"]
    if kinds is not None and len(kinds) != blocks:
        raise CorruptFileError(
            f"the pattern of layers is for {len(kinds):,} blocks, but there are {blocks:,}",
            path=keys.checkpoint.path,
        )


def _unknown(keys: GgufKeys) -> UnsupportedFormatError:
    name = keys.architecture
    near = nearest(name, ARCHITECTURES, most=3, likeness=0.4) or sorted(ARCHITECTURES)
    return UnsupportedFormatError(
        f"general.architecture {quote(name)} is not supported; the nearest that are:"
        f" {', '.join(near)}",
        path=keys.checkpoint.path,
    )
