"""ASGI middlewares of the operator's own, named on the command line and wrapped around the server.

A middleware is made by `factory(application)`, which returns another application. Where one is
installed, streams do not write to the connection directly, so that it sees every chunk in `send`.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from octavo.named_object import find_object
from octavo.options.transport import ServerSettingsError

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
    try:
        found = find_object(name, "module:factory")
    except ValueError as error:
        raise _error(name, str(error)) from error
    if not callable(found) or inspect.iscoroutinefunction(found):
        raise _error(name, "it is not a function or class that is called with an application")
    factory: Factory = found
    return factory


def _error(name: str, why: str) -> ServerSettingsError:
    return ServerSettingsError(f"middleware={name!r} cannot be used: {why}")
