"""Which backend runs, and what is said where none does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from octavo.backends import select as module
from octavo.backends.interface import INTERFACE, OldModuleError, check_interface
from octavo.backends.select import Caps, NoBackendError, select


@pytest.fixture
def nothing_native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "native_caps", lambda size: Caps("native", "not built"))


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "torch_caps", lambda: Caps("torch", "not installed"))


def test_native_is_the_first_choice() -> None:
    pytest.importorskip("torch")
    assert select("auto").name == "native"
    assert select("torch").name == "torch"


def test_blocks_that_the_kernels_do_not_take_go_to_torch() -> None:
    pytest.importorskip("torch")
    choice = select("auto", block_size=4)
    assert choice.name == "torch"
    assert "block_size=4 is not a multiple of 16" in choice.reason


@pytest.mark.usefixtures("nothing_native")
def test_without_the_extension_torch_runs_and_says_why() -> None:
    pytest.importorskip("torch")
    assert "not built" in select("auto").reason
    with pytest.raises(NoBackendError, match="backend='native' cannot run: not built"):
        select("native")


@pytest.mark.usefixtures("nothing_native", "no_torch")
def test_where_nothing_runs_both_reasons_are_given() -> None:
    with pytest.raises(NoBackendError, match=r"native: not built; torch: not installed"):
        select("auto")


def test_a_module_that_was_built_from_other_sources_is_refused() -> None:
    """A step would read what the module does not have, and end the process."""
    pytest.importorskip("octavo.backends.native._native")
    code = """
import octavo.backends.interface as interface
interface.INTERFACE += 1
from octavo.backends.select import NoBackendError, select
try:
    select("auto")
except NoBackendError as error:
    print(error)
print(select("torch").name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if "PyTorch is not installed" not in done.stderr:
        assert done.stdout.endswith("torch\n"), done.stderr
    assert f"has interface {INTERFACE}" in done.stdout
    assert "build it again" in done.stdout


def test_python_and_the_module_have_one_number() -> None:
    header = Path(__file__).parents[2] / "csrc/bind/parts.h"
    assert f"constexpr int kInterface = {INTERFACE};" in header.read_text()
    check_interface(INTERFACE, "")
    with pytest.raises(OldModuleError, match=f"has interface {INTERFACE - 1}"):
        check_interface(INTERFACE - 1, "_native.so")


def test_the_native_road_imports_no_torch() -> None:
    """A model is bound, recorded and run in a process where torch cannot be had."""
    code = """
import sys
sys.modules["torch"] = None
import octavo, octavo.engine.build, octavo.backends.native.backend
from octavo.backends.native.backend import NativeBackend
print(len(NativeBackend().tier) > 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
