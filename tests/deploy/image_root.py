"""The directory that deploy/docker/Dockerfile adds to Python's image, made without Docker.

It has what `pip install octavo[hub]` brings: the product's dependencies, and the package as the
wheel has it, with the native engine that is built already.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def public_python() -> str | None:
    """Return a Python of this version that every user may run; None: there is none."""
    name = f"python3.{sys.version_info.minor}"
    for found in (sys.executable, shutil.which(name, path="/usr/local/bin:/usr/bin")):
        if found is not None:
            path = Path(found).resolve()
            if all(each.stat().st_mode & 0o001 for each in path.parents):
                return str(path)
    return None


def make_root(place: Path, interpreter: str) -> Path:
    """Make the environment in an empty directory; return its Python."""
    subprocess.run([interpreter, "-m", "venv", str(place)], check=True)
    python = place / "bin" / "python"
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["hub"]]
    pins = ["-c", str(ROOT / "requirements" / "dev.txt")]
    # Without PYTHONPATH, or packages that are found there would count as installed.
    pip = ["env", "-u", "PYTHONPATH", str(python), "-m", "pip"]
    pip += ["--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--no-compile", *pins, *wanted], check=True)
    (packages,) = (place / "lib").glob("python3*/site-packages")
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(ROOT / "octavo", packages / "octavo", ignore=ignored)
    subprocess.run([*pip, "uninstall", "--yes", "setuptools"], check=True)
    large = [str(each) for each in (packages / "uvloop").glob("*.so")]
    subprocess.run(["strip", "--strip-debug", *large], check=True)
    for each in place.rglob("__pycache__"):
        shutil.rmtree(each)
    return python


def size_of(place: Path) -> int:
    """Return the bytes of all files, links not followed."""
    files = (each for each in place.rglob("*") if each.is_file() and not each.is_symlink())
    return sum(each.stat().st_size for each in files)


def packed_size_of(place: Path, archive: Path) -> int:
    """Return the bytes of the directory as a layer is sent: a tar file, compressed."""
    with tarfile.open(archive, "w:gz", compresslevel=6) as file:
        file.add(place, "opt/octavo")
    size = archive.stat().st_size
    archive.unlink()
    return size
