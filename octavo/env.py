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


def child_environment(changes: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with `changes`, for a program that it starts."""
    return {**os.environ, **changes}


def runtime_directory() -> Path | None:
    """Where the user's sockets belong: XDG_RUNTIME_DIR; None where it is not set."""
    return _path("XDG_RUNTIME_DIR")


def module_path() -> str:
    """PYTHONPATH as it was given."""
    return os.environ.get("PYTHONPATH", "")
