"""A reader that follows a page of docs/how-to literally, in a copy of the package."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "how-to"

_BLOCK = re.compile(
    r"^(?P<before>[^\n]+)\n\n```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
_NEW = re.compile(r"New file `([^`]+)`:$")
_CHANGE = re.compile(r"In `([^`]+)`, (?:at the end|after the line `([^`]+)`):$")
CHECK = re.compile(r"must hold:$")


def blocks(page: str) -> Iterator[tuple[str, str]]:
    """Yield each block of Python with the line before it."""
    text = (PAGES / page).read_text("utf-8")
    found = [(match["before"], match["code"]) for match in _BLOCK.finditer(text)]
    assert len(found) == text.count("```python\n"), f"{page}: no line before a block of code"
    yield from found


def follow(page: str, tree: Path) -> None:
    """Copy the package to `tree`, make the page's changes, and run its checks."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "octavo", tree / "octavo", ignore=ignored)
    num_checks = 0
    for before, code in blocks(page):
        if match := _NEW.search(before):
            path = tree / match[1]
            assert not path.exists(), f"{page}: {match[1]} exists already"
            path.parent.mkdir(exist_ok=True)
            path.write_text(code, "utf-8")
        elif match := _CHANGE.search(before):
            path = tree / match[1]
            path.write_text(_changed(path.read_text("utf-8"), match[2], code), "utf-8")
        else:
            assert CHECK.search(before), f"{page}: {before!r} is none of the forms of a step"
            run_check(code, tree)
            num_checks += 1
    assert num_checks, f"{page} has no check"


def _changed(text: str, line: str | None, code: str) -> str:
    """Return the text with the code inserted after a line, or at the end."""
    if line is None:
        return f"{text}\n\n{code}"
    assert text.count(f"{line}\n") == 1, f"there must be one line {line!r}"
    return text.replace(f"{line}\n", f"{line}\n{code}")


def run_check(code: str, tree: Path) -> None:
    """Run a check in the changed tree; the tests' own helpers come from the repository."""
    script = tree / "check.py"
    paths = f"import sys\nsys.path[:0] = [{str(tree)!r}, {str(ROOT)!r}]\n"
    script.write_text(paths + code, "utf-8")
    command = [sys.executable, "-P", str(script)]
    run = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
