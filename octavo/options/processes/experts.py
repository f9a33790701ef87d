"""Settings of ranks that have whole experts, and of experts that two ranks have: vLLM's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from octavo.core.config import ConfigError
from octavo.nearest import nearest_or_all
from octavo.options.declare import option
from octavo.options.values import settings_of

if TYPE_CHECKING:
    from octavo.options.engine import EngineArguments

_RANGES: Mapping[str, tuple[int, int]] = {
    "num_redundant_experts": (0, 1024),
    "step_interval": (1, 1_000_000),
}
# vLLM's other keys: none changes an answer.
_WITHOUT_EFFECT = (
    *("window_size", "log_balancedness", "log_balancedness_interval", "use_async", "policy"),
    "communicator",
)
COPIES = (
    "settings of enable_eplb as a JSON object; the keys are num_redundant_experts, copies in each "
    "layer, and step_interval, the steps between two choices (64)"
)
_EXAMPLE = 'as in {"num_redundant_experts": 2}'


@dataclass(frozen=True, slots=True)
class EPLBConfig:
    """The number of experts that are in two ranks, and how often they are chosen anew."""

    num_redundant_experts: int = 0  # of each layer
    step_interval: int = 64  # steps between two choices

    def __post_init__(self) -> None:
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            is_whole = isinstance(value, int) and not isinstance(value, bool)
            if not (is_whole and least <= value <= most):
                raise _error(f"{name}={value!r} must be a whole number from {least} to {most}")


def read_eplb_config(given: object) -> EPLBConfig:
    """Turn a user's settings, a mapping or a JSON object, into checked ones."""
    if isinstance(given, EPLBConfig):
        return given
    settings = settings_of(given, "eplb_config", _EXAMPLE)
    chosen: dict[str, Any] = {}
    for name, value in settings.items():
        if name in _RANGES:
            chosen[name] = value
        elif name not in _WITHOUT_EFFECT:
            known = [*_RANGES, *_WITHOUT_EFFECT]
            raise _error(f"there is no key {str(name)[:100]!r}; {nearest_or_all(str(name), known)}")
    return EPLBConfig(**chosen)


def whole_experts_option() -> bool:
    """Declare whether ranks have whole experts."""
    return option(
        False,
        "give each rank of tensor_parallel_size whole experts, and not a share of each; results "
        "have the same bits",
        flags=("-ep",),
    )


def balance_option() -> bool:
    """Declare whether experts in use are copied to ranks with less to do."""
    return option(
        False,
        "copy the experts that are used most to ranks that have less to do, while the engine "
        "computes; eplb_config says how many",
    )


def check_experts(arguments: EngineArguments) -> None:
    """Refuse whole experts without ranks, and copies without whole experts."""
    config = arguments.eplb_config
    if arguments.enable_expert_parallel and arguments.tensor_parallel_size == 1:
        raise ConfigError(
            "enable_expert_parallel divides the experts among the ranks of an engine, and there is "
            "one: give tensor_parallel_size too, or leave it out"
        )
    if arguments.enable_eplb and not arguments.enable_expert_parallel:
        raise ConfigError(
            "enable_eplb copies experts to ranks that lack them, and each has a share of all: give "
            "enable_expert_parallel too, or leave it out"
        )
    if config is not None and not arguments.enable_eplb and config.num_redundant_experts:
        raise _error("it has settings of enable_eplb: give that too, or leave it out")


def num_redundant(arguments: EngineArguments) -> int:
    """Return how many experts of each layer are in two ranks."""
    config = arguments.eplb_config
    return 0 if config is None or not arguments.enable_eplb else config.num_redundant_experts


def _error(text: str) -> ConfigError:
    return ConfigError(f"eplb_config: {text}")
