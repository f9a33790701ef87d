"""The steps of docs/how-to/add-an-operation.md, followed literally, add a working operation."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from tests.models.page import inserted, run, steps


def test_the_page_can_be_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operation has its meaning in torch, and is recorded where a layer uses it."""
    num_checks = 0
    for step in steps("add-an-operation.md"):
        if step.path is None:
            run("check", step.code, tmp_path / "check.py")
            num_checks += 1
            continue
        name = step.path.removesuffix(".py").replace("/", ".")
        source = inserted(importlib.import_module(name), step)
        changed = run(name, source, tmp_path / Path(step.path).name)
        monkeypatch.setitem(sys.modules, name, changed)
    assert num_checks == 2


def test_the_folders_that_the_page_names_exist() -> None:
    root = Path(__file__).parents[2]
    for folder in ("csrc/runtime", "csrc/bind", "csrc/kernels", "tests/backends/native"):
        assert (root / folder).is_dir()
