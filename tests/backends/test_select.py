"""Which backend runs, and what is said where none does."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from octavo.backends.interface import ROOT, OldModuleError, check_interface, interface
from octavo.backends.kind import Caps
from octavo.backends.native import _native
from octavo.backends.native.kind import NativeKind
from octavo.backends.select import NoBackendError, select
from octavo.backends.torch.kind import TorchKind
from octavo.core.config import ConfigError
from octavo.options import backends
from octavo.options.backends import Entry
from octavo.options.engine import EngineArguments


@pytest.fixture
def nothing_native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NativeKind, "caps", lambda self, size: Caps("not built", "build it"))


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TorchKind, "caps", lambda self, size: Caps("not installed"))


def test_native_is_the_first_choice() -> None:
    pytest.importorskip("torch")
    chosen = select("auto")
    assert (chosen.entry.name, chosen.is_fallback) == ("native", False)
    assert select("torch").entry.name == "torch"


def test_blocks_that_the_kernels_do_not_take_go_to_torch() -> None:
    pytest.importorskip("torch")
    choice = select("auto", block_size=4)
    assert (choice.entry.name, choice.is_fallback) == ("torch", True)
    assert "block_size=4 is not a multiple of 16" in choice.reason


@pytest.mark.usefixtures("nothing_native")
def test_without_the_extension_torch_runs_and_says_why() -> None:
    pytest.importorskip("torch")
    assert "native: not built: build it" in select("auto").reason
    with pytest.raises(NoBackendError, match="backend='native' cannot run: not built: build it"):
        select("native")


@pytest.mark.usefixtures("nothing_native", "no_torch")
def test_where_nothing_runs_both_reasons_are_given() -> None:
    with pytest.raises(NoBackendError, match=r"native: not built: build it; torch: not installed"):
        select("auto")


class FarKind(TorchKind):
    """A kind whose device is not here."""

    def caps(self, block_size: int | None = None) -> Caps:
        return Caps("there is no such card")


@pytest.fixture
def far_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a backend that computes elsewhere before all others."""
    module = SimpleNamespace(KIND=FarKind())
    monkeypatch.setitem(sys.modules, "octavo.backends.far.kind", module)
    monkeypatch.setattr(backends, "BACKENDS", (Entry("far", "card"), *backends.BACKENDS))


@pytest.mark.usefixtures("far_first")
def test_a_device_leaves_the_backends_that_compute_there() -> None:
    pytest.importorskip("torch")
    assert backends.devices() == ("card", "cpu", "cuda", "fake")
    assert select(device="cpu").reason == "the first that runs here"
    with pytest.raises(NoBackendError, match=r"on device='card': far: there is no such card$"):
        select(device="card")


@pytest.mark.usefixtures("far_first")
def test_a_card_that_is_not_there_makes_no_other_backend_a_fallback() -> None:
    """A fallback takes the place of another backend of the same device."""
    pytest.importorskip("torch")
    chosen = select()
    assert (chosen.entry.name, chosen.is_fallback) == ("native", False)
    assert "far: there is no such card" in chosen.reason
    assert select(block_size=4).is_fallback


@pytest.mark.usefixtures("far_first")
def test_a_device_and_a_backend_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^device='card' .* beside backend='native'"):
        EngineArguments(backend="native", device="card")
    assert EngineArguments(backend="native", device="cpu").device == "cpu"
    assert EngineArguments(device="card").device == "card"


def test_a_module_that_was_built_from_other_sources_is_refused() -> None:
    """A step would read what the module does not have, and end the process."""
    pytest.importorskip("octavo.backends.native._native")
    code = """
import octavo.backends.interface as interface
interface.interface = lambda root: "another"
from octavo.backends.select import NoBackendError, select
try:
    select("auto")
except NoBackendError as error:
    print(error)
for _ in range(2):
    try:
        from octavo.backends.native import _native
    except ImportError as error:
        print(type(error).__name__)
print(select("torch").entry.name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if "PyTorch is not installed" not in done.stderr:
        assert done.stdout.endswith("torch\n"), done.stderr
    assert "was built from other sources" in done.stdout
    assert "build it again" in done.stdout
    assert done.stdout.count("OldModuleError\n") == 2  # however often it is imported


def _make_folders(root: Path) -> None:
    for folder in ("bind", "kernels", "link", "nodes", "pack", "program", "runtime", "step"):
        (root / "csrc" / folder).mkdir(parents=True)


def test_sources_that_differ_are_another_interface(tmp_path: Path) -> None:
    """A change cannot be forgotten: a digest is compiled in, and compared in a checkout alone."""
    check_interface(None, "_native.so", tmp_path)  # an installed package has no sources
    _make_folders(tmp_path)
    names = tmp_path / "csrc/kernels/formats.inc"
    names.write_text("OCTAVO_EACH_FORMAT(U8)")
    source = tmp_path / "csrc/program/instruction.h"
    source.write_text("int a;")
    found = interface(tmp_path)
    check_interface(found, "_native.so", tmp_path)
    (tmp_path / "csrc/program/notes").write_text("no source")
    (tmp_path / "csrc/kernels/table.h").write_text("which Python knows nothing of")
    (tmp_path / "csrc/program/.#instruction.h").symlink_to("an-editor@locks-it")
    check_interface(found, "_native.so", tmp_path)
    source.write_text("int b;")
    with pytest.raises(OldModuleError, match=r"module _native\.so was built from other sources"):
        check_interface(found, "_native.so", tmp_path)
    source.write_text("int a;")
    names.write_text("OCTAVO_EACH_FORMAT(U4)")
    with pytest.raises(OldModuleError):
        check_interface(found, "_native.so", tmp_path)
    names.write_text("OCTAVO_EACH_FORMAT(U8)")
    check_interface(found, "_native.so", tmp_path)
    source.rename(source.with_name("other.h"))
    with pytest.raises(OldModuleError):
        check_interface(found, "_native.so", tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "link/frame_link.cpp",  # the form of frames
        "link/part_link.h",  # of the parts of sums
        "link/sealing.cpp",  # how both are sealed
        "nodes/node_sums.cpp",  # which parts go where
        "runtime/sums.h",  # the size of a part
        "step/posted_step.h",
    ],
)
def test_what_nodes_send_each_other_is_of_the_interface(name: str, tmp_path: Path) -> None:
    """Two that would misread each other have another version, with which no node joins."""
    for found in (ROOT / "csrc").iterdir():
        if found.is_dir():
            shutil.copytree(found, tmp_path / "csrc" / found.name)
    before = interface(tmp_path)
    assert before == interface(ROOT) == _native.INTERFACE
    changed = tmp_path / "csrc" / name
    changed.write_text(changed.read_text() + "// another version\n")
    assert interface(tmp_path) != before


def test_sources_that_may_not_be_read_are_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Importing the package fails for no user: the error would be about a file that is not used."""

    def refuse(root: Path) -> str:
        raise PermissionError(13, "Permission denied", str(root / "csrc"))

    _make_folders(tmp_path)
    monkeypatch.setattr("octavo.backends.interface.interface", refuse)
    check_interface(None, "_native.so", tmp_path)


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
