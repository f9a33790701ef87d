"""Settings of an engine's ranks, of engines side by side and of a spare one: what may meet."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from octavo.core.config import ConfigError

if TYPE_CHECKING:
    from octavo.options.engine import EngineArguments

MOST_ENGINES = MOST_RANKS = 64


def check_processes(arguments: EngineArguments) -> None:
    """Refuse settings that several engines, a spare one, or the ranks of one cannot follow yet."""
    if arguments.preallocate_kv_cache and arguments.spare_engine:
        raise ConfigError(
            "preallocate_kv_cache with spare_engine would take the memory of the KV cache "
            "twice, once for an engine that may never need it: leave one of them out"
        )
    if arguments.spare_engine and arguments.data_parallel_size > 1:
        raise ConfigError(
            f"spare_engine with data_parallel_size={arguments.data_parallel_size}: the other "
            "engines continue what one has begun, so leave spare_engine out, or add an engine"
        )
    if arguments.tensor_parallel_size == 1:
        return
    if not sys.platform.startswith("linux"):
        raise ConfigError(
            f"tensor_parallel_size={arguments.tensor_parallel_size} needs Linux, whose processes "
            "can share memory without a name; leave it out"
        )
    unfit = {
        "enable_lora": (arguments.enable_lora, "ranks compute no rows with adapters yet"),
        "packed_cache": (
            arguments.packed_cache is not None,
            "each rank packs its own share of the weights, and no files are made of these yet",
        ),
        "spare_engine": (arguments.spare_engine, "a spare engine has no ranks yet"),
    }
    for name, (is_asked, why) in unfit.items():
        if is_asked:
            raise ConfigError(
                f"{name} with tensor_parallel_size={arguments.tensor_parallel_size}: {why}; leave "
                "one of them out"
            )
