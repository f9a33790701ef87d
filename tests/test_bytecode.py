"""The file of bytecode: what is read from it, what is not, and that nothing depends on it."""

import os
import shutil
import stat
import subprocess
import sys
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from octavo import bytecode

KEPT, PYTHON = "_Loader", "SourceFileLoader"
# What each process prints: how each module was loaded, and its value.
SHOW = """
import octavo.one, octavo.below.two
for module in (octavo.one, octavo.below, octavo.below.two):
    print(type(module.__spec__.loader).__name__, module.VALUE)
"""
FIRST = [f"{PYTHON} 1", f"{PYTHON} 2", f"{PYTHON} 3"]
KEPT_ALL = [f"{KEPT} 1", f"{KEPT} 2", f"{KEPT} 3"]


class Installed:
    """A small package with the real file of bytecode, installed in a directory of its own."""

    def __init__(self, home: Path, cache: Path) -> None:
        self.home, self.cache = home, cache
        package = home / "octavo"
        (package / "below").mkdir(parents=True)
        source = Path(bytecode.__file__).parent
        for name in ("bytecode.py", "env.py"):
            shutil.copy(source / name, package / name)
        (package / "__init__.py").write_text(
            "from octavo.bytecode import use_kept_bytecode\nuse_kept_bytecode()\n"
        )
        (package / "one.py").write_text("VALUE = 1\n")
        (package / "below" / "__init__.py").write_text("VALUE = 2\n")
        (package / "below" / "two.py").write_text("VALUE = 3\ndef fail():\n    raise ValueError\n")

    def run(self, program: str = SHOW, **variables: str) -> list[str]:
        """Return the lines that a new process prints; it must not fail."""
        found = subprocess.run(
            [sys.executable, "-c", program],
            cwd=self.home,
            env={"PYTHONPATH": str(self.home), "OCTAVO_CACHE": str(self.cache), **variables},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert found.returncode == 0, found.stderr
        assert not found.stderr
        return found.stdout.splitlines()

    @property
    def files(self) -> list[Path]:
        directory = self.cache / "bytecode"
        return sorted(directory.iterdir()) if directory.is_dir() else []

    def change(self, module: str, text: str) -> None:
        """Change a source; its time differs by a second at least, as Python requires."""
        path = self.home / "octavo" / module
        time = path.stat().st_mtime + 2
        path.write_text(text)
        os.utime(path, (time, time))


@pytest.fixture
def installed(tmp_path: Path) -> Installed:
    return Installed(tmp_path / "home", tmp_path / "cache")


def test_the_second_process_reads_one_file(installed: Installed) -> None:
    assert installed.run() == FIRST
    (file,) = installed.files
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    before = file.read_bytes()
    assert installed.run() == KEPT_ALL
    assert file.read_bytes() == before


def test_a_changed_module_is_compiled_again(installed: Installed) -> None:
    installed.run()
    installed.change("below/two.py", "VALUE = 33\n")
    assert installed.run() == [*KEPT_ALL[:2], f"{PYTHON} 33"]
    assert installed.run() == [*KEPT_ALL[:2], f"{KEPT} 33"]


def test_a_module_that_is_gone_is_gone(installed: Installed) -> None:
    installed.run()
    (installed.home / "octavo" / "one.py").unlink()
    show = "import octavo.below\ntry: import octavo.one\nexcept ImportError: print('gone')"
    assert installed.run(show) == ["gone"]


def test_modules_know_where_they_are(installed: Installed) -> None:
    show = """
import inspect, traceback, octavo.below.two
two = octavo.below.two
print(two.__file__, two.__cached__, two.__spec__.origin, octavo.below.__path__)
print(inspect.getsource(two.fail).split()[1])
try: two.fail()
except ValueError: print(traceback.format_exc().splitlines()[-2].strip())
"""
    first = installed.run(show)
    source = installed.home / "octavo" / "below" / "two.py"
    assert first[0].split()[:2] == [str(source), cache_from_source(str(source))]
    assert first[1:] == ["fail():", "raise ValueError"]
    assert installed.run(show) == first


def test_a_moved_package_tells_tracebacks_its_new_place(installed: Installed) -> None:
    installed.run()
    installed.home = installed.home.rename(installed.home.with_name("moved"))
    show = "import octavo.one\nprint(octavo.one.__spec__.loader.get_code('octavo.one').co_filename)"
    for _ in range(2):
        assert installed.run(show) == [str(installed.home / "octavo" / "one.py")]


@pytest.mark.parametrize("part", [0, 8, 12, 16, 20, 400, -400, -1], ids=str)
def test_damage_costs_time_alone(installed: Installed, part: int) -> None:
    installed.run()
    (file,) = installed.files
    data = bytearray(file.read_bytes())
    data[part] ^= 0x55
    file.write_bytes(data)
    assert [line[-1] for line in installed.run()] == ["1", "2", "3"]
    installed.run()
    assert installed.run() == KEPT_ALL


@pytest.mark.parametrize("size", [0, 5, 19, 20, 400])
def test_a_file_that_ends_early_costs_time_alone(installed: Installed, size: int) -> None:
    installed.run()
    os.truncate(installed.files[0], size)
    assert installed.run() == FIRST
    assert installed.run() == KEPT_ALL


@pytest.mark.parametrize("mode", [0o620, 0o602], ids=oct)
def test_what_others_can_write_is_not_read(installed: Installed, mode: int) -> None:
    installed.run()
    (file,) = installed.files
    file.chmod(mode)
    assert installed.run() == FIRST
    assert installed.run() == KEPT_ALL  # the process before has put a new file in its place


def test_a_link_and_a_pipe_are_not_read(installed: Installed, tmp_path: Path) -> None:
    installed.run()
    (file,) = installed.files
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert installed.run() == FIRST
    file.unlink()
    os.mkfifo(file)
    assert installed.run() == FIRST
    assert installed.run() == KEPT_ALL


def test_nothing_is_written_where_python_may_not_write(installed: Installed) -> None:
    assert installed.run(PYTHONDONTWRITEBYTECODE="1") == FIRST
    assert installed.files == []


def test_a_cache_that_cannot_be_written_is_no_error(installed: Installed) -> None:
    installed.cache.write_text("a file where a directory should be")
    assert installed.run() == FIRST
    assert installed.run(HOME="/nowhere", OCTAVO_CACHE="") == FIRST


def test_another_level_of_optimisation_has_a_file_of_its_own(installed: Installed) -> None:
    installed.run()
    assert installed.run(PYTHONOPTIMIZE="2") == FIRST
    assert len(installed.files) == 2
    assert installed.run(PYTHONOPTIMIZE="2") == KEPT_ALL
    assert installed.run() == KEPT_ALL


def test_old_files_of_other_places_are_removed(installed: Installed) -> None:
    directory = installed.cache / "bytecode"
    directory.mkdir(parents=True)
    for age in range(20):
        old = directory / f"{age:016x}.cpython-311-0"
        old.touch()
        os.utime(old, (age, age))
    (directory / "mine").touch()
    os.utime(directory / "mine", (0, 0))
    installed.run()
    kept = {file.name.partition(".")[0] for file in installed.files}
    assert len(kept) == 9
    assert {f"{19:016x}", f"{13:016x}", "mine"} < kept
    assert f"{12:016x}" not in kept


def test_a_file_in_use_is_not_the_oldest(installed: Installed) -> None:
    installed.run()
    (file,) = installed.files
    os.utime(file, (1, 1))
    assert installed.run() == KEPT_ALL
    assert file.stat().st_mtime > 1


def test_a_file_that_is_cut_while_it_is_in_use_costs_time_alone(installed: Installed) -> None:
    installed.run()
    cut = f"import octavo.one, os\nos.truncate({str(installed.files[0])!r}, 30)\n"
    lines = installed.run(cut + SHOW)
    assert [line[-1] for line in lines] == ["1", "2", "3"]


def test_another_version_of_the_same_times_and_sizes_is_run(installed: Installed) -> None:
    installed.run()
    package = installed.home / "octavo"
    path, cached = package / "one.py", Path(cache_from_source(str(package / "one.py")))
    before = path.stat()
    path.unlink()
    cached.unlink()
    path.write_text("VALUE = 7\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert installed.run() == [f"{PYTHON} 7", *KEPT_ALL[1:]]


def test_another_copy_of_the_package_is_imported_from_its_own_place(
    installed: Installed, tmp_path: Path
) -> None:
    installed.run()
    other = Installed(tmp_path / "other", tmp_path / "cache")
    (other.home / "octavo" / "one.py").write_text("VALUE = 7\n")
    program = f"""
import sys, octavo.one
for name in [name for name in sys.modules if name.startswith("octavo")]:
    del sys.modules[name]
sys.path.insert(0, {str(other.home)!r})
import octavo.one
print(octavo.one.VALUE)
"""
    assert installed.run(program) == ["7"]


def test_a_hook_from_before_sees_each_module(installed: Installed) -> None:
    installed.run()
    program = """
import sys
class Hook:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("octavo."):
            print(name)
sys.meta_path.insert(0, Hook())
import octavo.one
"""
    assert "octavo.one" in installed.run(program)


def test_a_child_that_was_forked_writes_nothing(installed: Installed) -> None:
    fork = "import os, octavo.one\nif os.fork() == 0: raise SystemExit\nos.wait()\nos._exit(0)"
    installed.run(fork)
    assert installed.files == []
