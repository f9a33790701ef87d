"""The pages for operators: their checks hold; their commands are of files and flags that exist."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from octavo.cli.commands import COMMANDS
from octavo.cli.execute import make_parser
from tests.how_to.follow import CHECK, PAGES, ROOT, blocks, run_check

NAMES = sorted([*(page.name for page in PAGES.glob("deploy-*.md")), "observe.md"])
_CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(name: str) -> list[str]:
    """Return the commands of a page's blocks for a terminal, without their prompts."""
    text = "".join(_CONSOLE.findall((PAGES / name).read_text("utf-8")))
    lines = text.splitlines()
    assert all(line[:2] in ("$ ", "# ") for line in lines)
    return [line[2:] for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_checks_of_a_page_hold(name: str, tmp_path: Path) -> None:
    checks = [(before, code) for before, code in blocks(name) if CHECK.search(before)]
    assert len(checks) == len(list(blocks(name))) == 1
    run_check(checks[0][1], tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_the_commands_of_a_page_can_be_typed(name: str) -> None:
    """The shell reads them, their files exist, and `octavo serve` has their flags."""
    found = commands(name)
    script = "\n".join(found)
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    for path in re.findall(r"\bdeploy/[\w./-]+", script):
        assert path == "deploy/docker/api-key" or (ROOT / path).exists(), path
    for command in found:
        words = shlex.split(command)
        if words[:2] == ["octavo", "serve"]:
            make_parser(COMMANDS["serve"]).parse_args(words[2:])
