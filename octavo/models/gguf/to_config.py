"""Says a GGUF file's metadata as a config.json would."""

from __future__ import annotations

import difflib
from typing import Any

from octavo.loader import Checkpoint
from octavo.loader.errors import CorruptFileError, UnsupportedFormatError, quote
from octavo.models.gguf.architectures import ARCHITECTURES, INTEGERS, NUMBERS
from octavo.models.gguf.keys import Facts
from octavo.models.gguf.rope import rope_parameters


def read_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """The values of the config.json that this model would have."""
    facts = Facts(checkpoint)
    architecture = ARCHITECTURES.get(facts.architecture)
    if architecture is None:
        raise _unknown(facts)
    for stored in ("embedding_length", "block_count", "attention.head_count"):
        facts.whole(stored)  # an error if it is not there: without these nothing can be said
    _check(facts)
    values: dict[str, Any] = {"architectures": [architecture.name], **architecture.fixed}
    # Some architectures have a name of their own for a number, and then it is said by both.
    for stored, key in [*INTEGERS.items(), *architecture.integers.items()]:
        if facts.has(stored):
            values[key] = facts.whole(stored)
    for stored, key in [*NUMBERS.items(), *architecture.numbers.items()]:
        if facts.has(stored):
            values[key] = facts.number(stored)
    values["vocab_size"] = facts.rows("token_embd.weight")
    values["tie_word_embeddings"] = not facts.has_tensor("output.weight")
    values["rope_parameters"] = rope_parameters(facts)
    if architecture.derive is not None:
        values.update(architecture.derive(facts, values))
    _check_pattern(facts, values)
    return values


def _check(facts: Facts) -> None:
    path = facts.checkpoint.path
    blocks = facts.whole("block_count")
    if blocks > len(facts.checkpoint):
        raise CorruptFileError(
            f"it has {blocks:,} blocks and only {len(facts.checkpoint):,} tensors", path=path
        )
    keys = facts.whole("attention.key_length", 0)
    if keys and facts.whole("attention.value_length", keys) != keys:
        raise UnsupportedFormatError(
            "keys and values of different sizes are not supported", path=path
        )


def _check_pattern(facts: Facts, values: dict[str, Any]) -> None:
    kinds, blocks = values.get("layer_types"), values["num_hidden_layers"]
    if kinds is not None and len(kinds) != blocks:
        raise CorruptFileError(
            f"its pattern of windows is for {len(kinds):,} blocks, and it has {blocks:,}",
            path=facts.checkpoint.path,
        )


def _unknown(facts: Facts) -> UnsupportedFormatError:
    name = facts.architecture
    near = difflib.get_close_matches(name, ARCHITECTURES, n=3, cutoff=0.4) or sorted(ARCHITECTURES)
    return UnsupportedFormatError(
        f"GGUF architecture {quote(name)} is not supported; the nearest that are:"
        f" {', '.join(near)}",
        path=facts.checkpoint.path,
    )
