"""Error messages for the terminal: what went wrong, and what to do about it."""

from __future__ import annotations

import errno
from collections.abc import Mapping

from octavo.observe.log import with_flags

_MISSING = {
    "torch": "the reference backend needs PyTorch, which is not installed; "
    "pip install 'octavo[torch]'",
    "httptools": "the server needs httptools, which is not installed; pip install octavo",
}

_THEIRS = (
    *("ServerSettingsError", "ServerStartError", "EngineStartError", "TokenizerError"),
    *("NoBackendError", "OldModuleError"),
)


def explain(error: Exception, spellings: Mapping[str, str] | None = None) -> str:
    """Return the message of an error; for `spellings` see `as_flags`."""
    match error:
        case ModuleNotFoundError(name=str(name)) if not name.startswith("octavo"):
            package = name.partition(".")[0]
            return _MISSING.get(
                package, f"the package {package} is not installed; pip install {package}"
            )
        case MemoryError():
            return (
                "there is not enough memory; `octavo fit MODEL` computes how much is needed, and "
                "--max-model-len or --kv-cache-memory-bytes reduce it"
            )
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror.lower()}"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return (
            "no space is left for the output, or for a file that this command writes; free some, "
            "or write elsewhere"
        )
    if is_of_model(error):  # it names keys of files, which may be the names of settings too
        flag = (spellings or {}).get("tokenizer", "--tokenizer")
        return with_flags(str(error), {"tokenizer": flag})
    if is_theirs(error):
        return as_flags(str(error), _of_request(error, spellings or {}))
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"{what}\nThis is a bug in Octavo. --debug shows the traceback; please report it."


def _of_request(error: Exception, spellings: Mapping[str, str]) -> Mapping[str, str]:
    """Replace the flag of `seed` if the error is about a request's seed, not the engine's."""
    from octavo.core.sampling_params import RequestError

    if isinstance(error, RequestError) and "sampling_seed" in spellings:
        return {**spellings, "seed": spellings["sampling_seed"]}
    return spellings


def is_theirs(error: Exception) -> bool:
    """Return whether the message is written for the user of the command line."""
    from octavo.core.config import ConfigError
    from octavo.core.sampling_params import RequestError
    from octavo.loader.errors import CheckpointError

    if isinstance(error, ConfigError | RequestError | CheckpointError | OSError):
        return True
    # Modules that must not be imported for this check.
    name = type(error).__name__
    return type(error).__module__.startswith("octavo.") and name in _THEIRS


def is_of_model(error: Exception) -> bool:
    """Return whether the model's own files are at fault: damaged, incomplete or not supported."""
    return bool(getattr(error, "is_of_model", False))


def is_of_settings(error: Exception) -> bool:
    """Return whether the command line asks for what cannot be done, however often it is tried."""
    from octavo.core.config import ConfigError
    from octavo.core.sampling_params import RequestError

    if isinstance(error, ConfigError | RequestError):
        return True
    own = type(error).__module__.startswith("octavo.")
    is_of_server = own and type(error).__name__ == "ServerSettingsError"
    return is_of_server or bool(getattr(error, "is_of_settings", False))


def as_flags(message: str, spellings: Mapping[str, str] | None = None) -> str:
    """Replace the names of settings by their flags: `max_model_len` → `--max-model-len`.

    `spellings` has the command's own; a setting that it does not have is a flag of another.
    """
    flags = {name: "--" + name.replace("_", "-") for name in _settings()} | dict(spellings or {})
    return with_flags(message, flags)


def _settings() -> list[str]:
    from dataclasses import fields

    from octavo.client.restart_policy import Timing
    from octavo.options.engine import EngineArguments
    from octavo.options.foreign import FIXED, INERT
    from octavo.options.models import ModelsSettings
    from octavo.options.processes.data_parallel import NAMES
    from octavo.options.server import ServerSettings

    kinds = (EngineArguments, ServerSettings, ModelsSettings, Timing)
    own = [field.name for kind in kinds for field in fields(kind)]
    return [name for name in (*own, *INERT, *FIXED, *NAMES) if name != "model"]
