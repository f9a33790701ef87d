"""`make serve` installs the product alone; a phase of a set-up is a line with its seconds."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.env import child_environment
from tests.tidy.source import ROOT


def planned(tree: Path, target: str) -> str:
    """Return the commands that make would run in a tree."""
    done = subprocess.run(
        ["make", "--dry-run", target],
        cwd=tree,
        capture_output=True,
        text=True,
        check=True,
        env=child_environment({"MAKEFLAGS": "", "MAKELEVEL": ""}),
    )
    return done.stdout


def fresh(place: Path) -> Path:
    """Return a tree with what the set-up looks at, in which nothing has been made."""
    for name in (
        "Makefile",
        "pyproject.toml",
        "CMakeLists.txt",
        ".ci/phase",
        ".ci/needs",
        "requirements",
    ):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, place / name)
        else:
            shutil.copy(ROOT / name, place / name)
    (place / "csrc").mkdir()
    return place


def test_the_server_needs_no_pytorch_and_no_development_tools(tmp_path: Path) -> None:
    commands = planned(fresh(tmp_path), "serve")
    assert "torch" not in commands
    assert "-r requirements/dev.txt" not in commands
    assert "install -c requirements/dev.txt -r build/product.txt" in commands
    assert "exec .venv-serve/bin/octavo serve" in commands
    assert "-r requirements/torch.txt" in planned(tmp_path, "setup")


def test_the_server_builds_the_engine_for_this_processor_alone(tmp_path: Path) -> None:
    quick = ("-DOCTAVO_TIERS=native", "-DOCTAVO_TEST_MODULE=OFF", "-DCMAKE_UNITY_BUILD=ON")
    commands = planned(fresh(tmp_path), "serve")
    assert all(each in commands for each in quick)
    everything = planned(tmp_path, "setup")
    assert "-DOCTAVO_IN_TREE=ON" in everything
    assert not any(each in everything for each in quick)


def configured(build: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Configure the native engine as `make serve` does."""
    programs = Path(sys.executable).parent
    words = [str(programs / "cmake"), "-S", str(ROOT), "-B", str(build), "-G", "Ninja"]
    words += [f"-DCMAKE_MAKE_PROGRAM={programs / 'ninja'}", f"-DPython_EXECUTABLE={sys.executable}"]
    return subprocess.run([*words, *options], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_tiers_for_this_processor_are_the_plain_one_and_the_best(tmp_path: Path) -> None:
    native = pytest.importorskip("octavo.backends.native._native")
    if not (Path(sys.executable).parent / "cmake").exists():
        pytest.skip("CMake is not in this environment")
    done = configured(tmp_path, "-DOCTAVO_TIERS=native")
    assert done.returncode == 0, done.stderr
    listed = (tmp_path / "generated" / "ENGINE" / "tiers.inc").read_text()
    tiers = re.findall(r"OCTAVO_EACH_TIER\((\w+)\)", listed)
    kernels = set(re.findall(r"octavo_tier_(\w+)\.dir", (tmp_path / "build.ninja").read_text()))
    assert set(tiers) == kernels
    assert tiers[0] == "scalar"
    assert native.tiers()[-1] in tiers
    assert len(tiers) <= 3
    done = configured(tmp_path, "-DOCTAVO_TIERS=sse9")
    assert done.returncode != 0
    assert "there is no tier 'sse9'" in " ".join(done.stderr.split())


@pytest.mark.slow
def test_the_files_of_a_folder_can_be_compiled_as_one_unit(tmp_path: Path) -> None:
    """`make serve` does that: two of them may not use one name for different things."""
    if not (Path(sys.executable).parent / "cmake").exists():
        pytest.skip("CMake is not in this environment")
    unity = ("-DCMAKE_UNITY_BUILD=ON", "-DCMAKE_UNITY_BUILD_BATCH_SIZE=0")
    done = configured(tmp_path, "-DOCTAVO_TIERS=scalar", "-DOCTAVO_TEST_MODULE=OFF", *unity)
    assert done.returncode == 0, done.stderr
    units = subprocess.run(
        [Path(sys.executable).parent / "ninja", "-C", tmp_path, "-t", "compdb"],
        capture_output=True,
        text=True,
        check=True,
    )
    commands = [
        entry["command"]
        for entry in json.loads(units.stdout)
        if re.search("(_native|octavo_core).dir/Unity/.*cxx$", entry["file"])
    ]
    files = (path.relative_to(ROOT / "csrc") for path in (ROOT / "csrc").rglob("*.cpp"))
    folders = {file.parts[0] for file in files} - {"isa", "kernels"}  # compiled for each tier
    assert len(commands) == len(folders)
    for command in commands:
        words = [*shlex.split(command), "-fsyntax-only"]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_an_environment_that_is_there_is_used(tmp_path: Path) -> None:
    tree = fresh(tmp_path)
    (tree / ".venv").mkdir()
    for stamp in (".venv", ".dev", ".octavo"):
        (tree / ".venv" / stamp).touch()
    commands = planned(tree, "serve")
    assert "exec .venv/bin/octavo serve" in commands
    assert ".venv-serve" not in commands
    assert "pip" not in commands


def test_what_a_changed_pyproject_asks_for_is_installed(tmp_path: Path) -> None:
    tree = fresh(tmp_path)
    stamps = [tree / ".venv-serve" / name for name in (".venv", ".dev", ".octavo")]
    for made in (tree / "build" / "product.txt", *stamps):
        made.parent.mkdir(exist_ok=True)
        made.touch()
    installs = "install -c requirements/dev.txt -r build/product.txt"
    assert installs not in planned(tree, "serve")
    late = stamps[-1].stat().st_mtime + 60
    os.utime(tree / "pyproject.toml", (late, late))
    assert installs in planned(tree, "serve")


def test_the_product_is_what_pyproject_asks_for(tmp_path: Path) -> None:
    tree = fresh(tmp_path)
    subprocess.run(["make", "--silent", "build/product.txt"], cwd=tree, check=True)
    lines = (tree / "build" / "product.txt").read_text().splitlines()
    names = {re.split(r"[^\w-]", line)[0] for line in lines}
    assert {"numpy", "tokenizers", "huggingface_hub", "nanobind", "cmake"} <= names
    assert not {"torch", "pytest", "mypy", "transformers"} & names
    pinned = (ROOT / "requirements" / "dev.txt").read_text().lower().replace("_", "-")
    for name in names:  # every version is known
        assert f"\n{name.lower().replace('_', '-')}==" in pinned


PHASE = str(ROOT / ".ci" / "phase")
NEEDS = str(ROOT / ".ci" / "needs")


def ran(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the set-up to its end."""
    return subprocess.run(
        words, capture_output=True, text=True, check=False, env=child_environment(variables)
    )


def test_a_phase_has_its_seconds_and_its_exit_code() -> None:
    done = ran(PHASE, "looking", "echo", "found")
    assert done.returncode == 0
    assert re.fullmatch(r"looking … \d+ s\n", done.stdout)
    assert done.stderr == ""


def test_a_phase_that_fails_shows_what_was_printed() -> None:
    done = ran(PHASE, "failing", "sh", "-c", "echo to one; echo to another >&2; exit 7")
    assert done.returncode == 7
    assert re.fullmatch(r"failing … failed after \d+ s\n", done.stdout)
    assert done.stderr == "to one\nto another\n"


def test_a_phase_shows_its_last_line_at_a_terminal(tmp_path: Path) -> None:
    """The line is gone when the phase ends, which it does once the line was seen."""
    seen, gate = bytearray(), tmp_path / "gate"
    controller, terminal = os.openpty()
    wait = f"echo fetching numpy; until [ -e {gate} ]; do sleep 0.05; done"
    phase = subprocess.Popen([PHASE, "installing", "sh", "-c", wait], stdout=terminal)
    os.close(terminal)
    try:
        while b"s  fetching numpy" not in seen:
            seen += os.read(controller, 4096)
        gate.touch()
        assert phase.wait(300) == 0
        while not re.search(rb"\r\x1b\[Kinstalling \xe2\x80\xa6 \d+ s\r\n$", seen):
            seen += os.read(controller, 4096)
    finally:
        phase.kill()
        phase.wait()
        os.close(controller)


def test_what_a_set_up_lacks_is_said_at_once(tmp_path: Path) -> None:
    """A Python without headers and venv, and no compiler: one line with what to install."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    bare = tmp_path / "python3"
    bare.write_text(
        f'#!/bin/sh\ncase "$2" in *version_info*) exec {sys.executable} "$@";; esac\nexit 1\n'
    )
    bare.chmod(0o755)
    done = ran(NEEDS, "serve", str(bare), "venv", "compiler", CXX="no-such-compiler")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    for each in ("Python's venv", "a C++ compiler", "Python's headers", "make serve"):
        assert each in done.stderr
    if shutil.which("apt-get"):
        assert f"apt install python{version}-venv g++ python{version}-dev " in done.stderr


def test_a_compiler_of_an_older_language_is_refused(tmp_path: Path) -> None:
    old = tmp_path / "old-compiler"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    done = ran(NEEDS, "serve", sys.executable, "compiler", CXX=str(old))
    assert done.returncode == 1
    assert "knows C++20" in done.stderr
    assert "a C++ compiler" in done.stderr


def test_a_python_that_is_not_there_is_named() -> None:
    done = ran(NEEDS, "setup", "no-such-python", "venv", "compiler")
    assert done.returncode == 1
    assert "'no-such-python' is not there" in done.stderr
    assert "make setup PYTHON=" in done.stderr


def test_the_server_says_what_it_lacks_before_it_installs_anything(tmp_path: Path) -> None:
    commands = planned(fresh(tmp_path), "serve")
    needs = commands.index(".ci/needs serve python3 venv compiler")
    assert needs < commands.index("-m venv")
