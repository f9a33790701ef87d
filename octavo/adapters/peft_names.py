"""The tensors of an adapter in PEFT's form, by what their names say that they are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

# What a tensor is of its module's change.
Role = Literal[
    "A",
    "B",
    "bias of B",
    "magnitude",
    "bias",
    "embedding A",
    "embedding B",
    "whole",
    "copy of the base",
]

# The name of the adapter stands behind `lora_A` in files that a trainer wrote without PEFT.
_NAMES: tuple[tuple[str, Role], ...] = (
    (r"lora_A(?:\.[^.]+)?\.weight", "A"),
    (r"lora_B(?:\.[^.]+)?\.weight", "B"),
    (r"lora_B(?:\.[^.]+)?\.bias", "bias of B"),
    (r"lora_magnitude_vector(?:\.[^.]+)?", "magnitude"),
    (r"lora_embedding_A(?:\.[^.]+)?", "embedding A"),
    (r"lora_embedding_B(?:\.[^.]+)?", "embedding B"),
    (r"base_layer\.weight", "copy of the base"),
    (r"base_layer\.bias", "bias"),
    (r"modules_to_save(?:\.[^.]+)?\.bias", "bias"),
    (r"bias", "bias"),
    (r"modules_to_save(?:\.[^.]+)?\.weight", "whole"),
    (r"weight", "whole"),
)
_FORMS = tuple((re.compile(rf"(?P<module>.+)\.{name}", re.DOTALL), role) for name, role in _NAMES)


class Sorted(NamedTuple):
    """The tensors of a file: those of each module, by role, and the first of each other kind."""

    modules: Mapping[str, Mapping[Role, str]]
    unknown: str | None  # the name of a tensor that is none of these
    repeated: str | None  # the name of one whose module has another of the same role


def sort_names(names: Iterable[str]) -> Sorted:
    """Sort the names of tensors by the modules that they change."""
    modules: dict[str, dict[Role, str]] = {}
    unknown = repeated = None
    for name in names:
        found = next(filter(None, (_match(name, *form) for form in _FORMS)), None)
        if found is None:
            unknown = name if unknown is None else unknown
            continue
        module, role = found
        of_module = modules.setdefault(module, {})
        if role in of_module:
            repeated = name if repeated is None else repeated
        of_module[role] = name
    return Sorted(modules, unknown, repeated)


def _match(name: str, form: re.Pattern[str], role: Role) -> tuple[str, Role] | None:
    found = form.fullmatch(name)
    return None if found is None else (found["module"], role)
