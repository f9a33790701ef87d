"""The steps of docs/how-to/add-a-model.md, followed literally, add a family that works."""

from __future__ import annotations

from pathlib import Path

import pytest

import octavo.models
from octavo.models import registry
from octavo.models.gguf import architectures, names
from tests.models.page import inserted, run, steps
from tests.models.test_registry import imported, is_allowed

TABLES = {
    "octavo/models/registry.py": (registry, "FAMILIES"),
    "octavo/models/gguf/architectures.py": (architectures, "ARCHITECTURES"),
    "octavo/models/gguf/names.py": (names, "TABLES"),
}


def test_the_page_can_be_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is a declaration of at most 60 lines, and all checks of the page hold."""
    monkeypatch.setattr(octavo.models, "__path__", [*octavo.models.__path__, str(tmp_path)])
    num_checks = 0
    for step in steps("add-a-model.md"):
        if step.path is None:
            run("check", step.code, tmp_path / "check.py")
            num_checks += 1
        elif step.is_new:
            assert step.code.count("\n") <= 60
            assert all(map(is_allowed, imported(step.code)))
            (tmp_path / Path(step.path).name).write_text(step.code, "utf-8")
        else:
            module, table = TABLES[step.path]
            changed = run(module.__name__, inserted(module, step), tmp_path / "changed.py")
            for key, value in vars(changed)[table].items():
                if key not in vars(module)[table]:
                    monkeypatch.setitem(vars(module)[table], key, value)
    assert num_checks == 2
