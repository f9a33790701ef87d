"""The calls of torch.cuda for a capture, in their order, with everything of it replaced."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from octavo.backends.cuda.card import CudaAccelerator

calls: list[Any] = []


class Stream:
    """A stream without work."""

    def __init__(self, index: int = 0) -> None:
        pass

    def wait_stream(self, other: Stream) -> None:
        calls.append("wait")


class Graph:
    """A graph, which ends a capture with an error if the capture has failed."""

    has_failed = False

    def pool(self) -> Graph:
        return self

    def capture_begin(self, pool: Graph | None, capture_error_mode: str) -> None:
        assert capture_error_mode == "thread_local"
        calls.append(("begin", pool))

    def capture_end(self) -> None:
        calls.append("end")
        if self.has_failed:
            raise RuntimeError("operation failed due to a previous error during capture")


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> CudaAccelerator:
    calls.clear()
    usual = Stream()
    for name, value in {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "Stream": Stream,
        "CUDAGraph": Graph,
        "current_stream": lambda index: usual,
        "stream": lambda stream: nullcontext(),
        "empty_cache": lambda: calls.append("empty"),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.backends.cuda, "matmul", SimpleNamespace())
    return CudaAccelerator()


def run() -> int:
    calls.append("run")
    return 7


CAPTURED = ["wait", ("begin", None), "run", "end", "wait"]


def test_memory_is_that_of_a_graph_that_lives_or_new(card: CudaAccelerator) -> None:
    """Torch refuses to capture into the memory of graphs that are all gone."""
    first, made = card.capture(run)
    assert made == 7
    assert calls == ["wait", "run", "wait", "empty", *CAPTURED]  # the first run is a warm one
    calls.clear()
    card.capture(run, first)
    assert calls == ["wait", ("begin", first), "run", "end", "wait"]
    calls.clear()
    card.capture(run)
    assert calls == ["empty", *CAPTURED]


def test_a_capture_that_fails_says_what_failed_first(
    card: CudaAccelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise ValueError("the reason")

    card.capture(run)
    monkeypatch.setattr(Graph, "has_failed", True)
    with pytest.raises(ValueError, match="the reason"):
        card.capture(fail)
    assert calls[-1] == "end"
    with pytest.raises(RuntimeError, match="a previous error"):
        card.capture(run)


def test_a_warm_run_that_fails_is_done_again(card: CudaAccelerator) -> None:
    with pytest.raises(ZeroDivisionError):
        card.capture(lambda: 1 // 0)
    calls.clear()
    card.capture(run)
    assert calls[:3] == ["wait", "run", "wait"]
