"""The pages for users: their blocks have known forms, and their commands can be typed."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from octavo.cli.commands import COMMANDS
from octavo.cli.execute import make_parser
from octavo.cli.parsing import Parser
from tests.docs.hooks import TOP_PAGES, decision_names
from tests.docs.pages import DOCS, PAGES, READ, RUN, TASKS, Block, blocks, path_of
from tests.docs.reader import Reader
from tests.how_to.follow import ROOT

ALL = [block for page in PAGES for block in blocks(page)]
_LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)]*)?\)")


def test_every_page_for_users_is_read() -> None:
    found = {path.stem for path in (DOCS / "how-to").glob("*.md")}
    others = {name for name in found if name.startswith(("add-", "deploy-"))}
    assert found - others - {"README", "observe"} == set(TASKS)
    for folder in ("tutorials", "coming-from"):
        names = {f"docs/{folder}/{path.name}" for path in (DOCS / folder).glob("*.md")}
        assert names - {"docs/tutorials/index.md"} <= set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_each_block_is_run_or_says_why_not(page: str) -> None:
    """A page of how to and a tutorial has something that runs; nothing has another form."""
    found = blocks(page)
    assert {block.kind for block in found} <= {*RUN, *READ}
    assert any(block.kind in RUN and not block.reason for block in found)
    for block in found:
        if block.kind == "console":
            assert block.commands, block.code
        elif block.kind == "python":
            ast.parse(block.code)


@cache
def parser_of(name: str) -> Parser:
    return make_parser(COMMANDS[name])


def words_of(command: str) -> list[list[str]]:
    """Return the words of each command of `octavo` in a line."""
    found = []
    for part in re.split(r"(?:[|;&]|\bwait\b)(?=(?:[^'\"]|'[^']*'|\"[^\"]*\")*$)", command):
        words = shlex.split(part.partition(" > ")[0], comments=True)
        if words[:1] == ["octavo"]:
            found.append(words[1:])
    return found


@pytest.mark.parametrize(
    "block", [block for block in ALL if block.kind == "console"], ids=lambda block: block.page
)
def test_each_command_can_be_typed(block: Block) -> None:
    """The shell reads it, and `octavo` has its command and its flags, also where it is not run."""
    subprocess.run(["bash", "-n"], input="\n".join(block.commands), text=True, check=True)
    for command in block.commands:
        for words in words_of(command.replace("\\\n", " ")):
            both = "-".join(words[:2])
            name, rest = (both, words[2:]) if both in COMMANDS else (words[0], words[1:])
            parser_of(name).parse_args(rest)


def test_each_page_is_in_the_menu() -> None:
    """mkdocs.yml names every page once, but for the decisions, which are all added."""
    named = re.findall(
        r"^\s+- (?:[^:\n]+: )?([\w./-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M
    )
    assert len(set(named)) == len(named)
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    decisions = {f"decisions/{name}" for name in decision_names()}
    assert {*named, *decisions} == {*pages, *TOP_PAGES}


def test_no_link_between_files_is_dead() -> None:
    for path in (*DOCS.rglob("*.md"), ROOT / "README.md", *(ROOT / name for name in TOP_PAGES)):
        text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", path.read_text("utf-8"), flags=re.M | re.S)
        for target in _LINK.findall(text):
            if "://" not in target and not target.startswith("mailto:"):
                assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_a_reader_uses_a_free_port_and_fails_with_a_command(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    reader.ports["8000"] = "4321"
    assert reader._with_ports("http://a:8000/x 8000") == "http://a:4321/x 8000"
    page = tmp_path / "page.md"
    page.write_text(
        "Type:\n\n```console\n$ echo good > file.txt\n$ cat file.txt missing.txt\n```\n"
    )
    with pytest.raises(AssertionError, match=r"missing\.txt"):
        reader.follow(str(page))
    assert (reader.place / "file.txt").read_text() == "good\n"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="the page types curl")
def test_the_readme_can_be_followed(tmp_path: Path) -> None:
    """Commands and programs run; `make test-docs` does so with those of every page."""
    assert Reader(tmp_path).follow("README.md") > 2


def test_pages_are_found_by_their_path() -> None:
    assert all(path_of(page).is_file() for page in PAGES)
