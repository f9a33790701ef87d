"""The attacks of the hostile run, and what it takes for a fault."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from benchmarks.hostile.__main__ import faults_of_calls
from benchmarks.hostile.adapters.files import (
    GGUF_NAME,
    SETTINGS_NAME,
    TENSORS_NAME,
    attack_by_files,
    damages,
    refused,
    undamaged,
)
from benchmarks.hostile.answers import Answer, AnswerReader, MalformedError
from benchmarks.hostile.attack import ATTACK_KEY, COMPLETIONS, LIVE, Attack, Ending, Right, post
from benchmarks.hostile.client import Outcome
from benchmarks.hostile.events.readers import attack_readers
from benchmarks.hostile.keeping import faults_of_keeping, settings_in
from benchmarks.hostile.measured.attack import attack_measurements
from benchmarks.hostile.router.attack import attack_router
from benchmarks.hostile.router.liars import LIES
from benchmarks.hostile.run import (
    ALL_KINDS,
    SETTINGS,
    Options,
    attack_number,
    last_line,
    measure,
    pauses,
)
from benchmarks.hostile.verdict import fault_of
from benchmarks.hostile.watch import Phase, Waits, said_in, watched_request
from benchmarks.served.client import Served
from tests.api.tiny import make_model

ERROR = b'{"error": {"message": "wrong", "type": "t", "param": null, "code": null}}'
REFUSED = Attack((post(COMPLETIONS, {}),))


def response(body: bytes, status: str = "200 OK", more: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n{more}\r\n".encode() + body


def read(data: bytes, size: int) -> AnswerReader:
    """Read a connection in parts of a size, to its end."""
    reader = AnswerReader()
    for start in range(0, len(data), size):
        reader.feed(data[start : start + size])
    reader.end()
    return reader


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_responses_are_read_in_parts_of_any_size(size: int) -> None:
    chunked = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    )
    empty = b"HTTP/1.1 204 No Content\r\n\r\n"
    interim = b"HTTP/1.1 100 Continue\r\n\r\n"
    reader = read(interim + response(b"first") + chunked + empty + response(b"", "400 No"), size)
    assert [bytes(answer.body) for answer in reader.answers] == [b"first", b"abcde", b"", b""]
    assert [answer.status for answer in reader.answers] == [200, 200, 204, 400]
    assert reader.num_whole == 4


@pytest.mark.parametrize(
    "wrong",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx\x00: 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na: 1\nx-injected: 1\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nx\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nabc",
        response(b"whole")[:-1],
        response(b"whole") + b"rest",
    ],
)
def test_bytes_that_are_no_response_are_detected(wrong: bytes) -> None:
    with pytest.raises(MalformedError):
        read(wrong, 1000)


def outcome(
    *statuses: int,
    body: bytes = ERROR,
    is_late: bool = False,
    is_closed: bool = False,
    was_refused: bool = False,
) -> Outcome:
    answers = [Answer(status, [], bytearray(body), is_whole=True) for status in statuses]
    return Outcome(answers, None, is_late, is_closed, was_refused)


def test_right_responses_are_no_fault() -> None:
    served = Attack((LIVE,), Right.SERVED)
    left = Attack((LIVE,), Right.LEFT, Ending.LEAVE)
    either = Attack((LIVE,), Right.REFUSED_OR_CLOSED)
    assert fault_of(REFUSED, outcome(400)) is None
    assert fault_of(REFUSED.followed(), outcome(401, 200)) is None
    assert fault_of(REFUSED.followed(), outcome(400, is_closed=True)) is None
    assert fault_of(served, outcome(200)) is None
    assert fault_of(either, outcome(is_closed=True)) is None
    assert fault_of(left, outcome(is_closed=True)) is None
    busy = Outcome([Answer(503, [("retry-after", "1")], bytearray(ERROR), is_whole=True)])
    assert fault_of(served, busy) is None
    assert fault_of(REFUSED, busy) is not None


@pytest.mark.parametrize(
    "wrong",
    [
        outcome(200),
        outcome(500),
        outcome(503),
        outcome(),
        outcome(is_late=True),
        outcome(was_refused=True),
        outcome(400, 400),
        outcome(400, body=b"Internal Server Error"),
        outcome(400, body=b'{"detail": "wrong"}'),
        outcome(400, body=ERROR.replace(b"wrong", b"Traceback (most")),
        outcome(400, body=ERROR.replace(b"wrong", ATTACK_KEY.encode())),
        outcome(400, body=ERROR.replace(b"wrong", b"x" * 100_000)),
        Outcome([Answer(400, [("x-injected", "1")], bytearray(ERROR), is_whole=True)]),
        Outcome([], malformed="no status line"),
    ],
)
def test_wrong_responses_to_a_wrong_request_are_faults(wrong: Outcome) -> None:
    assert fault_of(REFUSED, wrong)


def test_a_request_behind_a_wrong_one_must_not_be_misread() -> None:
    assert fault_of(REFUSED.followed(), outcome(400, 400))


def test_the_mix_is_the_same_for_the_same_seed_and_begins_with_every_kind() -> None:
    light = [kind for kind in ALL_KINDS if kind.share >= 1]
    first = [attack_number(index, 5, light) for index in range(3 * len(light))]
    assert [kind for kind, _ in first[: len(light)]] == light
    assert first == [attack_number(index, 5, light) for index in range(3 * len(light))]
    assert first != [attack_number(index, 6, light) for index in range(3 * len(light))]
    assert len({kind.name for kind in ALL_KINDS}) == len(ALL_KINDS)


def test_a_stream_is_compared_by_its_text_tokens_and_end() -> None:
    frames = [
        {"choices": [{"text": "a", "token_ids": [1], "finish_reason": None}]},
        {"choices": [{"delta": {"content": "b"}, "token_ids": [2], "finish_reason": "length"}]},
        {"choices": []},
    ]
    body = "".join(f"data: {json.dumps(frame)}\n\n" for frame in frames)
    assert said_in(f"{body}: ping\n\ndata: [DONE]\n\n".encode()) == ("ab", (1, 2), "length")
    with pytest.raises(MalformedError):
        said_in(body.encode())
    with pytest.raises(MalformedError):
        said_in(b'data: {"error": {"message": "x"}}\n\ndata: [DONE]\n\n')
    assert len({watched_request(index) for index in range(16)}) == 16


def test_a_gap_counts_without_the_time_in_which_the_machine_was_busy() -> None:
    waits = Waits([])
    waits._times, waits._sums = [0.0, 1.0, 2.0, 3.0], [0.0, 0.0, 0.75, 0.75]
    phase = Phase(long=[(0.2, 0.5), (1.1, 1.9)])
    report = phase.report(waits)
    assert report["worst_gap_ms"] == pytest.approx(300)
    assert report["worst_gap_with_waits_ms"] == pytest.approx(800)
    assert report["worst_gaps"][1]["ms"] == pytest.approx(50)


def test_a_pause_is_longer_than_the_undisturbed_server_makes() -> None:
    undisturbed, options = {"worst_gap_ms": 50.0}, Options()
    assert not pauses(undisturbed, {"worst_gap_ms": 149.0}, [(99.0, 1.0)], options)
    assert len(pauses(undisturbed, {"worst_gap_ms": 151.0}, [(101.0, 1.0)], options)) == 2


def test_a_traceback_is_named_by_its_end() -> None:
    text = '\n  File "a.py", line 1, in f\n    g()\nValueError: no\nserver: next line\n'
    assert last_line(text) == 'File "a.py", line 1, in f | g() | ValueError: no'


@pytest.mark.slow
def test_a_short_run_finds_no_fault(tmp_path: Path) -> None:
    """The lengths of pauses are left to `make hostile`: they depend on the machine."""
    light = [kind for kind in ALL_KINDS if kind.share >= 1]
    options = Options(
        len(light), num_clients=8, num_streams=4, baseline_seconds=0.5, niceness=0, kinds=light
    )
    log = tmp_path / "log"
    with log.open("w") as file, Served(SETTINGS | {"model": None}, file) as served:
        report = asyncio.run(measure(served, options, log))
        assert served.end() == 0
    assert report["attacks"] == len(light)
    assert report["attacked"]["reads"]
    assert not report["faults"]


@pytest.mark.slow
def test_a_few_attacks_on_grpc_find_no_fault(tmp_path: Path) -> None:
    pytest.importorskip("octavo.dialects.grpc.octavo_pb2", reason="built by `make setup`")
    assert not faults_of_calls(200, tmp_path / "log")


@pytest.mark.slow
def test_a_key_that_keeps_much_leaves_room_for_others(tmp_path: Path) -> None:
    """The lengths of holds, and thousands of files, are left to `make hostile`."""
    with Served(settings_in(tmp_path, is_crowded=False)) as served:
        assert asyncio.run(faults_of_keeping(served, is_crowded=False)) == []
        assert served.end() == 0


def test_damaged_adapters_differ_and_are_the_same_for_the_same_seed(tmp_path: Path) -> None:
    make_model(tmp_path)
    mutants = undamaged(str(tmp_path), tmp_path)
    some = list(damages(mutants, len(mutants) + 20, seed=1))
    assert [each.name for each in some] == [
        each.name for each in damages(mutants, len(mutants) + 20, seed=1)
    ]
    assert {each.file for each in some[:200]} == {SETTINGS_NAME, TENSORS_NAME, GGUF_NAME}
    content = (tmp_path / "peft" / TENSORS_NAME).read_bytes()
    last = next(each for each in reversed(some) if each.file == TENSORS_NAME)
    assert last.change(content) == last.change(content) != content


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (500, "failed", "it failed"),
        (400, "changed", "a code that no damage has"),
        (400, "unfit", "two\nlines of text"),
        (400, "damaged", "short"),
        (400, "damaged", "x" * 3000),
    ],
)
def test_a_refusal_of_an_adapter_that_is_no_clear_line_is_a_fault(
    status: int, code: str, message: str
) -> None:
    body = json.dumps({"error": {"code": code, "message": message}}).encode()
    assert refused(status, body)[1]
    right = json.dumps({"error": {"code": "unfit", "message": "its rank is 17"}}).encode()
    assert refused(400, right) == ("unfit", None)


@pytest.mark.slow
def test_a_few_damaged_adapters_find_no_fault(tmp_path: Path) -> None:
    options = Options(num_streams=4, baseline_seconds=0.5, niceness=0)
    report = attack_by_files(60, options, tmp_path)
    assert report["files"] == sum(report["outcomes"].values()) == 60
    assert report["outcomes"]["loaded"]
    assert report["attacked"]["reads"]
    assert not report["faults"]


@pytest.mark.slow
def test_a_router_in_front_of_servers_that_lie(tmp_path: Path) -> None:
    """An honest answer and each lie go through it once, beside a watched stream."""
    faults = attack_router(1 + len(LIES), tmp_path / "log", seed=1, silent_seconds=300.0)
    assert faults == []


@pytest.mark.slow
def test_readers_of_events_that_ask_for_too_much(tmp_path: Path) -> None:
    """A server ends their connections, and another reader gets its events."""
    pytest.importorskip("octavo.backends.native._native")
    assert attack_readers(tmp_path) == []


@pytest.mark.slow
def test_a_measured_server_that_lies_and_damaged_traces(tmp_path: Path) -> None:
    assert attack_measurements(tmp_path, 300, seed=1) == []
