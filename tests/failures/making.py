"""A failure of the catalogue: how it is made, and what the command line then prints."""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import IO, Any, NamedTuple

import pytest

from octavo import env
from octavo.cli import main
from tests.damage.models import write_directory


class Place:
    """A directory for one failure, and changes of the environment that end with it."""

    def __init__(self, path: Path, patch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.patch = patch
        self.open_until_the_end = contextlib.ExitStack()
        self.output: IO[str] = io.StringIO()  # standard output of the command

    def file(self, name: str, content: str | bytes = "") -> str:
        """Write a file and return its path."""
        path = self.path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    def model(self, **files: bytes | str | None) -> str:
        """Return the directory of a sound model, but for some files; None: a missing one."""
        path = self.path / "model"
        shutil.copytree(_sound_model(), path)
        for name, content in files.items():
            file = path / name.replace("__", ".")
            if content is None:
                file.unlink()
            else:
                file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    def model_with(self, file: str, **values: Any) -> str:
        """Return a model with other values in one of its JSON files."""
        path = Path(self.model())
        found = json.loads((path / file).read_text())
        (path / file).write_text(json.dumps({**found, **values}))
        return str(path)


@cache
def _sound_model() -> Path:
    """Write the model that others are copies of, once in a process."""
    directory = tempfile.mkdtemp(prefix="octavo-failures-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return write_directory(Path(directory) / "model")


class Failure(NamedTuple):
    """A mistake or a lack, and the exit code that it leads to."""

    group: str
    title: str
    make: Callable[[Place], list[str]]  # the words of the command line
    code: int
    subject: str  # what the message must name
    varies: bool = False  # it lists what this machine or this version has


class Outcome(NamedTuple):
    """The exit code of a command and the lines of its standard error."""

    code: int
    lines: list[str]


def outcome(failure: Failure, path: Path) -> Outcome:
    """Make a failure in an empty directory."""
    errors = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        place = Place(path, patch)
        others = ("VLLM_API_KEY", "LLAMA_API_KEY", "TRANSFORMERS_OFFLINE", env.LORA_UPDATING)
        for name in (*env.settings(), env.API_KEY, "OCTAVO_CONFIG", *others):
            patch.delenv(name, raising=False)
        patch.setenv("OCTAVO_CACHE", str(path / "cache"))
        patch.setenv("HF_HUB_CACHE", str(path / "hub"))
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("OCTAVO_CPU_CALIBRATION", "off")
        patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(), "utf-8"))
        patch.chdir(path)
        with place.open_until_the_end, contextlib.redirect_stderr(errors):
            words = failure.make(place)
            with contextlib.redirect_stdout(place.output):
                code = main(words)
    return Outcome(code, errors.getvalue().splitlines())
