"""Says in words what went wrong: whose mistake it is, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Mapping

_MISSING = {
    "torch": "the reference backend needs PyTorch, which is not installed; "
    "pip install 'octavo[torch]'",
    "uvicorn": "the server needs uvicorn, which is not installed; pip install octavo",
}

_THEIRS = ("ServerSettingsError", "EngineStartError", "TokenizerError")


def explain(error: Exception, spellings: Mapping[str, str] | None = None) -> str:
    """One line or a few for the person at the terminal; `spellings`: see `as_flags`."""
    match error:
        case ModuleNotFoundError(name=str(name)) if not name.startswith("octavo"):
            package = name.partition(".")[0]
            return _MISSING.get(
                package, f"the package {package} is not installed; pip install {package}"
            )
        case MemoryError():
            return (
                "there is not enough memory; `octavo fit MODEL` tells how much it takes, and "
                "--max-model-len or --kv-cache-memory-bytes make it less"
            )
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror.lower()}"
    if is_theirs(error):
        return as_flags(str(error), _of_request(error, spellings or {}))
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"{what}\nThis is a defect of Octavo's. --debug shows where it is; please report it."


def _of_request(error: Exception, spellings: Mapping[str, str]) -> Mapping[str, str]:
    """An engine has a seed, too, and its flag is not the one that a request's is typed by."""
    from octavo.core.sampling_params import RequestError

    if isinstance(error, RequestError) and "sampling_seed" in spellings:
        return {**spellings, "seed": spellings["sampling_seed"]}
    return spellings


def is_theirs(error: Exception) -> bool:
    """Whether the message is for the person who typed the command."""
    from octavo.core.config import ConfigError
    from octavo.core.sampling_params import RequestError
    from octavo.loader.errors import CheckpointError

    if isinstance(error, ConfigError | RequestError | CheckpointError | OSError):
        return True
    # Of parts that must not be imported for this.
    name = type(error).__name__
    return type(error).__module__.startswith("octavo.") and name in _THEIRS


def as_flags(message: str, spellings: Mapping[str, str] | None = None) -> str:
    """The message with settings' names as they are typed: `max_model_len` → `--max-model-len`.

    `spellings` has the command's own; a setting that it does not have is a flag of another. What
    is a word of the language too, as `seed`, is a setting's name only before its value.
    """
    if spellings is None:
        spellings = {}
    flags = {name: "--" + name.replace("_", "-") for name in _settings()} | dict(spellings)
    names = "|".join(sorted((name for name in flags if name.isidentifier()), key=len, reverse=True))
    pattern = re.compile(rf"(?<![\w-])({names})(?![\w-])(=?)")

    def flag(match: re.Match[str]) -> str:
        name, equals = match[1], match[2]
        return flags[name] + equals if "_" in name or equals else name

    return pattern.sub(flag, message)


def _settings() -> list[str]:
    from dataclasses import fields

    from octavo.engine_arguments import FIXED, INERT, EngineArguments
    from octavo.server.settings import ServerSettings

    own = [field.name for kind in (EngineArguments, ServerSettings) for field in fields(kind)]
    return [name for name in (*own, *INERT, *FIXED) if name != "model"]
