"""An engine of this process, asked as a client asks the server."""

from __future__ import annotations

import asyncio
import io
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from octavo import LLM, AsyncLLM, RequestError, SamplingParams
from octavo.cli.chat import interrupts
from octavo.cli.chat.conversation import Conversation
from octavo.cli.chat.display import Display
from octavo.cli.chat.own_engine import OwnEngine
from octavo.cli.commands import INTERRUPTED
from octavo.model_facts import PoolingFacts
from tests.server.engine import FakeEngine, make_directory
from tests.server.make import patient
from tests.workers.kept_workers import kept_workers

GREEDY = {"temperature": 0.0, "max_tokens": 5, "ignore_eos": True}


@pytest.fixture(scope="module", autouse=True)
def _shared_prompt_workers() -> Iterator[None]:
    with kept_workers():
        yield


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a prompt take as long as a pause of the machine."""
    monkeypatch.setattr("octavo.cli.chat.own_engine.ServerSettings", patient)


def conversation(engine: OwnEngine, **sampling: Any) -> Conversation:
    display = Display(io.StringIO(), io.StringIO())
    return Conversation(engine, "tiny", display, sampling=sampling, system="Be")


def test_it_answers_as_the_library_does(tiny: str) -> None:
    made = conversation(OwnEngine(AsyncLLM(tiny, num_gpu_blocks_override=20)), **GREEDY)
    try:
        made.ask("x")
        made.ask("y")
        with pytest.raises(RequestError):
            made.ask("x " * 300)
        assert made.stats == "there is no answer so far"
    finally:
        made.close()
    said = [{"role": "system", "content": "Be"}, {"role": "user", "content": "x"}]
    with LLM(tiny, num_gpu_blocks_override=20) as llm:
        sampling = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
        first = llm.chat(said, sampling)[0].outputs[0].text
        said += [{"role": "assistant", "content": first}, {"role": "user", "content": "y"}]
        second = llm.chat(said, sampling)[0].outputs[0].text
    assert [each["content"] for each in made.messages] == ["x", first, "y", second]


class Interrupted(Display):
    """A terminal whose user presses Ctrl-C so many times, at the first text."""

    times = 1

    def text(self, text: str) -> None:
        super().text(text)
        while self.times > 0:
            self.times -= 1
            signal.raise_signal(signal.SIGINT)


def test_ctrl_c_ends_the_request_in_the_engine(tmp_path: Path) -> None:
    llm = FakeEngine(make_directory(tmp_path), max_model_len=1024)
    engine = OwnEngine(llm)
    made = conversation(engine, max_tokens=400, ignore_eos=True)  # all fit into a prompt
    shown, made.display = made.display, Interrupted(io.StringIO(), io.StringIO())
    try:
        with pytest.raises(KeyboardInterrupt):
            made.ask("x")
        assert [each["role"] for each in made.messages] == ["user", "assistant"]
        assert not llm._sinks  # the rest is not waited for
        made.display = shown
        made.sampling["max_tokens"] = 3
        made.ask("y")
        assert len(made.messages) == 4
    finally:
        made.close()


def test_a_second_ctrl_c_ends_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[int] = []
    monkeypatch.setattr(interrupts, "leave_at_once", left.append)
    made = conversation(OwnEngine(FakeEngine(make_directory(tmp_path), max_model_len=1024)))
    made.display = Interrupted(io.StringIO(), io.StringIO())
    made.display.times = 2
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(KeyboardInterrupt):
            made.ask("x")
        assert left == [INTERRUPTED]
        assert signal.getsignal(signal.SIGINT) is before
    finally:
        made.close()
    assert left == [INTERRUPTED]


def test_a_ctrl_c_while_a_conversation_closes_ends_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[int] = []
    monkeypatch.setattr(interrupts, "leave_at_once", left.append)
    engine = OwnEngine(FakeEngine(make_directory(tmp_path), max_model_len=1024))
    close = engine._llm.close

    def interrupted_close() -> None:
        signal.raise_signal(signal.SIGINT)
        close()

    monkeypatch.setattr(engine._llm, "close", interrupted_close)
    engine.close()
    assert left == [INTERRUPTED]


def test_a_ctrl_c_before_the_answer_begins_ends_it() -> None:
    async def work() -> None:
        raise AssertionError("it was ended before")

    with asyncio.Runner() as runner, interrupts.Interrupts() as held:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            held.run(runner, work())


def test_a_model_without_text_holds_no_conversation() -> None:
    closed: list[bool] = []
    model: Any = SimpleNamespace(
        facts=SimpleNamespace(name="bge", pooling=PoolingFacts(tasks=("embed",))),
        close=lambda: closed.append(True),
    )
    with pytest.raises(RequestError, match="bge is an embedding model and generates no text"):
        OwnEngine(model)
    assert closed == [True]
