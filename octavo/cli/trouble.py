"""Says in words what went wrong: whose mistake it is, and what to do about it."""

from __future__ import annotations

import re

_MISSING = {
    "torch": "the reference backend needs PyTorch, which is not installed; "
    "pip install 'octavo[torch]'",
    "uvicorn": "the server needs uvicorn, which is not installed; pip install octavo",
}

_THEIRS = ("ServerConfigError", "EngineStartError", "TokenizerError")


def explain(error: Exception) -> str:
    """One line or a few for the person at the terminal."""
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
    if is_theirs(error):
        return as_flags(str(error))
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"{what}\nThis is a defect of Octavo's. --debug shows where it is; please report it."


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


def as_flags(message: str) -> str:
    """The message with options' names as they are typed: `max_model_len` → `--max-model-len`."""
    from dataclasses import fields

    from octavo.config import FIXED, INERT, EngineArguments

    names = [*(field.name for field in fields(EngineArguments)), *INERT, *FIXED]
    spelled = [name for name in names if "_" in name]
    pattern = re.compile(rf"(?<![\w-])({'|'.join(sorted(spelled, key=len, reverse=True))})(?!\w)")
    return pattern.sub(lambda match: "--" + match[0].replace("_", "-"), message)
