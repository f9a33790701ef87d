"""Settings of reasoning name its format, and the text that ends it when a budget is spent."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from octavo.core.sampling_params import ThinkingMarks
from octavo.formats.description import Formats
from octavo.formats.registry import reasoning_format
from octavo.options.server import ServerSettings
from octavo.options.transport import ServerSettingsError
from octavo.serving.answers.formats import parser_of, with_marks
from tests.server.engine import FakeEngine
from tests.server.make import serving
from tests.server.openai.scripted import MARKS, MESSAGES, OSLO, PATH, QWEN, ROOM, Script, make_files

OPEN, CLOSE = (MARKS.index(mark) + 258 for mark in ("<think>", "</think>"))
PHRASE = "Time is up. "
START, END = "reasoning_start_str", "reasoning_end_str"


def test_a_text_before_the_mark_is_written_when_the_budget_is_spent(tmp_path: Path) -> None:
    make_files(tmp_path, QWEN)
    runner = Script(tmp_path, [("", OSLO)])
    given = {START: "<think>", END: f"{PHRASE}</think>"}

    async def main() -> None:
        engine = FakeEngine(tmp_path, runner=runner, **ROOM)
        async with serving(tmp_path, engine, reasoning_config=given) as client:
            body = {"prompt": PHRASE, "add_special_tokens": False}
            phrase = (await client.post("/tokenize", json=body)).json()["tokens"]
            expected = ThinkingMarks(((OPEN,),), ((*phrase, CLOSE), (CLOSE,)))
            body = {"messages": MESSAGES, "thinking_token_budget": 7}
            for response in await asyncio.gather(*(client.post(PATH, json=body) for _ in "ab")):
                assert response.status_code == 200, response.text
            assert [each.thinking_marks for each in runner.samplings[-2:]] == [expected] * 2
            rule = {"allowed_token_ids": [OPEN, CLOSE, 5]}
            error = (await client.post(PATH, json={**body, **rule})).json()["error"]
            assert error["param"] == "allowed_token_ids"

    asyncio.run(main())


def config(parser: str | None = None, **given: Any) -> ServerSettings:
    return ServerSettings(reasoning_parser=parser, reasoning_config=given)


def test_the_format_may_be_named_in_either_place() -> None:
    assert parser_of(ServerSettings(reasoning_parser="qwen3")) == "qwen3"
    assert parser_of(config(reasoning_parser="qwen3")) == "qwen3"
    assert parser_of(config("qwen3", reasoning_parser="qwen3", reasoning_end_str="")) == "qwen3"
    with pytest.raises(ServerSettingsError, match="two formats"):
        parser_of(config("qwen3", reasoning_parser="deepseek_r1"))


def test_the_marks_of_the_format_change_nothing() -> None:
    known = Formats(None, reasoning_format("qwen3"))
    assert with_marks(known, ServerSettings()) is known
    same = config(reasoning_start_str="<think>", reasoning_end_str="</think>\n")
    assert with_marks(known, same) == known


def test_marks_alone_describe_a_format_whose_text_is_kept() -> None:
    given = config(reasoning_start_str="<a>", reasoning_end_str="</a>")
    made = with_marks(Formats(), given).reasoning
    assert made is not None
    assert (made.open, made.close, made.is_kept) == (("<a>",), ("</a>",), True)


@pytest.mark.parametrize(
    ("known", "given", "name"),
    [
        ("qwen3", {"reasoning_start": "x"}, START),
        ("qwen3", {START: 3}, START),
        ("qwen3", {END: " "}, END),
        ("qwen3", {END: "x" * 5000}, END),
        ("qwen3", {START: "<a>"}, START),
        ("qwen3", {END: "That is all."}, END),
        (None, {END: "</a>"}, START),
        (None, {START: "<a>"}, END),
    ],
)
def test_what_cannot_be_done_is_refused(
    known: str | None, given: dict[str, Any], name: str
) -> None:
    formats = Formats(None, reasoning_format(known) if known else None)
    with pytest.raises(ServerSettingsError, match=f"^reasoning_config: .*{name}"):
        with_marks(formats, config(**given))
