"""A wheel's contents are checked, and its tag is that of the oldest Linux that it runs on."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.deploy.wheel import WheelError, check, oldest_glibc, tagged

ABOUT = "octavo-0.1.0.dist-info"
ABI3 = "octavo/backends/native/_native.abi3.so"
OWN = "octavo/backends/native/_native.cpython-311-x86_64-linux-gnu.so"
BINARY = b"\x7fELF\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBCXX_3.4.29\0libm.so.6\0"


def made(
    folder: Path, tag: str, module: str, leave_out: str = "", added: Sequence[str] = ()
) -> Path:
    """Write a wheel with what is right, but for what is left out or added."""
    path = folder / f"octavo-0.1.0-{tag}-linux_x86_64.whl"
    entries = {
        "octavo/__init__.py": b"",
        "octavo/py.typed": b"",
        module: BINARY,
        f"{ABOUT}/licenses/LICENSE": b"Apache",
        f"{ABOUT}/WHEEL": f"Root-Is-Purelib: false\nTag: {tag}-linux_x86_64\n".encode(),
        f"{ABOUT}/RECORD": b"",
        **dict.fromkeys(added, BINARY),
    }
    with zipfile.ZipFile(path, "w") as wheel:
        for name, content in entries.items():
            if name != leave_out:
                wheel.writestr(name, content)
    return path


def test_a_wheel_gets_the_tag_of_the_oldest_linux(tmp_path: Path) -> None:
    path = tagged(made(tmp_path, "cp312-abi3", ABI3))
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert path.name == "octavo-0.1.0-cp312-abi3-manylinux_2_34_x86_64.whl"
    assert check(path) == BINARY
    assert tagged(path) == path
    with zipfile.ZipFile(path) as wheel:
        text = wheel.read(f"{ABOUT}/WHEEL").decode()
        assert text.splitlines()[1] == "Tag: cp312-abi3-manylinux_2_34_x86_64"
        rows = list(csv.reader(io.StringIO(wheel.read(f"{ABOUT}/RECORD").decode())))
        assert {row[0] for row in rows} == set(wheel.namelist())
        for name, digest, size in rows[:-1]:
            content = wheel.read(name)
            found = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode()
            assert (digest, int(size)) == (f"sha256={found.rstrip('=')}", len(content))


@pytest.mark.parametrize(
    ("needs", "expected"),
    [
        (b"", 17),
        (b"\0GLIBC_2.2.5\0GLIBC_2.28\0", 28),
        (b"\0GLIBC_2.4\0GLIBCXX_3.4.30\0", 35),
        (b"\0GLIBC_2.36\0GLIBCXX_3.4.9\0", 36),
    ],
)
def test_the_oldest_linux_has_both_libraries(needs: bytes, expected: int) -> None:
    assert oldest_glibc(b"\x7fELF" + needs) == expected


def test_symbols_that_no_known_linux_has_are_refused() -> None:
    with pytest.raises(WheelError, match=r"GLIBCXX_3\.4\.99"):
        oldest_glibc(b"\0GLIBCXX_3.4.99\0")


@pytest.mark.parametrize("tag_and_module", [("cp312-abi3", ABI3), ("cp311-cp311", OWN)])
def test_what_is_missing_or_too_much_is_named(
    tmp_path: Path, tag_and_module: tuple[str, str]
) -> None:
    assert check(made(tmp_path, *tag_and_module)) == BINARY
    for name in ("octavo/py.typed", f"{ABOUT}/licenses/LICENSE"):
        with pytest.raises(WheelError, match=f"{name} is missing"):
            check(made(tmp_path, *tag_and_module, leave_out=name))
    with pytest.raises(WheelError, match="0 extension modules"):
        check(made(tmp_path, *tag_and_module, leave_out=tag_and_module[1]))
    for name in (
        *("octavo/__pycache__/x.pyc", "tests/test_a.py", "octavo/Makefile.bak", "build/log"),
        "octavo/backends/native/_native_test.abi3.so",
    ):
        with pytest.raises(WheelError, match=r"of no use|no part"):
            check(made(tmp_path, *tag_and_module, added=[name]))


def test_a_module_of_another_python_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WheelError, match="not for cp311"):
        check(made(tmp_path, "cp311-cp311", ABI3))
    with pytest.raises(WheelError, match="2 extension modules"):
        check(made(tmp_path, "cp312-abi3", ABI3, added=[OWN]))
