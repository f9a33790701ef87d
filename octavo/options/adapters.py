"""The settings of adapters (LoRA) that an engine has: their bounds, and how they are checked."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal, get_args

from octavo.core.config import ConfigError

if TYPE_CHECKING:
    from octavo.options.engine import EngineArguments

LoraType = Literal["auto", "float16", "bfloat16", "float32"]
Rank = Literal[1, 8, 16, 32, 64, 128, 256, 320, 512]  # as in vLLM
RANKS: tuple[int, ...] = get_args(Rank)
MOST_ADAPTERS = 4096  # in memory; each may have its own place in a step too
MAX_LORAS = 4  # the default
MAX_RANK: Rank = 16  # likewise
_MAX_MODULES = 256
_MODULE = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*")
_RESIDENT_FACTOR = 4  # adapters in memory for each of a step, by default
MAX_ADAPTER_BYTES, MAX_COPIES_BYTES = 4 << 30, 32 << 30  # the defaults


def num_resident(arguments: EngineArguments) -> int:
    """Return how many adapters memory may hold; 0: requests may name none."""
    if not arguments.enable_lora:
        return 0
    if arguments.max_cpu_loras is not None:
        return arguments.max_cpu_loras
    return min(_RESIDENT_FACTOR * arguments.max_loras, MOST_ADAPTERS)


def check_adapters(arguments: EngineArguments) -> None:
    """Refuse settings that contradict each other, or that have no effect without adapters."""
    if not arguments.enable_lora:
        usual: dict[str, object] = {
            "max_loras": MAX_LORAS,
            "max_cpu_loras": None,
            "max_lora_rank": MAX_RANK,
            "max_saved_loras": 0,
        }
        usual |= {"lora_dtype": "auto", "lora_target_modules": None}
        usual |= {"max_lora_bytes": MAX_ADAPTER_BYTES, "lora_copies_bytes": MAX_COPIES_BYTES}
        for name, default in usual.items():
            if getattr(arguments, name) != default:
                raise ConfigError(
                    f"{name}={getattr(arguments, name)!r} is a setting of adapters, and there are "
                    "none without enable_lora: set that too, or leave this out"
                )
    if arguments.max_lora_bytes > arguments.lora_copies_bytes:
        raise ConfigError(
            f"max_lora_bytes={arguments.max_lora_bytes} is more than "
            f"lora_copies_bytes={arguments.lora_copies_bytes}, in which each adapter must fit: "
            "lower it, or raise the other"
        )
    resident = arguments.max_cpu_loras
    if resident is not None and resident < arguments.max_loras:
        raise ConfigError(
            f"max_cpu_loras={resident} is less than max_loras={arguments.max_loras}, and each "
            "adapter of a step is in memory: raise it, or lower the other"
        )


def read_modules(given: Any) -> tuple[str, ...] | None:
    """Return the names of projections, each once; raise ConfigError for what is none."""
    if given is None:
        return None
    names = tuple(given) if isinstance(given, list | tuple) else ()
    if not 0 < len(names) <= _MAX_MODULES or not all(_is_module(each) for each in names):
        raise ConfigError(
            f"lora_target_modules={given!r} must be 1 to {_MAX_MODULES} names of projections, such "
            "as q_proj, o_proj or model.layers.0.mlp.down_proj"
        )
    return tuple(dict.fromkeys(names))


def _is_module(name: Any) -> bool:
    return isinstance(name, str) and len(name) <= 512 and _MODULE.fullmatch(name) is not None
