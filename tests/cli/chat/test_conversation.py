"""Turns of a conversation, its commands and its loop, with an endpoint that has scripts."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octavo.cli.chat.conversation import MAX_ROUNDS, Conversation
from octavo.cli.chat.display import Display
from octavo.cli.chat.endpoint import Body, Take
from octavo.cli.chat.files import save
from octavo.cli.chat.loop import converse
from octavo.core.sampling_params import RequestError
from tests.cli.chat.fake_server import call, delta, texts

FUNCTIONS = '''
"""Functions of a test."""
import json
from pathlib import Path  # not of this file


def add(one: int, other: int = 1) -> int:
    """Return the sum
    of two numbers.

    More text.
    """
    return one + other


def fail(why: str) -> str:
    raise RuntimeError(why)


def _hidden() -> None: ...
'''


class Scripted:
    """An endpoint whose answers are scripts; an error in one is raised there."""

    def __init__(self, *scripts: Any) -> None:
        self.scripts = list(scripts)
        self.bodies: list[Body] = []

    def chat(self, body: Body, take: Take) -> None:
        self.bodies.append(json.loads(json.dumps(body)))
        for each in self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]:
            if isinstance(each, BaseException):
                raise each
            take(each)

    def close(self) -> None:
        """Release nothing, since it holds nothing."""


class Person:
    """A person who types the given lines; an exception replaces a line."""

    def __init__(self, *lines: str | BaseException | type[BaseException]) -> None:
        self._lines = iter(lines)

    def __call__(self, prompt: str) -> str:
        line = next(self._lines, EOFError)
        if isinstance(line, str):
            return line
        raise line


Make = Callable[..., Conversation]


@pytest.fixture
def notes() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def make(notes: io.StringIO) -> Make:
    def make(*scripts: Any, **options: Any) -> Conversation:
        display = Display(io.StringIO(), notes)
        return Conversation(Scripted(*scripts), "tiny", display, **options)

    return make


def ended(reason: str) -> Body:
    """Return the chunk that ends an answer for this reason."""
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}


def bodies(conversation: Conversation) -> list[Body]:
    endpoint = conversation._endpoint
    assert isinstance(endpoint, Scripted)
    return endpoint.bodies


def written(conversation: Conversation) -> str:
    stream = conversation.display._stream
    assert isinstance(stream, io.StringIO)
    return stream.getvalue()


def test_what_was_said_is_part_of_the_next_request(make: Make) -> None:
    made = make(texts("on", "e"), texts("two"), system="Be", sampling={"top_k": 3})
    made.ask("x")
    made.ask("y")
    first, second = bodies(made)
    said = [{"role": "system", "content": "Be"}, {"role": "user", "content": "x"}]
    assert (first["messages"], first["top_k"], first["model"]) == (said, 3, "tiny")
    answered = {"role": "assistant", "content": "one"}
    assert second["messages"] == [*said, answered, {"role": "user", "content": "y"}]
    assert written(made) == "one\ntwo\n"
    assert made.stats.startswith("27 prompt tokens (16 cached), first token after ")
    assert ", 5 tokens" in made.stats


def test_a_failed_turn_leaves_no_trace_and_can_be_retried(make: Make) -> None:
    made = make(texts("a"), [delta(content="par"), RequestError("no room")], texts("b"))
    made.ask("x")
    before = list(made.messages)
    with pytest.raises(RequestError, match="no room"):
        made.ask("y")
    assert made.messages == before
    made.retry()
    assert [each["content"] for each in made.messages] == ["x", "a", "y", "b"]


def test_retry_replaces_the_last_answer_only_if_there_is_another(make: Make) -> None:
    made = make(texts("a"), texts("b"), [KeyboardInterrupt()], texts("c"))
    with pytest.raises(RequestError, match="nothing to answer again"):
        made.retry()
    made.ask("x")
    made.retry()
    assert [each["content"] for each in made.messages] == ["x", "b"]
    with pytest.raises(KeyboardInterrupt):
        made.retry()
    assert [each["content"] for each in made.messages] == ["x", "b"]
    assert bodies(made)[1] == bodies(made)[0]


def test_a_retry_that_fails_can_be_tried_again(make: Make) -> None:
    made = make(texts("a"), [RequestError("no room")], texts("b"))
    made.ask("x")
    with pytest.raises(RequestError, match="no room"):
        made.retry()
    made.retry()
    assert [each["content"] for each in made.messages] == ["x", "b"]


def test_ctrl_c_keeps_what_was_said(make: Make) -> None:
    made = make([delta(content="so far"), KeyboardInterrupt()])
    with pytest.raises(KeyboardInterrupt):
        made.ask("x")
    assert made.messages[-1] == {"role": "assistant", "content": "so far"}
    assert written(made) == "so far\n"


@pytest.fixture
def functions(tmp_path: Path) -> str:
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    return str(tmp_path / "functions.py")


def test_functions_are_called_until_there_is_an_answer(
    make: Make, functions: str, notes: io.StringIO
) -> None:
    steps = call("add", '{"one": 40, "other": 2}'), call("fail", '{"why": "so"}'), texts("42")
    made = make(*steps)
    assert converse(made, Person(f"/tools {functions}", "sum?")) == 0
    roles = [each["role"] for each in made.messages]
    assert roles == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert made.messages[1]["tool_calls"][0]["function"]["arguments"] == '{"one": 40, "other": 2}'
    assert made.messages[2] == {"role": "tool", "tool_call_id": "abc123def", "content": "42"}
    assert made.messages[4]["content"] == "error: RuntimeError: so"
    (add, fail) = bodies(made)[0]["tools"]
    assert add["function"]["description"] == "Return the sum of two numbers."
    assert add["function"]["parameters"]["required"] == ["one"]
    assert fail["function"]["name"] == "fail"
    assert 'calls add({"one": 40, "other": 2})\n  42\n' in notes.getvalue()


def test_calls_without_end_are_bounded(make: Make, functions: str) -> None:
    made = make(call("add", '{"one": 1}'))
    converse(made, Person(f"/tools {functions}", "x"))
    assert len(bodies(made)) == MAX_ROUNDS
    assert made.messages == []


@pytest.mark.parametrize("reason", ["length", "content_filter", "repetition"])
def test_a_call_that_was_cut_off_is_not_made(
    reason: str, make: Make, tmp_path: Path, notes: io.StringIO
) -> None:
    (tmp_path / "functions.py").write_text("def erase(name: str = 'all') -> str: return name")
    made = make([*call("erase", ""), ended(reason)], texts("b"))
    converse(made, Person(f"/tools {tmp_path}/functions.py", "x"))
    assert "the call of a function was cut off, so nothing was called" in notes.getvalue()
    assert "calls erase" not in notes.getvalue()
    assert made.messages == []


def test_a_call_without_an_offer_calls_nothing(make: Make, notes: io.StringIO) -> None:
    made = make(call("add", "{}"))
    converse(made, Person("x"))
    assert "none were offered" in notes.getvalue()
    assert made.messages == []


@pytest.mark.parametrize(
    "chunk",
    [
        *({"choices": [3]}, {"choices": 3}, delta(content=3), delta(tool_calls=[{}, 1])),
        delta(tool_calls=[{"index": math.inf}]),
    ],
)
def test_a_stream_of_another_form_is_refused(chunk: Body, make: Make, notes: io.StringIO) -> None:
    converse(make([chunk]), Person("x"))
    assert "no chunks as OpenAI's" in notes.getvalue()


def test_commands_change_the_next_request(make: Make, tmp_path: Path) -> None:
    (tmp_path / "shape.json").write_text('{"type": "object"}')
    (tmp_path / "notes.txt").write_text("some\n```\ntext")
    lines = (
        *("/set temperature 0.3", "/set top-k 5", "/set top_k default", "/system Be brief"),
        *(f"/schema {tmp_path}/shape.json", f"/file {tmp_path}/notes.txt", "read", "/stats on"),
        *("/system off", "/schema off", "again", "/stats", "/clear", "/bye", "never"),
    )
    made = make(texts("a"))
    assert converse(made, Person(*lines)) == 0
    first, second = bodies(made)
    assert first["temperature"] == 0.3
    assert "top_k" not in first
    assert first["messages"][0] == {"role": "system", "content": "Be brief"}
    assert first["messages"][1]["content"] == "read\n\nnotes.txt:\n````\nsome\n```\ntext\n````"
    assert first["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert [each["content"] for each in second["messages"]][1:] == ["a", "again"]
    assert "response_format" not in second
    assert made.messages == []
    assert "27 prompt tokens (16 cached)" in written(made)


def test_what_a_command_shows_controls_no_terminal(make: Make, tmp_path: Path) -> None:
    usage = {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": "\x1b]0;x\x07"}}
    made = make([delta(content="a"), {"choices": [], "usage": usage}])
    file = tmp_path / "saved.json"
    kept = {"octavo_conversation": 1, "system": "\x1b[2Jb\ud800\nc", "messages": []}
    file.write_text(json.dumps(kept))
    converse(made, Person("x", "/stats", f"/load {file}", "/system"))
    assert "3 prompt tokens (0 cached)" in written(made)
    assert "\ufffd[2Jb\ufffd\nc\n" in written(made)
    assert "\x1b" not in written(made)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/hlep", "there is no command /hlep; did you mean /help?"),
        ("/set temprature 1", "did you mean temperature?"),
        ("/set temperature warm", "temperature is a number, not 'warm'"),
        ("/set temperature nan", "temperature is a number, not 'nan'"),
        ("/set top_k 1.5", "top_k is a whole number"),
        ("/set temperature 5", "temperature: expected"),
        ("/set max_tokens -1", "max_tokens: expected"),
        ("/save", "write /save FILE"),
        ("/load /no/such", "/no/such cannot be read: no such file"),
        ("/file /dev/zero", "/dev/zero is no regular file"),
        ("/file /", "/ cannot be read"),
        ("/schema {here}/words.txt", "is no JSON"),
        ("/load {here}/shape.json", "is no conversation that /save has written"),
        ("/load {here}/bad.json", "messages[0].role must be"),
        ("/file {here}/latin", "is not UTF-8 text (at byte 1)"),
        ("/file {here}/large", "more than 1,048,576 bytes"),
        ("/tools {here}/words.txt", "is no Python file"),
        ("/tools {here}/broken.py", "fails: ZeroDivisionError"),
        ("/tools {here}/none.py", "defines no function"),
        ("/tools {here}/untyped.py", "f(a): annotate it"),
        ("/tools {here}/stars.py", "f(a): only parameters that can be given by name"),
        ("/tools {here}/odd.py", "f(a): annotate it with str"),
        ("/tools {here}/unhashable.py", "f(a): annotate it with str"),
        ("/stats maybe", "write /stats, /stats on or /stats off"),
    ],
)
def test_a_wrong_command_is_one_line_and_changes_nothing(
    line: str, message: str, make: Make, tmp_path: Path, notes: io.StringIO
) -> None:
    files = {
        "words.txt": "some words",
        "shape.json": "{}",
        "bad.json": '{"octavo_conversation": 1, "messages": [{"role": "x", "content": ""}]}',
        "large": "x" * ((1 << 20) + 1),
        "broken.py": "1 / 0",
        "none.py": "from json import dumps\ndef _f(): ...",
        "untyped.py": "def f(a): ...",
        "stars.py": "def f(*a: int): ...",
        "odd.py": "def f(a: set): ...",
        "unhashable.py": "def f(a: [int]): ...",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "latin").write_bytes(b"a\xff")
    made = make(texts("a"))
    assert converse(made, Person("x", line.format(here=tmp_path))) == 0
    (shown,) = notes.getvalue().splitlines()
    assert message in shown
    assert (len(made.messages), made.sampling, made.tools, made.schema) == (2, {}, None, None)


def test_a_conversation_is_saved_and_loaded(make: Make, tmp_path: Path, notes: io.StringIO) -> None:
    file = tmp_path / "kept.json"
    made = make(texts("ä"), system="Be")
    converse(made, Person("x", f"/save {file}", "y", f"/save {file}"))  # its own file
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["kept.json"]
    other = make(texts("b"))
    converse(other, Person(f"/save {file}"))
    assert "is there already; name another file" in notes.getvalue()
    converse(other, Person(f"/load {file}", "z", f"/save {file}"))
    assert (other.system, other.messages[:4]) == ("Be", made.messages)
    assert len(json.loads(file.read_text())["messages"]) == 6


def test_a_file_system_needs_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*paths: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    path = tmp_path / "saved"
    save(str(path), b"one", may_replace=False)
    with pytest.raises(RequestError, match="there already"):
        save(str(path), b"two", may_replace=False)
    assert [each.read_bytes() for each in tmp_path.iterdir()] == [b"one"]


def test_half_of_a_pair_is_saved_and_loaded(make: Make, tmp_path: Path) -> None:
    made = make(texts("a\ud800b"))
    converse(made, Person("x", f"/save {tmp_path}/kept.json"))
    other = make(texts("c"))
    converse(other, Person(f"/load {tmp_path}/kept.json"))
    assert other.messages == made.messages
    assert other.messages[1]["content"] == "a\ud800b"


def test_bytes_that_are_no_text_lose_nothing(make: Make, notes: io.StringIO) -> None:
    made = make(texts("a"))
    person = Person("x", UnicodeDecodeError("utf-8", b"a\xff", 1, 2, "invalid"), "y")
    assert converse(made, person) == 0
    assert [each["content"] for each in made.messages] == ["x", "a", "y", "a"]
    assert "not UTF-8 text (at byte 1)" in notes.getvalue()


def test_lists_and_dicts_of_typing_are_annotations(make: Make, tmp_path: Path) -> None:
    text = "import typing\ndef f(a: typing.List, b: typing.Dict, c: typing.List[int]): ..."
    (tmp_path / "functions.py").write_text(text)
    made = make(texts("a"))
    converse(made, Person(f"/tools {tmp_path}/functions.py", "x"))
    (function,) = bodies(made)[0]["tools"]
    assert function["function"]["parameters"]["properties"] == {
        "a": {"type": "array"},
        "b": {"type": "object"},
        "c": {"type": "array", "items": {"type": "integer"}},
    }


def test_lines_and_texts_of_several_lines(make: Make) -> None:
    made = make(texts("a"))
    lines = ("one", "", "  two ", '"""/help', "three", 'four"""', "five\\", "six", '"""seven"""')
    assert converse(made, Person(*lines)) == 0
    asked = [each["content"] for each in made.messages if each["role"] == "user"]
    assert asked == ["one", "two", "/help\nthree\nfour", "five\nsix", "seven"]


def test_ctrl_c_in_an_answer_never_leaves(
    make: Make, capsys: pytest.CaptureFixture[str], notes: io.StringIO
) -> None:
    stopped = [delta(content="so"), KeyboardInterrupt()]
    made = make(stopped, stopped, texts("a"))
    assert converse(made, Person("x", "y", KeyboardInterrupt, "z")) == 0
    assert [each["content"] for each in made.messages] == ["x", "so", "y", "so", "z", "a"]
    assert notes.getvalue() == "(stopped)\n(stopped)\n"
    assert "to leave" in capsys.readouterr().out
    with pytest.raises(KeyboardInterrupt):
        converse(made, Person(KeyboardInterrupt, KeyboardInterrupt, "never"))


def test_a_cut_answer_says_so(make: Make, notes: io.StringIO) -> None:
    make([delta(content="so"), ended("length")]).ask("x")
    assert "the limit of tokens" in notes.getvalue()
