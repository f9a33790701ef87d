"""The only reader of the environment: every variable that Octavo heeds is a typed function here."""

import os
from collections.abc import Mapping
from pathlib import Path

_TRUE_WORDS = frozenset({"1", "true", "yes", "on"})


def _path(name: str) -> Path | None:
    """The variable as a path with `~` expanded; an unset and an empty variable both mean none."""
    text = os.environ.get(name, "")
    return Path(text).expanduser() if text else None


def _flag(name: str) -> bool:
    return os.environ.get(name, "").strip().lower() in _TRUE_WORDS


def _user_cache() -> Path:
    return _path("XDG_CACHE_HOME") or Path("~/.cache").expanduser()


def cache_directory() -> Path:
    """Where Octavo keeps what it downloads: OCTAVO_CACHE, else `octavo` in the user's cache."""
    return _path("OCTAVO_CACHE") or _user_cache() / "octavo"


def hub_cache_directory() -> Path:
    """The Hugging Face cache, found by the rules its own tools use, so that both share one copy."""
    home = _path("HF_HOME") or _user_cache() / "huggingface"
    return _path("HF_HUB_CACHE") or _path("HUGGINGFACE_HUB_CACHE") or home / "hub"


def hub_offline() -> bool:
    """Whether HF_HUB_OFFLINE forbids asking the hub."""
    return _flag("HF_HUB_OFFLINE")


def cpu_instruction_set() -> str:
    """OCTAVO_CPU_ISA: the kernels that the native engine runs; empty for the best ones."""
    return os.environ.get("OCTAVO_CPU_ISA", "").strip()


def cpu_threads() -> int:
    """OCTAVO_CPU_THREADS: threads of the native engine; 0 where nobody says."""
    text = os.environ.get("OCTAVO_CPU_THREADS", "").strip()
    if not text:
        return 0
    if not text.isdecimal():
        raise ValueError(f"OCTAVO_CPU_THREADS={text!r} must be a whole number, 0 or more")
    return int(text)


def child_environment(changes: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with `changes`, for a program that it starts."""
    return {**os.environ, **changes}


def runtime_directory() -> Path | None:
    """Where the user's sockets belong: XDG_RUNTIME_DIR; None where it is not set."""
    return _path("XDG_RUNTIME_DIR")


def module_path() -> str:
    """PYTHONPATH as it was given."""
    return os.environ.get("PYTHONPATH", "")


def api_keys() -> str:
    """OCTAVO_API_KEY: the keys that the server takes, separated by commas."""
    return os.environ.get("OCTAVO_API_KEY", "")
