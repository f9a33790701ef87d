"""A kind of tensor file for tests: each has a tensor of numbers, and their sum in its metadata."""

from __future__ import annotations

import contextlib

from octavo.loader.errors import TensorMismatchError
from octavo.loader_process.connection import TensorFile


class Sums:
    """Implements `octavo.engine.tensor_files.TensorFileKind`, in a confined engine."""

    names = ("numbers.safetensors",)
    beside = ("sums.json",)
    bounds_itself = False

    def __init__(self) -> None:
        self.files: dict[str, TensorFile] = {}

    def prepare(self, label: str, file: TensorFile) -> TensorFile:
        if label == "trap":
            raise ZeroDivisionError("a bug of this kind")
        with contextlib.suppress(PermissionError):
            file.checkpoint.path.open("rb").close()
            raise AssertionError("the engine can open the file itself")
        total = f"{file.checkpoint.read('numbers').sum():g}"
        if total != file.checkpoint.metadata["sum"]:
            raise TensorMismatchError(f"its numbers are {total} together")
        return file

    def load(self, label: str, prepared: TensorFile) -> None:
        self.files[label] = prepared

    def unload(self, label: str) -> None:
        del self.files[label]
