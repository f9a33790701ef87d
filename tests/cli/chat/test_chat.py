"""The conversation at a terminal: lines, commands, Ctrl-C, and the history."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from octavo import LLM, AsyncLLM, RequestError, SamplingParams
from octavo.cli.chat.session import ChatSession, chat
from octavo.core.sampling_params import RequestOutputKind
from octavo.model_facts import PoolingFacts


class Person:
    """A person who types the given lines; an exception replaces a line."""

    def __init__(self, *lines: str | type[BaseException]) -> None:
        self._lines = iter(lines)

    def __call__(self, prompt: str) -> str:
        line = next(self._lines, EOFError)
        if isinstance(line, str):
            return line
        raise line


class Encoder:
    """A model that gives vectors, and no text."""

    def __init__(self) -> None:
        self.facts = SimpleNamespace(name="bge", pooling=PoolingFacts(tasks=("embed",)))
        self.is_open = True

    def close(self) -> None:
        self.is_open = False


class Echo:
    """A model that repeats its prompt, or fails on request."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def answer(self, prompt: str) -> str:
        if prompt == "fail":
            raise RequestError("no room")
        if prompt == "interrupt":
            raise KeyboardInterrupt
        self.heard.append(prompt)
        return prompt

    def forget(self) -> None:
        self.heard.clear()


def test_a_model_without_text_holds_no_conversation() -> None:
    model: Any = Encoder()
    with pytest.raises(RequestError, match="bge is an embedding model and generates no text"):
        ChatSession(model, lambda recommended: recommended)
    assert not model.is_open


def test_lines_until_the_end() -> None:
    echo = Echo()
    assert chat(echo, Person("one", "", "  two ", "/not a command")) == 0
    assert echo.heard == ["one", "two", "/not a command"]


def test_commands(capsys: pytest.CaptureFixture[str]) -> None:
    echo = Echo()
    assert chat(echo, Person("one", "/clear", "two", "/help", "/nonsense", "/exit", "three")) == 0
    assert echo.heard == ["two"]
    assert capsys.readouterr().out.count("/clear   forget") == 2


def test_several_lines() -> None:
    echo = Echo()
    chat(echo, Person('"""one', "two", 'three"""', '"""four"""'))
    assert echo.heard[0] == "one\ntwo\nthree"


def test_a_failed_request_does_not_end_the_conversation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    echo = Echo()
    assert chat(echo, Person("fail", "one")) == 0
    assert "no room" in capsys.readouterr().err
    assert echo.heard == ["one"]


def test_ctrl_c_once_and_twice(capsys: pytest.CaptureFixture[str]) -> None:
    echo = Echo()
    assert chat(echo, Person("interrupt", "one", KeyboardInterrupt, "two")) == 0
    assert echo.heard == ["one", "two"]
    with pytest.raises(KeyboardInterrupt):
        chat(echo, Person("interrupt", KeyboardInterrupt, "never"))
    assert "never" not in echo.heard
    assert "(Ctrl-C again to leave)" in capsys.readouterr().out


def settle(recommended: SamplingParams) -> SamplingParams:
    return SamplingParams(
        temperature=0.0, max_tokens=5, ignore_eos=True, output_kind=RequestOutputKind.DELTA
    )


@pytest.fixture
def conversation(tiny: str) -> Iterator[ChatSession]:
    made = ChatSession(AsyncLLM(tiny, num_gpu_blocks_override=20), settle, system="Be")
    yield made
    made.close()


def test_what_was_said_is_part_of_the_next_prompt(conversation: ChatSession, tiny: str) -> None:
    first = conversation.answer("x")
    second = conversation.answer("y")
    assert [each["role"] for each in conversation.messages] == [
        *("system", "user", "assistant", "user", "assistant")
    ]
    with LLM(tiny, num_gpu_blocks_override=20) as llm:
        said = [{"role": "system", "content": "Be"}, {"role": "user", "content": "x"}]
        assert first == llm.chat(said, settle(SamplingParams()))[0].outputs[0].text
        said += [{"role": "assistant", "content": first}, {"role": "user", "content": "y"}]
        assert second == llm.chat(said, settle(SamplingParams()))[0].outputs[0].text
    conversation.forget()
    assert conversation.messages == [{"role": "system", "content": "Be"}]
    assert conversation.answer("x") == first


def test_a_request_that_fails_is_as_if_never_made(conversation: ChatSession) -> None:
    with pytest.raises(RequestError, match="leaves no room"):
        conversation.answer("x " * 300)
    assert conversation.messages == [{"role": "system", "content": "Be"}]


def test_ctrl_c_keeps_what_was_said(
    conversation: ChatSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = ChatSession._write
    pieces: list[str] = []

    def interrupt(self: ChatSession, text: str) -> None:
        write(self, text)
        pieces.append(text)
        if len(pieces) == 1:  # on a busy machine the whole answer may be one piece
            raise KeyboardInterrupt

    monkeypatch.setattr(ChatSession, "_write", interrupt)
    with pytest.raises(KeyboardInterrupt):
        conversation.answer("x")
    assert conversation.messages[-1] == {"role": "assistant", "content": pieces[0]}
    monkeypatch.setattr(ChatSession, "_write", write)
    conversation.forget()
    assert conversation.answer("x")
