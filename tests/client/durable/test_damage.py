"""A journal that ends or is damaged at any byte gives back what is whole, and nothing wrong."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from octavo.client.durable.file import JournalFile
from octavo.client.durable.framing import HEADER_BYTES
from octavo.client.durable.requests import DurableRequests
from octavo.client.durable.writer import JournalWriter
from tests.client.durable.make import MODEL, State, emit, read, state_of, write_journal


def fill(requests: DurableRequests) -> None:
    """Begin requests, let them emit, end or rest, and forget one."""
    one = requests.begin("key", "one", b"head of one", 1)
    two = requests.begin("key", "two", b"head of two", 2)
    gone = requests.begin("other", "gone", b"head of a forgotten one", 1)
    assert one is not None
    assert two is not None
    assert gone is not None
    emit(requests, gone, (9, 9), "length")
    emit(requests, one, (1, 2))
    emit(requests, two, (20,), place=1)
    requests.rest(gone)
    requests.forget(gone)
    emit(requests, two, (10, 11), with_logprobs=True)
    emit(requests, one, (3,), "stop")
    emit(requests, two, (21, 22), "length", place=1)
    requests.rest(one)
    emit(requests, two, (12,), with_logprobs=True)


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("journal") / "journal"
    asyncio.run(write_journal(path, fill))
    return path.read_bytes()


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> JournalWriter:
    return JournalWriter(JournalFile(tmp_path_factory.mktemp("journal") / "never-written"))


def loaded(writer: JournalWriter, data: bytes) -> State:
    """Return what the bytes of a file say."""
    requests = DurableRequests(writer, MODEL)
    requests.load(read(data)[1])
    return state_of(requests)


WHOLE: State = {
    ("key", "one"): (b"head of one", (((1, 2, 3), "stop"),), True),
    ("key", "two"): (b"head of two", (((10, 11, 12), None), ((20, 21, 22), "length")), False),
}


def check_is_part(found: State) -> None:
    """Check that requests are as they were at some moment, each answer at its own."""
    for name, (head, answers, _) in found.items():
        if name == ("other", "gone"):
            assert head == b"head of a forgotten one"
            assert answers in ((((), None),), (((9, 9), "length"),))
            continue
        whole_head, whole_answers, _ = WHOLE[name]
        assert head == whole_head
        for (tokens, end), (all_tokens, whole_end) in zip(answers, whole_answers, strict=True):
            assert tokens == all_tokens[: len(tokens)]
            assert end is None or (end, tokens) == (whole_end, all_tokens)


def test_an_undamaged_journal_gives_back_everything(journal: bytes, writer: JournalWriter) -> None:
    assert loaded(writer, journal) == WHOLE


def test_every_prefix_gives_back_a_state_that_was(journal: bytes, writer: JournalWriter) -> None:
    num_tokens = 0
    for end in range(len(journal) + 1):
        found = loaded(writer, journal[:end])
        check_is_part(found)
        found.pop(("other", "gone"), None)
        now = sum(len(tokens) for _, answers, _ in found.values() for tokens, _ in answers)
        assert now >= num_tokens, "more bytes cannot say less"
        num_tokens = now
    assert num_tokens == 9


def test_every_flipped_byte_costs_at_most_its_own_record(
    journal: bytes, writer: JournalWriter
) -> None:
    for at in range(len(journal)):
        data = bytearray(journal)
        data[at] ^= 0x41
        found = loaded(writer, bytes(data))
        check_is_part(found)
        if at < HEADER_BYTES:
            continue
        _, before, _ = read(journal)
        _, after, num_damaged = read(bytes(data))
        assert num_damaged == 1
        assert len(after) == len(before) - 1
        assert [each for each in before if each in after] == after


def test_a_torn_record_in_the_middle_costs_itself(journal: bytes, writer: JournalWriter) -> None:
    framing, payloads, _ = read(journal)
    assert framing is not None
    at = HEADER_BYTES
    for payload in payloads:
        size = framing.size_of(payload)
        for lost in (1, size // 2, size - 1):
            data = journal[:at] + journal[at + lost : at + size] + journal[at + size :]
            check_is_part(loaded(writer, data))
            assert len(read(data)[1]) == len(payloads) - 1
        at += size


def test_a_text_that_imitates_a_record_is_a_text(writer: JournalWriter, tmp_path: Path) -> None:
    """A client cannot know the mark and the key; those of another file give nothing away."""
    asyncio.run(write_journal(tmp_path / "another", fill))
    forged = (tmp_path / "another").read_bytes()

    def act(requests: DurableRequests) -> None:
        assert requests.begin("key", "hostile", forged, 1) is not None

    asyncio.run(write_journal(tmp_path / "journal", act))
    data = (tmp_path / "journal").read_bytes()
    assert forged in data
    for at in range(HEADER_BYTES, len(data), 7):
        damaged = bytearray(data)
        damaged[at] ^= 0xFF
        assert set(loaded(writer, bytes(damaged))) <= {("key", "hostile")}


def test_a_file_of_random_bytes_with_a_header_is_an_empty_journal(
    journal: bytes, writer: JournalWriter
) -> None:
    rest = bytes(range(256)) * 40 + journal[:12] * 100
    assert loaded(writer, journal[:HEADER_BYTES] + rest) == {}


def test_a_damaged_journal_is_written_anew_without_the_damage(
    journal: bytes, writer: JournalWriter, tmp_path: Path
) -> None:
    path = tmp_path / "journal"
    path.write_bytes(journal + journal[HEADER_BYTES : HEADER_BYTES + 40])
    asyncio.run(write_journal(path, lambda requests: None))
    assert read(path.read_bytes())[2] == 0
    assert loaded(writer, path.read_bytes()) == WHOLE
