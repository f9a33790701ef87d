"""What a journal keeps is bounded in time, number and bytes."""

from __future__ import annotations

from pathlib import Path

from octavo.client.durable.file import JournalFile
from octavo.client.durable.requests import (
    MAX_REQUEST_BYTES,
    DurableRequest,
    DurableRequests,
    Limits,
)
from octavo.client.durable.writer import JournalWriter
from tests.client.durable.make import MODEL, emit


class Clock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def made(path: Path, limits: Limits) -> tuple[DurableRequests, Clock]:
    clock = Clock()
    return DurableRequests(JournalWriter(JournalFile(path)), MODEL, limits, clock), clock


def names(requests: DurableRequests) -> list[str]:
    return [each.request_id for each in requests]


def test_a_request_is_forgotten_when_it_has_rested_for_too_long(tmp_path: Path) -> None:
    requests, clock = made(tmp_path / "journal", Limits(seconds=60))
    kept = [requests.begin("key", name, b"", 1) for name in ("ended", "runs", "woken")]
    ended, runs, woken = kept
    assert ended is not None
    assert runs is not None
    assert woken is not None
    requests.rest(ended)
    requests.rest(woken)
    clock.now += 59
    requests.tidy()
    assert len(requests) == 3
    requests.wake(woken)
    clock.now += 2
    requests.tidy()
    assert names(requests) == ["runs", "woken"]
    assert requests.find("key", "ended") is None
    requests.rest(runs)
    requests.rest(woken)
    clock.now += 61
    requests.tidy()
    assert not len(requests)
    assert requests.num_bytes == 0


def test_the_longest_ended_makes_room_and_an_open_one_never_does(tmp_path: Path) -> None:
    requests, _ = made(tmp_path / "journal", Limits(num_requests=3))
    for name in ("open", "old", "young"):
        request = requests.begin("key", name, b"", 1)
        assert request is not None
        if name != "open":
            requests.rest(request)
    assert requests.begin("key", "new", b"", 1) is not None
    assert requests.begin("key", "newer", b"", 1) is not None
    assert names(requests) == ["open", "new", "newer"]
    assert requests.begin("key", "without room", b"", 1) is None
    assert requests.num_dropped == 1


def test_tokens_beyond_the_bytes_drop_the_largest_request(tmp_path: Path) -> None:
    requests, _ = made(tmp_path / "journal", Limits(num_bytes=10_000))
    small, large = requests.begin("key", "small", b"", 1), requests.begin("key", "large", b"", 1)
    assert small is not None
    assert large is not None
    for _ in range(100):
        emit(requests, small, (1,))
        emit(requests, large, tuple(range(40)))
    assert names(requests) == ["small"]
    assert requests.num_bytes <= 10_000
    assert requests.num_dropped == 1
    emit(requests, large, (1,))  # its client still gets its tokens; they are kept no longer
    assert names(requests) == ["small"]
    large_head = requests.begin("key", "a head", bytes(MAX_REQUEST_BYTES), 1)
    assert large_head is None
    assert names(requests) == ["small"]


def test_the_bounds_hold_for_what_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    file = JournalFile(path)
    requests = DurableRequests(JournalWriter(file), MODEL)
    for number in range(20):
        request = requests.begin("key", str(number), bytes(1000), 1)
        assert request is not None
        if number % 2:
            requests.rest(request)
    from octavo.client.durable.records import encode

    payloads = list(map(encode, requests.snapshot()))
    loaded = DurableRequests(JournalWriter(file), MODEL, Limits(num_requests=12))
    loaded.load(payloads)
    assert names(loaded) == [str(number) for number in range(20) if not number % 2 or number > 15]
    foreign = DurableRequests(JournalWriter(file), "another model")
    foreign.load(payloads)
    assert not len(foreign)
    file.close()


def test_the_key_with_the_most_makes_room_and_no_other(tmp_path: Path) -> None:
    """A key that floods the journal loses its own requests, whether they rest or not."""
    requests, _ = made(tmp_path / "journal", Limits(num_bytes=40_000, num_requests=12))
    kept = [begun(requests, "b", f"b{number}") for number in range(3)]
    for request in kept:
        requests.rest(request)
    for number in range(40):  # many small ones
        requests.rest(begun(requests, "a", f"a{number}"))
    assert all(request.is_known for request in kept)
    assert len(requests) == 12
    large = [requests.begin("a", f"large{number}", bytes(8000), 1) for number in range(6)]
    assert [each is not None for each in large] == [True] * 4 + [False] * 2
    assert all(request.is_known for request in kept)
    other = requests.begin("b", "b3", bytes(3000), 1)  # an open one of the richest is dropped
    assert other is not None
    assert all(request.is_known for request in (*kept, other))
    assert sum(each is not None and each.is_known for each in large) == 3
    for request in requests:
        requests.forget(request)
    assert (requests.num_bytes, len(requests)) == (0, 0)
    for left in (requests._num_of, requests._bytes_of, requests._resting):
        assert not left


def begun(requests: DurableRequests, owner: str, name: str) -> DurableRequest:
    request = requests.begin(owner, name, b"head", 1)
    assert request is not None
    return request
