"""What a wheel must contain and must not, and the oldest Linux that it runs on.

    python -m tests.deploy.wheel dist/octavo-0.1.0-cp312-abi3-linux_x86_64.whl

A wheel that is right gets the tag of the oldest Linux (`manylinux_2_N`) whose libraries have all
that its extension module asks for, instead of this machine's own; the new file's name is printed.
"""

from __future__ import annotations

import base64
import hashlib
import re
import sys
import zipfile
from pathlib import Path, PurePosixPath

MODULE = re.compile(r"octavo/backends/native/_native\.(?P<kind>abi3|cpython-3\d+)[^/]*\.so")
UNWANTED = re.compile(
    r"(^|/)(__pycache__|tests?|benchmarks)(/|$)|\.(pyc|bak|orig|cpp|h|inl|o)$|_test\."
)
NEEDED = ("octavo/py.typed", "octavo/__init__.py")
# The newest version of libstdc++'s symbols (GLIBCXX_3.4.N) on a Linux with glibc 2.N.
LIBSTDCXX = (
    (17, 19),
    (24, 22),
    (27, 24),
    (28, 25),
    (31, 28),
    (34, 29),
    (35, 30),
    (38, 32),
    (39, 33),
)
_GLIBC = re.compile(rb"\0GLIBC_2\.(\d+)(?:\.\d+)*(?=\0)")
_GLIBCXX = re.compile(rb"\0GLIBCXX_3\.4\.(\d+)(?=\0)")


class WheelError(ValueError):
    """A wheel that must not be published; the message says why."""


def check(path: Path) -> bytes:
    """Return the extension module of a wheel; raise WheelError if anything is wrong."""
    _, version, python, abi, _ = path.stem.split("-")
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        about = f"octavo-{version}.dist-info/"
        for name in names:
            if not name.startswith(("octavo/", about)):
                raise WheelError(f"{name} is no part of the package")
            if UNWANTED.search(name) and name not in NEEDED:
                raise WheelError(f"{name} is of no use where the wheel is installed")
        for name in (*NEEDED, f"{about}licenses/LICENSE", f"{about}RECORD"):
            if name not in names:
                raise WheelError(f"{name} is missing")
        modules = [found for name in names if (found := MODULE.fullmatch(name))]
        if len(modules) != 1:
            raise WheelError(f"{len(modules)} extension modules are there, instead of one")
        kind = modules[0]["kind"]
        wanted = "abi3" if abi == "abi3" else f"cpython-{python.removeprefix('cp')}"
        if kind != wanted:
            raise WheelError(f"{modules[0][0]} is not for {python}-{abi}")
        return wheel.read(modules[0][0])


def oldest_glibc(module: bytes) -> int:
    """Return the N of glibc 2.N, the oldest whose Linux has all symbols that a module needs."""
    glibc = max((int(each) for each in _GLIBC.findall(module)), default=17)
    libstdcxx = max((int(each) for each in _GLIBCXX.findall(module)), default=0)
    enough = [linux for linux, newest in LIBSTDCXX if newest >= libstdcxx]
    if not enough:
        raise WheelError(f"GLIBCXX_3.4.{libstdcxx} is newer than every known Linux has")
    return max(glibc, enough[0], LIBSTDCXX[0][0])


def tagged(path: Path) -> Path:
    """Write the wheel under its honest tag, and remove the other; return the new path."""
    module = check(path)
    head, platform = path.stem.rsplit("-", 1)
    machine = platform.removeprefix("linux_")
    if machine == platform:
        return path  # it has such a tag already
    new = f"manylinux_2_{oldest_glibc(module)}_{machine}"
    made = path.with_name(f"{head}-{new}.whl")
    part = made.with_suffix(".part")
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(part, "w") as target:
        record: list[str] = []
        for entry in source.infolist():
            content = source.read(entry)
            name = PurePosixPath(entry.filename).name
            if name == "RECORD":
                continue
            if entry.filename.endswith(".dist-info/WHEEL"):
                content = content.replace(f"-{platform}\n".encode(), f"-{new}\n".encode())
            target.writestr(entry, content, zipfile.ZIP_DEFLATED)
            record.append(_line(entry.filename, content))
        name = next(each for each in source.namelist() if each.endswith(".dist-info/RECORD"))
        target.writestr(name, "".join([*record, f"{name},,\n"]), zipfile.ZIP_DEFLATED)
    part.rename(made)
    path.unlink()
    return made


def _line(name: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}\n"


def main() -> int:
    """Check and tag the wheels that are named."""
    for word in sys.argv[1:]:
        try:
            print(tagged(Path(word)))
        except WheelError as error:
            print(f"{word}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
