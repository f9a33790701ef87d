"""Adapters in PEFT's form: adapter_config.json, and adapter_model.safetensors beside it."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.adapters.pairs import Halves, Limits, Pairs
from octavo.adapters.peft_names import Role, sort_names
from octavo.adapters.peft_settings import Choice, PeftSettings, read_settings
from octavo.adapters.targets import Targets
from octavo.backends.adapter_weights import AdapterWeights
from octavo.loader.checkpoint import Checkpoint
from octavo.loader.errors import TensorMismatchError, UnsupportedFormatError

_PREFIX = "base_model.model."

# What a tensor's name ends in or has in it, and what such a tensor is.
_UNSUPPORTED = (
    ("lora_embedding_", "adapters of embeddings are not supported"),
    ("modules_to_save", "whole layers beside the adapter are not supported"),
    ("token_adapter", "trained embeddings are not supported"),
    ("lora_diag", "KaSA is not supported"),
)


def read_peft(
    checkpoint: Checkpoint, settings: bytes, targets: Targets, limits: Limits
) -> AdapterWeights:
    """Read an adapter; raise a CheckpointError, with the tensor's name, for one that is wrong."""
    read = read_settings(settings, checkpoint.path)
    names = sort_names(checkpoint.tensors)
    if names.unknown is not None:
        raise _unknown(checkpoint, names.unknown)
    if names.repeated is not None:
        raise TensorMismatchError(
            "there are two tensors for this half", path=checkpoint.path, tensor=names.repeated
        )
    pairs = Pairs(checkpoint, targets, limits, read.base_model_name_or_path)
    modules = _Modules(read, pairs)
    for stored, tensors in names.modules.items():
        modules.add(stored, tensors)
    return pairs.finish()


class _Modules:
    """The modules of an adapter, each compared with the settings before it is kept."""

    def __init__(self, settings: PeftSettings, pairs: Pairs) -> None:
        self._settings = settings
        self._choice = Choice(settings)
        self._pairs = pairs

    def add(self, stored: str, tensors: Mapping[Role, str]) -> None:
        """Add what an adapter has for a module, which `stored` names as the file does."""
        module, first = stored.removeprefix(_PREFIX), next(iter(tensors.values()))
        self._pairs.target(module, first)
        bias = tensors.get("bias")
        if tensors.keys() != {"bias"}:
            self._check(self._choice.why_not(module), first)
            self._check_kinds(stored, tensors)
            names = Halves(
                tensors.get("A", f"{stored}.lora_A.weight"),
                tensors.get("B", f"{stored}.lora_B.weight"),
            )
            rank, scale_of = self._choice.rank(module), self._choice.scale_of(module)
            self._pairs.add(module, names, scale_of, rank=rank, magnitude=tensors.get("magnitude"))
            if "bias of B" in tensors:
                self._pairs.add_bias(module, tensors["bias of B"], scale=scale_of(rank))
        elif self._settings.bias == "lora_only":
            self._check(self._choice.why_not(module), first)
        if bias is not None:
            is_none = self._settings.bias == "none"
            self._check("bias is 'none' there" if is_none else None, bias)
            self._pairs.add_bias(module, bias)

    def _check(self, why: str | None, tensor: str) -> None:
        if why is not None:
            raise TensorMismatchError(
                f"the adapter's settings do not belong to it: {why}",
                path=self._pairs.path,
                tensor=tensor,
                advice="copy both files of one adapter",
            )

    def _check_kinds(self, stored: str, tensors: Mapping[Role, str]) -> None:
        """Refuse a module with other tensors beside its pair than the settings say."""
        wanted: tuple[tuple[Role, str, bool, str], ...] = (
            ("magnitude", "use_dora", self._settings.use_dora, "lora_magnitude_vector"),
            ("bias of B", "lora_bias", self._settings.lora_bias, "lora_B.bias"),
        )
        for role, key, is_set, name in wanted:
            if role in tensors and not is_set:
                self._check(f"{key} is not set there", tensors[role])
            if is_set and role not in tensors:
                first = next(iter(tensors.values()))
                self._check(f"{key} is set there, and the file has no {stored}.{name}", first)


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
