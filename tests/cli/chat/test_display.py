"""What of an answer a terminal shows, and what a pipe gets."""

from __future__ import annotations

import io
import random
import re

import pytest

from octavo.cli.chat.display import Display, Markdown

_STYLES = re.compile(r"\x1b\[\d+m")
TEXTS = (
    "A **bold** word, `code` and 2 ** 3, a**b, *slanted*, ** not bold **.",
    "# Title\nplain\n```python\nx = '**no**'\n# no title\n```\nafter **x\nplain",
    "```\nopen", "`a ** b` **c `d` e** f", "**", "*", "``", "a\n\n\n##", "   ```\nx\n   ```", "#no",
)  # fmt: skip


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def whole(text: str) -> str:
    return Markdown().feed(text, is_last=True)


def in_pieces(text: str, seed: int) -> str:
    chooser, markdown, made = random.Random(seed), Markdown(), []
    while text:
        length = chooser.randint(1, 4)
        made.append(markdown.feed(text[:length]))
        text = text[length:]
    return "".join([*made, markdown.feed("", is_last=True)])


@pytest.mark.parametrize("text", TEXTS)
def test_no_character_is_lost_however_it_is_split(text: str) -> None:
    styled = whole(text)
    assert _STYLES.sub("", styled) == text
    assert not _STYLES.findall(styled) or _STYLES.findall(styled)[-1] == "\x1b[0m"
    for seed in range(20):
        assert in_pieces(text, seed) == styled


def test_styles() -> None:
    assert whole("a **b** c") == "a \x1b[1m**b**\x1b[0m c"
    assert whole("`x`") == "\x1b[36m`x`\x1b[0m"
    assert whole("# T\nx") == "\x1b[1m# T\x1b[0m\nx"
    assert whole("```py\nx\n```\n") == (
        "\x1b[2m```py\x1b[0m\n\x1b[36mx\x1b[0m\n\x1b[36m\x1b[0m\x1b[2m```\x1b[0m\n"
    )
    for plain in ("2 ** 3", "a**b", "x * y * z"):
        assert whole(plain) == plain
    assert whole("**x\ny") == "\x1b[1m**x\x1b[0m\ny"  # a line's style ends with it


def test_a_pipe_gets_the_text_as_it_is() -> None:
    stream = io.StringIO()
    display = Display(stream, io.StringIO())
    for piece in ("**a** \x1b[31m", "\x07b\n"):
        display.reasoning("hm")
        display.text(piece)
    display.end()
    assert stream.getvalue() == "**a** \x1b[31m\x07b\n"


def test_a_terminal_gets_no_commands_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    stream, notes = Terminal(), Terminal()
    display = Display(stream, notes)
    display.reasoning("\x1bhm")
    display.text("\x1b]0;title\x07**a**\r\x9b2J")
    display.note("calls \x1b[2J")
    assert stream.getvalue() == "\ufffdhm\n\n\ufffd]0;title\ufffd**a**\ufffd\ufffd2J\n"
    assert notes.getvalue() == "calls \ufffd[2J\n"


def test_pairs_of_surrogates_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some servers send the halves of a character in two pieces."""
    monkeypatch.setenv("TERM", "dumb")
    for stream in (io.StringIO(), Terminal()):
        display = Display(stream, Terminal())
        for piece in ("a\ud83d", "\ude00b", "\ude00c", "\ud83d"):
            display.text(piece)
        display.end()
        assert stream.getvalue() == "a\U0001f600b\ufffdc\ufffd\n"


def test_colours_are_an_option_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for variables, expected in (
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
    ):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        stream = Terminal()
        display = Display(stream, io.StringIO())
        display.text("**a**")
        display.end()
        assert ("\x1b[1m" in stream.getvalue()) is expected
        assert stream.getvalue().endswith("\n")
