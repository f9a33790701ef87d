"""Sources of models, readers of checkpoint files, dequantisation.

The names below are imported at first use, so that importing the package costs nothing.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.loader.checkpoint import Checkpoint, TensorInfo, check_tensors
    from octavo.loader.errors import CheckpointError
    from octavo.loader.model_files import ModelFiles
    from octavo.loader.source import resolve

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "ModelFiles",
    "TensorInfo",
    "check_tensors",
    "resolve",
]

_HOMES = {
    "Checkpoint": "checkpoint",
    "CheckpointError": "errors",
    "ModelFiles": "model_files",
    "TensorInfo": "checkpoint",
    "check_tensors": "checkpoint",
    "resolve": "source",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
