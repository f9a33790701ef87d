"""The settings of a server with several models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from octavo.options.declare import check, option
from octavo.options.transport import ServerSettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsSettings:
    """The limits of several models that share a machine."""

    models_dir: Path | None = option(
        None,
        "a directory whose sub-directories and GGUF files are models, each under its own name, "
        "that requests may name",
        "DIR",
    )
    models_max: int = option(4, "the most models that are loaded at once", "COUNT")
    models_memory: int | None = option(
        None,
        "the most memory of all models that are loaded (default: what is free at the start)",
        "SIZE",
    )
    models_wait_seconds: float = option(
        60.0,
        "how long a request waits at most until other models have ended their requests, so that "
        "its own can have their memory",
        "SECONDS",
    )
    models_idle_seconds: float | None = option(
        None,
        "the time without a request after which a model is put to sleep (default: when another "
        "needs its memory)",
        "SECONDS",
    )

    models_autoload: bool = option(
        True,
        "load a model when a request names it; otherwise only `POST /models/load` does, or "
        "`?autoload=true`",
    )

    def __post_init__(self) -> None:
        check(self, ServerSettingsError)
