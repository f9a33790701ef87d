"""The message classes that protoc has made of octavo.proto when the package was built."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from octavo.options.transport import ServerSettingsError

_MODULE = "octavo.dialects.grpc.octavo_pb2"


@cache
def messages() -> Any:
    """Return the module of the classes; raise ServerSettingsError if gRPC is not installed."""
    try:
        importlib.import_module("grpc")
        return importlib.import_module(_MODULE)
    except ImportError as error:
        missing = error.name or str(error)
        what = "was not built with gRPC" if missing == _MODULE else f"needs {missing} for gRPC"
        raise ServerSettingsError(
            f"--grpc-port: this installation {what}; install octavo[grpc], in a checkout with "
            "`make setup`"
        ) from None
