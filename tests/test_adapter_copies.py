"""Private copies of adapters: named by content, bounded, pinned, and gone with the process."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from octavo.adapter_copies import files as adapter_files
from octavo.adapter_copies.copies import PREFIX, AdapterCopies
from octavo.adapter_copies.errors import AdapterFileError
from octavo.adapter_copies.files import GGUF, SETTINGS, TENSORS, fingerprint
from octavo.adapter_copies.identity import adapter_id, digest_in


def write(place: Path, content: bytes = b"numbers", settings: bytes = b"{}") -> Path:
    place.mkdir(parents=True, exist_ok=True)
    (place / SETTINGS).write_bytes(settings)
    (place / TENSORS).write_bytes(content)
    return place


@pytest.fixture
def copies(tmp_path: Path) -> AdapterCopies:
    return AdapterCopies(100, 40, tmp_path / "copies")


def test_equal_content_is_one_copy(copies: AdapterCopies, tmp_path: Path) -> None:
    digest = copies.make(write(tmp_path / "a"))
    assert copies.make(write(tmp_path / "b")) == digest
    assert len(copies) == 1
    assert copies.place(digest).stat().st_mode & 0o777 == 0o700
    assert (copies.place(digest) / TENSORS).read_bytes() == b"numbers"
    assert copies.make(write(tmp_path / "a", settings=b"[]")) != digest
    assert copies.make(write(tmp_path / "b", b"others")) != digest
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "some.gguf").write_bytes(b"numbers")
    held = copies.make(tmp_path / "c")
    assert held == copies.make(tmp_path / "c" / "some.gguf")
    assert (copies.place(held) / GGUF).read_bytes() == b"numbers"


def test_messages_name_the_files_that_were_copied(copies: AdapterCopies, tmp_path: Path) -> None:
    place = copies.place(copies.make(write(tmp_path / "a")))
    assert copies.as_given(f"{place / TENSORS}: wrong; {place}") == (
        f"{str(tmp_path / 'a' / TENSORS)!r}: wrong; {str(tmp_path / 'a')!r}"
    )
    (tmp_path / "some.gguf").write_bytes(b"numbers")
    place = copies.place(copies.make(tmp_path / "some.gguf"))
    assert copies.as_given(f"{place / GGUF}: wrong") == f"{str(tmp_path / 'some.gguf')!r}: wrong"
    unknown = f"{copies.path}/{'0' * 64}/{TENSORS}: wrong"
    assert copies.as_given(unknown) == unknown


def test_messages_name_no_path_of_another_user(copies: AdapterCopies, tmp_path: Path) -> None:
    """Equal content has one copy, of the first user's files."""
    one, two = (write(tmp_path / name) for name in "ab")
    place = copies.place(copies.make(one))
    assert copies.make(two) == place.name
    message = f"{place / TENSORS}: wrong"
    for source in (one, two):
        assert copies.as_given(message, source) == f"{str(source / TENSORS)!r}: wrong"
    assert copies.as_given(message) == message
    copies.make(one)
    assert copies.as_given(message) == message


def test_the_same_bytes_in_other_files_are_another_content(
    copies: AdapterCopies, tmp_path: Path
) -> None:
    one = copies.make(write(tmp_path / "a", b"xy", b"z"))
    assert copies.make(write(tmp_path / "a", b"y", b"zx")) != one


def test_those_used_longest_ago_make_room_unless_they_are_pinned(
    copies: AdapterCopies, tmp_path: Path
) -> None:
    digests = [copies.make(write(tmp_path / name, name.encode() * 28)) for name in "abc"]
    assert copies.num_bytes == 90
    with pytest.raises(AdapterFileError) as failure:
        copies.make(write(tmp_path / "d", b"d" * 28))
    assert failure.value.code == "no_room"
    copies.unpin(digests[1])
    copies.unpin(digests[0])
    assert copies.pin(digests[0])  # it was used again
    copies.unpin(digests[0])
    copies.make(write(tmp_path / "d", b"d" * 28))
    assert [copies.pin(each) for each in digests] == [True, False, True]
    assert sorted(each.name[:1] for each in copies.path.iterdir()) == sorted(
        each[:1] for each in copies._copies
    )


def test_nobody_waits_while_files_are_removed(
    copies: AdapterCopies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop pins and unpins under the same lock."""
    removed: list[str] = []
    rmtree = shutil.rmtree

    def noted(path: Path, ignore_errors: bool) -> None:
        assert not copies._guard.locked()
        removed.extend(each.name for each in path.glob("*"))
        rmtree(path, ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", noted)
    digests = [copies.make(write(tmp_path / name, name.encode() * 28)) for name in "abc"]
    for each in digests:
        copies.unpin(each)
    copies.make(write(tmp_path / "d", b"d" * 28))
    copies.discard(digests[1])
    assert sorted(removed) == [SETTINGS] * 2 + [TENSORS] * 2
    assert {each.name for each in copies.path.iterdir()} == {*copies._copies}


def test_a_full_disk_is_a_want_of_room(
    copies: AdapterCopies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that was removed to make room is gone whole, and can be made again."""
    digests = [copies.make(write(tmp_path / name, name.encode() * 28)) for name in "abc"]
    for each in digests:
        copies.unpin(each)

    def full(**options: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "mkdtemp", full)
        with pytest.raises(AdapterFileError) as failure:
            copies.make(write(tmp_path / "d", b"d" * 28))
    assert failure.value.code == "no_room"
    assert {each.name for each in copies.path.iterdir()} == {*copies._copies} == {*digests[1:]}
    assert copies.num_bytes == 60
    assert copies.make(tmp_path / "a") == digests[0]


def test_a_file_that_is_too_large_is_not_read(copies: AdapterCopies, tmp_path: Path) -> None:
    for content, settings in ((b"x" * 41, b"{}"), (b"x" * 30, b"{" + b" " * 20 + b"}")):
        with pytest.raises(AdapterFileError) as failure:
            copies.make(write(tmp_path / "a", content, settings))
        assert failure.value.code == "too_large"
    assert not [*copies.path.iterdir()]


def test_a_file_that_changes_meanwhile_is_refused(
    copies: AdapterCopies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = write(tmp_path / "a")
    reserve = copies._reserve

    def late(size: int) -> None:
        reserve(size)
        with (place / TENSORS).open("ab") as file:
            file.write(b"more")

    monkeypatch.setattr(copies, "_reserve", late)
    with pytest.raises(AdapterFileError) as failure:
        copies.make(place)
    assert failure.value.code == "changed"
    assert not [*copies.path.iterdir()]
    assert copies.num_bytes == 0


@pytest.mark.parametrize("change", ["in place", "another directory", "another file"])
@pytest.mark.parametrize("times", [1, 2])
def test_a_copy_is_of_one_moment(
    copies: AdapterCopies,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
    times: int,
) -> None:
    """Files of the same sizes that arrive between two reads are copied again, together."""
    place, left = write(tmp_path / "a"), [*range(times)]
    open_one = adapter_files._open

    def late(path: Path, most_bytes: int) -> tuple[int, int]:
        found = open_one(path, most_bytes)
        if path.name == SETTINGS and left:  # the tensors are not open yet
            number = left.pop()
            new = write(tmp_path / f"new{number}", b"others%d" % number, b"[]")
            if change == "another directory":
                place.rename(tmp_path / f"old{number}")
                new.rename(place)
            elif change == "another file":
                for name in (SETTINGS, TENSORS):
                    (new / name).rename(place / name)
            else:
                write(place, b"others%d" % number, b"[]")
                os.utime(place / SETTINGS, ns=(number, number))  # clocks of files are coarse
        return found

    monkeypatch.setattr(adapter_files, "_open", late)
    if times == 1:
        digest = copies.make(place)
        assert (copies.place(digest) / SETTINGS).read_bytes() == b"[]"
        assert (copies.place(digest) / TENSORS).read_bytes() == b"others0"
        return
    with pytest.raises(AdapterFileError) as failure:
        copies.make(place)
    assert failure.value.code == "changed"
    assert not [*copies.path.iterdir()]
    assert copies.num_bytes == 0


def test_unchanged_files_are_not_read_again(
    copies: AdapterCopies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = write(tmp_path / "a")
    digest = copies.take(place)
    made: list[Path] = []
    make = copies.make

    def counted(source: Path) -> str:
        made.append(source)
        return make(source)

    monkeypatch.setattr(copies, "make", counted)
    assert copies.take(place) == digest
    assert not made
    before = fingerprint(place)
    write(tmp_path / "b", b"others")
    (tmp_path / "b" / TENSORS).rename(place / TENSORS)
    assert fingerprint(place) != before
    assert copies.take(place) != digest
    assert made == [place]
    copies.unpin(digest)
    copies.unpin(digest)
    copies.discard(digest)
    write(place)
    assert copies.take(place) == digest


def test_many_threads_make_one_copy(copies: AdapterCopies, tmp_path: Path) -> None:
    place, found = write(tmp_path / "a"), list[str]()
    threads = [threading.Thread(target=lambda: found.append(copies.make(place))) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len({*found}) == len(copies) == 1
    assert copies.num_bytes == 9
    assert len([*copies.path.iterdir()]) == 1


HOLDER = """
import sys
from pathlib import Path
from octavo.adapter_copies.copies import AdapterCopies
copies = AdapterCopies(100, 100, Path(sys.argv[1]))
copies.make(Path(sys.argv[2]))
print(copies.path, flush=True)
sys.stdin.read()
"""


def test_copies_end_with_their_process(tmp_path: Path) -> None:
    parent, place = tmp_path / "copies", write(tmp_path / "a")
    own = AdapterCopies(100, 100, parent)
    own.make(place)
    (parent / f"{PREFIX}file").touch()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(parent), str(place)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        other = Path(holder.stdout.readline().strip())
        AdapterCopies(100, 100, parent).close()
        assert other.exists()
        holder.kill()
    third = AdapterCopies(100, 100, parent)  # the next one tidies up
    assert not other.exists()
    assert own.path.exists()
    for each in (own, third, third):
        each.close()
    assert [each.name for each in parent.iterdir()] == [f"{PREFIX}file"]
    with pytest.raises(AdapterFileError):
        own.make(place)


def test_an_id_has_the_scale_unless_it_is_one() -> None:
    digest = "0a" * 32
    assert adapter_id(digest) == digest
    assert adapter_id(digest, 0.5) == f"{digest}*0.5"
    assert digest_in(adapter_id(digest, -1e-7)) == digest
    for wrong in ("", "x", digest[1:], f"{digest}*", f"{digest}/..", f"{digest}*1 2"):
        assert digest_in(wrong) == ""
