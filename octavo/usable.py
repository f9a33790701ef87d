"""Refuses arguments that no engine can follow on this machine, before a model is looked for."""

from __future__ import annotations

from dataclasses import fields

from msgspec import structs

from octavo.backends.kind import BackendKind, Sizes, kind_of
from octavo.backends.select import Choice, select
from octavo.core.config import ConfigError
from octavo.options import backends
from octavo.options.engine import EngineArguments

# The sizes that a backend chooses where the user does not.
_SIZES = ("block_size", "max_num_seqs", "max_num_batched_tokens")
_DEFAULTS = {field.name: field.default for field in fields(EngineArguments)}


def choose_backend(arguments: EngineArguments, *, is_first: bool = False) -> Choice:
    """Choose the backend; raise an error for arguments that it cannot follow here.

    For the first engine, whatever would end its start is refused. One that replaces it starts
    without a directory for packed weights too.
    """
    choice = select(arguments.backend, device=arguments.device, block_size=arguments.block_size)
    _check_options(arguments, choice)
    try:
        choice.kind.check(arguments, is_first=is_first)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return choice


def chosen_sizes(arguments: EngineArguments, kind: BackendKind) -> Sizes:
    """Return the sizes that the user asks for, and the backend's own in place of the others."""
    given = {name: getattr(arguments, name) for name in _SIZES}
    asked = {name: value for name, value in given.items() if value is not None}
    return structs.replace(kind.sizes, **asked)


def _check_options(arguments: EngineArguments, choice: Choice) -> None:
    """Refuse options of other backends that the chosen one does not have."""
    for entry in backends.BACKENDS:
        if entry is choice.entry:
            continue
        for name in kind_of(entry).options:
            value = getattr(arguments, name)
            if value != _DEFAULTS[name] and name not in choice.kind.options:
                advice = choice.kind.instead.get(name, "leave it out")
                raise ConfigError(
                    f"{name}={value!r} is a setting of the {entry.name} backend, and the "
                    f"{choice.entry.name} backend computes here: {advice}"
                )
    speculation = arguments.speculative_config
    if speculation is None or speculation.weights is None:
        return
    if "cpu_weights" not in choice.kind.options:
        raise ConfigError(
            f"speculative_config: quantization={speculation.quantization!r} is for the native "
            f"backend, and the {choice.entry.name} backend computes here, with a drafter's "
            "weights as the files have them; leave it out"
        )
