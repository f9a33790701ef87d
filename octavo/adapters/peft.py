"""Adapters in PEFT's form: adapter_config.json, and adapter_model.safetensors beside it."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.adapters.module_choice import Names
from octavo.adapters.pairs import Halves, Limits, Pairs
from octavo.adapters.peft_names import Role, sort_names
from octavo.adapters.peft_settings import Choice, PeftSettings, read_settings
from octavo.adapters.targets import Target, Targets
from octavo.backends.adapter_weights import AdapterWeights
from octavo.loader.checkpoint import Checkpoint
from octavo.loader.errors import TensorMismatchError, UnsupportedFormatError, quote

_PREFIX = "base_model.model."

# The two halves of a pair, and what the names of their tensors end in.
_Halves = tuple[tuple[Role, str], tuple[Role, str]]
_MATRIX: _Halves = (("A", "lora_A.weight"), ("B", "lora_B.weight"))
_TABLE: _Halves = (("embedding A", "lora_embedding_A"), ("embedding B", "lora_embedding_B"))

# What a tensor's name ends in or has in it, and what such a tensor is.
_UNSUPPORTED = (
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
    is_tied = read.ensure_weight_tying and targets.is_tied
    modules = _Modules(read, pairs, is_tied=is_tied)
    for stored, tensors in names.modules.items():
        modules.add(stored, tensors)
    if is_tied:
        pairs.tie("head", "embed")
    if read.modules_to_save:
        pairs.check_saved(Names(read.modules_to_save, "modules_to_save"))
    return pairs.finish()


class _Modules:
    """The modules of an adapter, each compared with the settings before it is kept."""

    def __init__(self, settings: PeftSettings, pairs: Pairs, *, is_tied: bool) -> None:
        self._settings = settings
        self._is_tied = is_tied  # the head has what the embedding has, whatever is named
        self._choice = Choice(settings)
        self._pairs = pairs

    def add(self, stored: str, tensors: Mapping[Role, str]) -> None:
        """Add what an adapter has for a module, which `stored` names as the file does."""
        module, first = stored.removeprefix(_PREFIX), next(iter(tensors.values()))
        target, bias = self._pairs.target(module, first), tensors.get("bias")
        if "whole" in tensors:
            others = [name for role, name in tensors.items() if role not in ("whole", "bias")]
            self._check("it has a whole layer beside" if others else None, *others[:1])
            self._pairs.add_whole(module, tensors["whole"], bias)
            return
        if tensors.keys() != {"bias"}:
            if not (self._is_tied and target.can_be_whole):
                self._check(self._choice.why_not(module), first)
            self._add_pair(stored, module, tensors, target)
        elif self._settings.bias == "lora_only":
            self._check(self._choice.why_not(module), first)
        if bias is not None:
            is_none = self._settings.bias == "none"
            self._check("bias is 'none' there" if is_none else None, bias)
            self._pairs.add_bias(module, bias)

    def _add_pair(
        self, stored: str, module: str, tensors: Mapping[Role, str], target: Target
    ) -> None:
        if target.is_lookup and self._settings.use_dora:
            raise UnsupportedFormatError(
                "DoRA of embeddings is not supported",
                path=self._pairs.path,
                tensor=next(iter(tensors.values())),
                advice="train without it, or merge the adapter into its base",
            )
        self._check_kinds(stored, tensors)
        halves, others = (_TABLE, _MATRIX) if target.is_lookup else (_MATRIX, _TABLE)
        strange = [role for role, _ in others]
        if not target.can_be_whole:
            strange.append("copy of the base")
        for role in strange:
            if role in tensors:
                raise TensorMismatchError(
                    f"an adapter of {quote(module)} has no such tensor",
                    path=self._pairs.path,
                    tensor=tensors[role],
                    advice="take the files that PEFT's save_pretrained writes",
                )
        names = Halves(*(tensors.get(role, f"{stored}.{name}") for role, name in halves))
        rank, scale_of = self._choice.rank(module), self._choice.scale_of(module)
        self._pairs.add(module, names, scale_of, rank=rank, magnitude=tensors.get("magnitude"))
        if "bias of B" in tensors:
            self._pairs.add_bias(module, tensors["bias of B"], scale=scale_of(rank))
        if "copy of the base" in tensors:
            self._pairs.check_copy(module, tensors["copy of the base"])

    def _check(self, why: str | None, tensor: str = "") -> None:
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
