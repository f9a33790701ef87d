"""Adapters in PEFT's form: adapter_config.json, and adapter_model.safetensors beside it."""

from __future__ import annotations

import re

from octavo.adapters.pairs import Halves, Limits, Pairs
from octavo.adapters.peft_settings import Choice, read_settings
from octavo.adapters.targets import Targets
from octavo.backends.adapter_weights import AdapterWeights
from octavo.loader.checkpoint import Checkpoint
from octavo.loader.errors import TensorMismatchError, UnsupportedFormatError

# The name of an adapter stands behind `lora_A` in files that its trainer wrote without PEFT.
_HALF = re.compile(r"(?P<module>.+)\.lora_(?P<half>[AB])(?P<adapter>\.[^.]+)?\.weight", re.DOTALL)
_PREFIX = "base_model.model."

# What a tensor's name ends in or has in it, and what such a tensor is.
_UNSUPPORTED = (
    ("lora_magnitude_vector", "it is of DoRA, which is not supported"),
    ("lora_embedding_", "adapters of embeddings are not supported"),
    (".bias", "biases of adapters are not supported"),
    ("modules_to_save", "whole layers beside the adapter are not supported"),
    ("token_adapter", "trained embeddings are not supported"),
    ("lora_diag", "KaSA is not supported"),
)


def read_peft(
    checkpoint: Checkpoint, settings: bytes, targets: Targets, limits: Limits
) -> AdapterWeights:
    """Read an adapter; raise a CheckpointError, with the tensor's name, for one that is wrong."""
    read = read_settings(settings, checkpoint.path)
    choice = Choice(read)
    pairs = Pairs(checkpoint, targets, limits, read.base_model_name_or_path)
    halves: dict[str, dict[str, str]] = {}
    for name in checkpoint.tensors:
        found = _HALF.fullmatch(name)
        if found is None:
            raise _unknown(checkpoint, name)
        of_module = halves.setdefault(found["module"], {})
        if found["half"] in of_module:
            raise TensorMismatchError(
                "there are two tensors for this half", path=checkpoint.path, tensor=name
            )
        of_module[found["half"]] = name
    for stored, of_module in halves.items():
        module, first = stored.removeprefix(_PREFIX), next(iter(of_module.values()))
        pairs.target(module, first)
        why = choice.why_not(module)
        if why is not None:
            raise TensorMismatchError(
                f"the adapter's settings do not belong to it: {why}",
                path=checkpoint.path,
                tensor=first,
                advice="copy both files of one adapter",
            )
        names = Halves(
            of_module.get("A", f"{stored}.lora_A.weight"),
            of_module.get("B", f"{stored}.lora_B.weight"),
        )
        pairs.add(module, names, choice.scale_of(module), rank=choice.rank(module))
    return pairs.finish()


def _unknown(checkpoint: Checkpoint, name: str) -> UnsupportedFormatError | TensorMismatchError:
    for word, why in _UNSUPPORTED:
        if word in name:
            return UnsupportedFormatError(
                why,
                path=checkpoint.path,
                tensor=name,
                advice="train without it, or merge the adapter into its base",
            )
    return TensorMismatchError(
        "it is none of a LoRA: such tensors are called base_model.model.….lora_A.weight and "
        "….lora_B.weight",
        path=checkpoint.path,
        tensor=name,
        advice="take the files that PEFT's save_pretrained writes",
    )
