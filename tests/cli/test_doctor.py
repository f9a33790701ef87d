"""`octavo doctor` reports what is missing, and what to do."""

from __future__ import annotations

import importlib.util
import json
import re
import tomllib
from pathlib import Path

import pytest

from octavo import env
from octavo.backends.kind import Caps
from octavo.backends.native import _native
from octavo.backends.native.kernel_choice import Choice, Trial
from octavo.backends.native.kind import NativeKind
from octavo.backends.native.measured_file import MeasuredFile, machine_key
from octavo.backends.torch.kind import TorchKind
from octavo.cli import doctor, main
from octavo.cli.commands import FAILED, OK
from octavo.cli.doctor import verdict
from octavo.observe import machine
from octavo.observe import memory_nodes as nodes_module
from octavo.observe.finding import Finding
from octavo.observe.memory_nodes import MemoryNode
from tests.tidy.source import ROOT


@pytest.mark.usefixtures("caches")
def test_a_machine_that_runs_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == OK
    text = capsys.readouterr().out
    for what in ("Python", "cores", "memory", "torch backend", "model cache", "open files"):
        assert what in text
    assert main(["doctor", "--json"]) == OK
    told = json.loads(capsys.readouterr().out)
    assert text.rstrip().endswith(told["verdict"])


@pytest.mark.usefixtures("caches")
@pytest.mark.parametrize("has_native", [True, False])
def test_a_backend_that_is_missing_is_told(
    has_native: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without_torch = Caps("PyTorch is not installed", "pip install 'octavo[torch]'")
    monkeypatch.setattr(TorchKind, "caps", lambda *_: without_torch)
    if not has_native:
        without_native = Caps("it is not built", "install a compiler")
        monkeypatch.setattr(NativeKind, "caps", lambda *_: without_native)
    assert main(["doctor"]) == (0 if has_native else FAILED)
    text = capsys.readouterr().out
    assert ("with kernels for scalar" in text) is has_native
    assert ("→ pip install 'octavo[torch]'" in text) is not has_native
    assert ("No model can run here yet: native backend: install" in text) is not has_native


def test_kernels_that_are_not_used_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "dropped_tiers", lambda: {"amx": "its products have other bits"})
    (found,) = [each for each in doctor.backends() if each.what == "kernels for amx"]
    assert found.found == "not used: its products have other bits"
    assert found.advice
    assert not found.is_fatal


def test_it_looks_for_what_the_package_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    required = {re.split(r"[>;=<\[ ]", line)[0] for line in project["dependencies"]}
    assert required == {doctor._DISTRIBUTIONS.get(name, name) for name in doctor._NEEDED}


def test_a_package_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "zmq" else name)
    (first, *_) = doctor.packages()
    assert (first.found, first.advice) == ("without zmq", "pip install pyzmq")
    assert first.is_fatal


def test_a_kernel_without_filters_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    (good,) = doctor.confinement()
    monkeypatch.setattr("octavo.confine.filter.why_unavailable", lambda: "it has none")
    (bad,) = doctor.confinement()
    assert (bad.found, bool(bad.advice), bad.is_fatal) == ("it has none", True, False)
    assert good.what == bad.what == "confinement"


def test_little_memory_and_small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        machine, "memory", lambda: machine.Memory(1 << 30, 1 << 20, "the container")
    )
    monkeypatch.setattr(machine, "huge_pages", lambda: "never")
    monkeypatch.setattr(
        nodes_module, "memory_nodes", lambda: [MemoryNode(each, ((each,),)) for each in (2, 3)]
    )
    memory, pages, nodes = doctor.memory()
    assert memory.found == "1 MiB free of 1 GiB, limited by the container"
    assert "octavo fit MODEL" in memory.advice
    assert "transparent_hugepage" in pages.advice
    assert nodes.found == "2, 3"
    assert "--membind=2" in nodes.advice
    monkeypatch.setattr(nodes_module, "memory_nodes", lambda: [MemoryNode(0, ((0,),))])
    assert len(doctor.memory()) == 2


def test_a_cache_that_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("")
    (tmp_path / "lost").symlink_to(tmp_path / "nowhere")
    for place in (file, file / "below", tmp_path / "lost"):
        monkeypatch.setenv("OCTAVO_CACHE", str(place))
        assert "OCTAVO_CACHE" in doctor.caches()[0].advice


def test_a_cache_that_cannot_be_written(caches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    ours, packed, hub = doctor.caches()
    assert "cannot be written" in ours.found
    assert "OCTAVO_CACHE" in ours.advice
    assert not packed.advice
    assert not hub.advice
    assert str(caches) in ours.found


@pytest.mark.parametrize(
    ("findings", "line"),
    [
        ([Finding("a", "b")], "All is well"),
        ([Finding("a", "b", "do it"), Finding("c", "d")], "1 things could be better"),
        ([Finding("a", "b", "do it"), Finding("c", "d", "now", True)], "yet: c: now."),
    ],
)
def test_the_verdict(findings: list[Finding], line: str) -> None:
    assert line in verdict(findings)


def test_the_measured_kernels_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kernels() -> list[str]:
        return [found.found for found in doctor.backends() if found.what == "kernels"]

    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path))
    monkeypatch.delenv("OCTAVO_CPU_ISA", raising=False)
    assert kernels()[0].startswith("the best instruction set for everything")
    monkeypatch.setenv("OCTAVO_CPU_CALIBRATION", "on")
    assert kernels() == ["not measured yet: the first engine that starts here does it"]
    file = MeasuredFile(env.measured_kernels_file(), machine_key())
    file.note_order("fma", {Trial("wide", "BF16", 8, 8192, False): 2e-6})
    file.note_products("wide", "U8", [Choice(0, "wide", 2048, 2e-6, 1e-6)])
    assert kernels() == [
        "bf16 sums in the order fma: a warm panel takes wide 8 rows 2.0 µs",
        "U8 beside wide: to 1 rows 1.0 µs (2,048 bytes ahead, 2.0 µs by default)",
    ]
    monkeypatch.setenv("OCTAVO_CPU_ISA", "avx2")
    assert kernels() == ["avx2 for everything, by OCTAVO_CPU_ISA"]


@pytest.mark.parametrize(
    ("variable", "value", "right"),
    [
        ("OCTAVO_CPU_ISA", "avx9", "scalar"),
        ("OCTAVO_CPU_CALIBRATION", "no", "on or off"),
        ("OCTAVO_CPU_THREADS", "two", "a whole number"),
    ],
)
def test_a_variable_with_which_no_engine_starts_is_fatal(
    variable: str, value: str, right: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    (found,) = [each for each in doctor.backends() if each.what == "kernels"]
    assert found.is_fatal
    assert f"{variable}={value!r}" in found.found
    assert right in found.found
