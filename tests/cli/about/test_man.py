"""The manual pages: complete, and roff without warnings."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.cli import main
from octavo.cli.about.description import page
from octavo.cli.about.roff import command_page, overview_page
from octavo.cli.commands import COMMANDS, EXIT_CODES, OK, USAGE

PAGES = {"octavo": overview_page(), **{k: command_page(v) for k, v in COMMANDS.items()}}
_REQUESTS = {"TH", "SH", "SS", "TP", "PP", "B", "I", "BR", "br"}


def plain(text: str) -> str:
    """Return the text that a page shows, roughly."""
    text = re.sub(r"\\f[BIR]|\\&", "", text)
    text = re.sub(r"\\\[u([0-9A-F]+)\]", lambda found: chr(int(found[1], 16)), text)
    for name, letter in (("\\-", "-"), ("\\(aq", "'"), ("\\(ga", "`"), ("\\(rs", "\\")):
        text = text.replace(name, letter)
    return text


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_its_sections_in_order(name: str) -> None:
    lines = PAGES[name].splitlines()
    assert lines[0].startswith(".TH OCTAVO")
    sections = [line.removeprefix(".SH ") for line in lines if line.startswith(".SH ")]
    assert sections[:2] == ["NAME", "SYNOPSIS"]
    assert sections[-2:] == ["EXIT STATUS", "SEE ALSO"]
    used = {line[1:].partition(" ")[0] for line in lines if line.startswith(".")}
    assert used <= _REQUESTS
    assert not [line for line in lines if line.startswith("'") or not line.isascii()]
    for code in EXIT_CODES:
        assert f".B {code}" in lines


@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_has_every_option_and_its_help(name: str) -> None:
    text = plain(PAGES[name])
    for each in page(COMMANDS[name]).arguments:
        assert all(flag in text for flag in each.flags)
        assert each.help.replace("`", "") in text
        assert all(choice in text for choice in each.choices)


def test_a_terminal_gets_the_page_by_man(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page is written as it is where there is no `man`, or it fails."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    shown, viewer = tmp_path / "shown", tmp_path / "man"
    monkeypatch.setenv("PATH", str(tmp_path))
    for content, expected in ((None, True), ("exit 3", True), (f"/bin/cat > {shown}", False)):
        if content is not None:
            viewer.write_text(f'#!/bin/sh\n[ "$*" = "-l -" ] || exit 1\n{content}\n')
            viewer.chmod(0o755)
        terminal = Terminal()
        monkeypatch.setattr(sys, "stdout", terminal)
        assert main(["man", "run"]) == OK
        assert (terminal.getvalue() == PAGES["run"]) is expected
    assert shown.read_text("utf-8") == PAGES["run"]


@pytest.mark.parametrize("name", PAGES)
def test_groff_has_no_warning(name: str) -> None:
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    found = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-z"],
        input=PAGES[name],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (found.returncode, found.stderr) == (0, "")


def test_pages_are_printed_or_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["man"]) == OK
    assert capsys.readouterr().out == PAGES["octavo"]
    assert main(["man", "serve"]) == OK
    assert capsys.readouterr().out == PAGES["serve"]
    assert main(["man", "--output", str(tmp_path / "share" / "man1")]) == OK
    written = {each.name: each.read_text() for each in (tmp_path / "share" / "man1").iterdir()}
    assert written.pop("octavo.1") == PAGES["octavo"]
    assert written == {f"octavo-{name}.1": PAGES[name] for name in COMMANDS}


def test_wrong_words_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["man", "nothing"]) == USAGE
    assert main(["man", "serve", "--output", str(tmp_path)]) == USAGE
    assert len(capsys.readouterr().err.splitlines()) == 2
    (tmp_path / "file").touch()
    assert main(["man", "--output", str(tmp_path / "file")]) != OK
    assert "file" in capsys.readouterr().err
