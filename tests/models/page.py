"""The steps of a page in docs/how-to, for tests that follow it literally."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

PAGES = Path(__file__).parents[2] / "docs" / "how-to"
_BLOCK = re.compile(r"^([^\n]+)\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PLACE = re.compile(r"(New file|In) `([^`]+)`(?:, at the end|, after the line `([^`]+)`)?:$")


@dataclass(frozen=True)
class Step:
    """A block of code, and the file that it changes; no path means that the code is a check."""

    code: str
    path: str | None
    is_new: bool = False
    line: str | None = None  # the code follows this line; None: it goes to the end


def steps(page: str) -> Iterator[Step]:
    """Yield the steps of a page in order."""
    for before, code in _BLOCK.findall((PAGES / page).read_text("utf-8")):
        if match := _PLACE.search(before):
            yield Step(code, match[2], match[1] == "New file", match[3])
        else:
            assert before.endswith("must hold:"), f"{before!r} is not a step"
            yield Step(code, None)


def inserted(module: ModuleType, step: Step) -> str:
    """Return a module's source with the code of a step inserted."""
    assert module.__file__ is not None
    text = Path(module.__file__).read_text("utf-8")
    if step.line is None:
        return f"{text}\n\n{step.code}"
    assert text.count(f"{step.line}\n") == 1, f"there must be one line {step.line!r}"
    return text.replace(f"{step.line}\n", f"{step.line}\n{step.code}")


def run(name: str, code: str, path: Path) -> ModuleType:
    """Write code to a file and import it under a name."""
    path.write_text(code, "utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
