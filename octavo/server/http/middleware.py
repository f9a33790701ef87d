"""ASGI middlewares of the operator's own, named on the command line and wrapped around the server.

A middleware is made by `factory(application)`, which returns another application. Where one is
installed, streams do not write to the connection directly, so that it sees every chunk in `send`.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from octavo.server.settings import ServerSettingsError

ASGI = Callable[[Any, Any, Any], Awaitable[None]]  # scope, receive, send
Factory = Callable[[ASGI], ASGI]


def check_middlewares(names: Sequence[str]) -> None:
    """Raise ServerSettingsError if a `module:factory` cannot be imported or is not callable.

    The server imports them when it starts; this reports errors before the model is loaded.
    """
    for name in names:
        _load(name)


def wrap(application: ASGI, names: Sequence[str]) -> ASGI:
    """Return the application inside of its middlewares, the last of which is the outermost."""
    for name in names:
        factory = _load(name)
        try:
            wrapped = factory(application)
        except Exception as error:
            raise _error(name, f"its call failed with {type(error).__name__}: {error}") from error
        if not callable(wrapped):
            raise _error(name, f"it returned {type(wrapped).__name__}, not an ASGI application")
        application = wrapped
    return application


def _load(name: str) -> Factory:
    # vLLM separates the name by a dot.
    module_name, _, path = name.partition(":") if ":" in name else name.rpartition(".")
    if not (module_name and path):
        raise _error(name, "write it as module:factory")
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:  # the module's code runs, and may fail in any way
        why = f"the module {module_name!r} cannot be imported ({type(error).__name__}: {error})"
        raise _error(name, f"{why}; is its directory in PYTHONPATH?") from error
    for part in path.split("."):
        found = getattr(found, part, None)
        if found is None:
            raise _error(name, f"the module {module_name!r} has no {path!r}")
    if not callable(found) or inspect.iscoroutinefunction(found):
        raise _error(name, "it is not a function or class that is called with an application")
    factory: Factory = found
    return factory


def _error(name: str, why: str) -> ServerSettingsError:
    return ServerSettingsError(f"middleware={name!r} cannot be used: {why}")
