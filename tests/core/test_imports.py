"""Every module of the core can be imported alone, and imports only the standard library."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "octavo" / "core").rglob("*.py")
)

# The root of the package takes modules from one file; these two import the standard library alone.
OF_THE_ROOT = {"octavo.bytecode", "octavo.env"}

# Runs in a fresh, isolated interpreter, where no module that pytest has loaded hides an import.
LIST_IMPORTED_MODULES = """
import importlib, sys
sys.path.insert(0, sys.argv[1])
before = set(sys.modules)
importlib.import_module(sys.argv[2])
print(*(set(sys.modules) - before))
"""


def test_the_core_has_modules() -> None:
    """The test below would pass without a module."""
    assert "octavo.core" in MODULES


@pytest.mark.parametrize("module", MODULES)
def test_import_brings_only_the_standard_library(module: str) -> None:
    """The imports of the package root count too, which the rule in tests/tidy does not see."""
    command = [sys.executable, "-I", "-c", LIST_IMPORTED_MODULES, str(ROOT), module]
    loaded = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert module in loaded
    allowed = {*sys.stdlib_module_names, "octavo"}
    assert [name for name in loaded if name.partition(".")[0] not in allowed] == []
    ours = {name for name in loaded if name.startswith("octavo.") and ".core" not in name}
    assert ours - OF_THE_ROOT == set()
