"""Tensor files for tests, and a loader's answer to a request for one."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from octavo.loader_process.connection import TensorFile, open_sealed
from octavo.loader_process.messages import FileRead, close_all
from octavo.loader_process.read import Directories, read_file
from tests.loader.make_files import write_safetensors

ARRAYS: Mapping[str, Any] = {
    "numbers": np.arange(12, dtype=np.float32).reshape(3, 4),
    "a.down": np.arange(6, dtype=np.float16),
    "flag": np.array(True),
}


def write_file(directory: Path, name: str = "numbers.safetensors") -> Path:
    """Write a file of three tensors, with the sum of one in its metadata."""
    return write_safetensors(directory / name, ARRAYS, {"sum": f"{ARRAYS['numbers'].sum():g}"})


def read_both_ends(
    directory: Path, path: Path, *beside: str, names: Sequence[str] = ()
) -> TensorFile:
    """Read a file as the loader does, and take it over as an engine does."""
    opened = read_file(Directories([directory]), path, beside, names)
    try:
        return open_sealed(path, FileRead(1, *(os.fstat(each).st_size for each in opened)), *opened)
    finally:
        close_all(opened)


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Require that no descriptor is open afterwards that was not before."""
    gc.collect()  # so that none is closed meanwhile that another test left
    before = set(os.listdir("/proc/self/fd"))
    yield
    assert set(os.listdir("/proc/self/fd")) <= before
