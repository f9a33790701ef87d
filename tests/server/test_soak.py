"""A short soak with real processes, kills and disconnects, and a check that it detects losses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from benchmarks.served.client import LostError, Served, parse
from benchmarks.soak import SETTINGS, Load, Soak

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served(SETTINGS | {"timing": {"silence_seconds": 300.0}})
    try:
        yield made
    finally:
        made.process.kill()
        made.process.communicate()


@pytest.mark.slow
def test_a_short_soak_loses_and_leaks_nothing(served: Served) -> None:
    soak = Soak(
        served, seconds=3.0, seed=1, load=Load(num_kinds=12, kill_seconds=1.0, least_kills=1)
    )
    report = asyncio.run(soak.run())
    assert not report["faults"]
    assert report["counts"]["kills"] >= 1
    assert report["counts"]["whole: exact"] >= 12
    assert served.end() == 0


@pytest.mark.slow
def test_an_answer_that_differs_is_a_fault(served: Served) -> None:
    soak = Soak(
        served, seconds=0.5, seed=1, load=Load(num_kinds=2, num_hostile=0, kill_seconds=0.5)
    )
    asyncio.run(soak.run())
    assert not soak.faults
    soak.truth[0][0][0][-1] += 1
    asyncio.run(soak._one(0, "whole"))
    assert soak.faults == ["request 0 (whole): the response differs from the undisturbed one"]


def chunked(*parts: bytes) -> bytes:
    return STREAM + b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)


def test_a_stream_without_an_end_is_detected() -> None:
    frame = b'data: {"choices": []}\n\n'
    assert parse(chunked(frame, b"data: [DONE]\n\n") + b"0\r\n\r\n").is_ended
    assert not parse(chunked(frame) + b"0\r\n\r\n").is_ended
    for broken in (b"", STREAM, chunked(frame), chunked(frame)[:-9]):
        with pytest.raises(LostError):
            parse(broken)
