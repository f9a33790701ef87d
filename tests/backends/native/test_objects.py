"""Object files contain no code for newer processors where older ones run: disassembled."""

import platform
import re
import shutil
import subprocess
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# Symbols that the linker may take from one object for all the others: weak ones of every kind.
SHARED_SYMBOLS = re.compile(r"^\S+ [WVu] (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Machine:
    """A kind of processor: what only newer ones run, as `objdump` writes it, and their tier."""

    newer: re.Pattern[str]
    best_tier: str


MACHINES = {
    "x86_64": Machine(re.compile(r"%[yz]mm\d"), "avx512bf16"),
    "aarch64": Machine(re.compile(r"\t(?:us|s|u|bf)(?:dot|mmla)\t|\tbfcvt|\tz\d"), "neonbf16"),
}
each_machine = pytest.mark.parametrize(
    "machine", [name for name in MACHINES if name in ("aarch64", platform.machine())]
)


def objects(machine: str, pattern: str) -> list[Path]:
    """Return the newest build's objects of these sources; skip if nothing was built here."""
    # A tree may have builds for several machines; those with sanitizers have other flags, and are
    # not shipped.
    builds = [
        path
        for builds in ("build/*", "build/arm/native")
        for path in ROOT.glob(f"{builds}/CMakeFiles")
        if (path / f"octavo_tier_{MACHINES[machine].best_tier}.dir" / "csrc").is_dir()
        and "/build/sanitize-" not in str(path)
    ]
    if not builds:
        pytest.skip(f"the native engine was not built for {machine} in this directory")
    newest = max(builds, key=lambda path: (path / "octavo_core.dir" / "csrc").stat().st_mtime)
    return sorted(newest.glob(pattern))


def kernels(machine: str, tier: str) -> dict[str, list[Path]]:
    """Return the objects of the tiers' kernels, by tier."""
    found: dict[str, list[Path]] = {}
    for path in objects(machine, f"octavo_tier_{tier}.dir/csrc/kernels/units/*.o"):
        found.setdefault(path.parents[3].name.removeprefix("octavo_tier_")[:-4], []).append(path)
    return found


def output_of(machine: str, program: str, *arguments: str | Path) -> str:
    # Under an emulator, the program without a prefix is the host's.
    commands = (f"{machine}-linux-gnu-{program}", program)
    command = next((each for each in commands if shutil.which(each)), None)
    if command is None:
        pytest.skip(f"{program} is not installed")
    return subprocess.run([command, *arguments], check=True, capture_output=True, text=True).stdout


def code_of(machine: str, path: Path) -> str:
    return output_of(machine, "objdump", "-d", "--no-show-raw-insn", path)


@each_machine
@pytest.mark.parametrize(
    "pattern",
    [
        "*.dir/csrc/bind/**/*.o",
        "*.dir/csrc/pack/*.o",
        "*.dir/csrc/program/*.o",
        "*.dir/csrc/runtime/*.o",
        "*.dir/csrc/sampling/*.o",
        "*.dir/csrc/step/*.o",
        "*.dir/csrc/text/*.o",
        "octavo_tier_scalar.dir/**/*.o",
        "*.dir/csrc/isa/*/runs*.o",
    ],
)
def test_what_every_processor_runs_has_no_newer_instructions(machine: str, pattern: str) -> None:
    found = objects(machine, pattern)
    assert found
    for path in found:
        assert MACHINES[machine].newer.findall(code_of(machine, path))[:3] == [], path.name


@each_machine
def test_newer_instructions_are_found_where_they_are(machine: str) -> None:
    best = MACHINES[machine].best_tier
    paths = kernels(machine, best)[best]
    assert [path.name for path in paths] == ["attention.cpp.o", "codes.cpp.o", "kernels.cpp.o"]
    for path in paths:
        assert MACHINES[machine].newer.search(code_of(machine, path)), path.name


only_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="AMX is x86's")
TILE_INSTRUCTION = re.compile(r"\b(ldtilecfg|tile[a-z0-9]+|tdp[a-z0-9]+)\b")
TILE_PRODUCT = re.compile(r"\b(tdp\w+)\s+%tmm(\d),%tmm(\d),%tmm(\d)")


@only_x86
def test_tiles_are_used_by_their_tier_alone() -> None:
    used = {
        tier: {
            found for path in paths for found in TILE_INSTRUCTION.findall(code_of("x86_64", path))
        }
        for tier, paths in kernels("x86_64", "*").items()
    }
    expected = {"ldtilecfg", "tilerelease", "tilezero", "tileloadd", "tilestored"}
    assert used.pop("amx") == expected | {"tdpbf16ps", "tdpbssd"}
    assert "amx_emulated" in used
    assert not any(used.values())


@only_x86
def test_products_of_tiles_add_rows_by_weights_to_their_quarter() -> None:
    """Disassembled: the weights' tile comes first, then the rows', then that of the sums."""
    found = {
        product
        for path in kernels("x86_64", "amx")["amx"]
        for product in TILE_PRODUCT.findall(code_of("x86_64", path))
    }
    quarters = {("6", "4", "0"), ("7", "4", "1"), ("6", "5", "2"), ("7", "5", "3")}
    assert found == {(name, *tiles) for name in ("tdpbf16ps", "tdpbssd") for tiles in quarters}


@each_machine
def test_kernels_of_newer_processors_share_no_function(machine: str) -> None:
    """A weak function compiled with their flags could be the copy that the linker keeps."""
    found = kernels(machine, "*")
    found.pop("scalar")
    assert found
    for tier, paths in found.items():
        for path in paths:
            shared = SHARED_SYMBOLS.findall(output_of(machine, "nm", "--defined-only", path))
            assert not shared, f"{tier} has {shared[:3]}"


def test_the_wheel_for_arm_has_one_extension_module() -> None:
    """Modules built in the checkout for tests or for other processors are not in it."""
    wheels = list(ROOT.glob("build/arm/dist/*.whl"))
    if not wheels:
        pytest.skip("`make test-arm` has not built a wheel here")
    [wheel] = wheels
    assert wheel.stem.endswith("-linux_aarch64")
    with zipfile.ZipFile(wheel) as archive:
        modules = [Path(name).name for name in archive.namelist() if name.endswith(".so")]
    assert [name.split(".")[0] for name in modules] == ["_native"]
    assert modules[0].endswith("-aarch64-linux-gnu.so")
