"""The page docs/how-to/add-a-limiter.md, followed literally in a copy of the core."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "add-a-limiter.md"
CORE = Path("octavo") / "core"


def insert(path: Path, block: str, anchor: str) -> None:
    """Insert a block of the page before a text that occurs exactly once in the file."""
    text = path.read_text("utf-8")
    assert text.count(anchor) == 1, f"{anchor!r} occurs {text.count(anchor)} times in {path.name}"
    path.write_text(text.replace(anchor, block + anchor), "utf-8")


def test_the_page_leads_to_a_limiter_that_works(tmp_path: Path) -> None:
    """The test of the page fails in the core as it is and passes in a copy with its changes."""
    blocks = re.findall(r"^```python\n(.*?)^```\n", PAGE.read_text("utf-8"), re.M | re.S)
    limiter, import_line, field, bound, choice, test = blocks
    shutil.copytree(ROOT / CORE, tmp_path / CORE)
    (tmp_path / "tests" / "core").mkdir(parents=True)
    for file in ("octavo/__init__.py", "tests/__init__.py", "tests/core/__init__.py"):
        shutil.copy(ROOT / file, tmp_path / file)
    shutil.copy(ROOT / "tests/core/make.py", tmp_path / "tests/core/make.py")
    (tmp_path / "tests/core/test_page.py").write_text(test, "utf-8")
    assert "unexpected keyword argument" in run(tmp_path)

    limits, config = tmp_path / CORE / "limits.py", tmp_path / CORE / "config.py"
    insert(limits, limiter + "\n\n", "def limiters_for")
    insert(limits, choice, "    return tuple(chosen)\n")
    insert(limits, import_line, "from octavo.core.stats import ADAPTERS, BUDGET\n")
    insert(config, field, "    watermark: float")
    insert(config, bound, "}\n")
    assert "1 passed" in run(tmp_path)


def run(directory: Path) -> str:
    """Run the page's test in a copy of the tree, and return what pytest prints."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/core"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr
