"""Every module of the core can be imported alone, and brings nothing but the standard library."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "octavo" / "core").rglob("*.py")
)

# Runs in a fresh, isolated interpreter, so that nothing which pytest has loaded can hide an import.
LIST_WHAT_CAME_ALONG = """
import importlib, sys
sys.path.insert(0, sys.argv[1])
before = set(sys.modules)
importlib.import_module(sys.argv[2])
print(*(set(sys.modules) - before))
"""


def test_there_is_a_core() -> None:
    """The tests below say nothing about an empty list."""
    assert "octavo.core" in MODULES


@pytest.mark.parametrize("module", MODULES)
def test_import_brings_only_the_standard_library(module: str) -> None:
    """The dynamic twin of the import rule in tests/tidy: it sees what the package root loads."""
    command = [sys.executable, "-I", "-c", LIST_WHAT_CAME_ALONG, str(ROOT), module]
    loaded = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert module in loaded
    allowed = {*sys.stdlib_module_names, "octavo"}
    assert [name for name in loaded if name.partition(".")[0] not in allowed] == []
    assert [name for name in loaded if name.startswith("octavo.") and ".core" not in name] == []
