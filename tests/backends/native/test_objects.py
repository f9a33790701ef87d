"""Object files contain no code for newer processors where older ones run: disassembled."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
WIDE_REGISTER = re.compile(r"%[yz]mm\d")
# Symbols that the linker may take from one object for all the others: weak ones of every kind.
SHARED_SYMBOLS = re.compile(r"^\S+ [WVu] (\S+)$", re.MULTILINE)


def objects(pattern: str) -> list[Path]:
    """Return the newest build's objects of these sources; skip if nothing was built here."""
    found = ROOT.glob("build/*/CMakeFiles/octavo_core.dir/csrc")
    # Builds with sanitizers have other flags, and are not shipped.
    builds = [path.parent for path in found if "/build/sanitize-" not in str(path)]
    if not builds:
        pytest.skip("the native engine was not built in this directory")
    newest = max(builds, key=lambda path: (path / "csrc").stat().st_mtime).parent
    return sorted(newest.glob(f"*.dir/csrc/{pattern}"))


def output_of(*command: str | Path) -> str:
    if shutil.which(str(command[0])) is None:
        pytest.skip(f"{command[0]} is not installed")
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize(
    "pattern",
    [
        "bind/**/*.o",
        "pack/*.o",
        "program/*.o",
        "runtime/*.o",
        "sampling/*.o",
        "step/*.o",
        "isa/scalar/*.o",
        "isa/*/runs*.o",
    ],
)
def test_what_every_processor_runs_uses_no_wide_registers(pattern: str) -> None:
    found = objects(pattern)
    assert found
    for path in found:
        code = output_of("objdump", "-d", "--no-show-raw-insn", path)
        assert WIDE_REGISTER.findall(code)[:3] == [], path.name


def test_wide_registers_are_found_where_they_are() -> None:
    [path] = objects("isa/avx512bf16/kernels.cpp.o")
    assert WIDE_REGISTER.search(output_of("objdump", "-d", "--no-show-raw-insn", path))


TILE_INSTRUCTION = re.compile(r"\b(ldtilecfg|tile[a-z0-9]+|tdp[a-z0-9]+)\b")
TILE_PRODUCT = re.compile(r"\b(tdp\w+)\s+%tmm(\d),%tmm(\d),%tmm(\d)")


def test_tiles_are_used_by_their_tier_alone() -> None:
    used = {
        path.parent.name: set(TILE_INSTRUCTION.findall(output_of("objdump", "-d", path)))
        for path in objects("isa/*/kernels.cpp.o")
    }
    expected = {"ldtilecfg", "tilerelease", "tilezero", "tileloadd", "tilestored"}
    assert used.pop("amx") == expected | {"tdpbf16ps", "tdpbssd"}
    assert "amx_emulated" in used
    assert not any(used.values())


def test_products_of_tiles_add_rows_by_weights_to_their_quarter() -> None:
    """Disassembled: the weights' tile comes first, then the rows', then that of the sums."""
    [path] = objects("isa/amx/kernels.cpp.o")
    found = set(TILE_PRODUCT.findall(output_of("objdump", "-d", path)))
    quarters = {("6", "4", "0"), ("7", "4", "1"), ("6", "5", "2"), ("7", "5", "3")}
    assert found == {(name, *tiles) for name in ("tdpbf16ps", "tdpbssd") for tiles in quarters}


def test_kernels_of_newer_processors_share_no_function() -> None:
    """A weak function compiled with their flags could be the copy that the linker keeps."""
    found = [path for path in objects("isa/*/kernels.cpp.o") if path.parent.name != "scalar"]
    assert found
    for path in found:
        shared = SHARED_SYMBOLS.findall(output_of("nm", "--defined-only", path))
        assert not shared, f"{path.parent.name} has {shared[:3]}"
