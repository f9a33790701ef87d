"""The scripts of `octavo completion`: shells read them, and complete what the parsers accept."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from octavo.cli import main
from octavo.cli.about import bash, fish, zsh
from octavo.cli.about.description import Page, pages
from octavo.cli.commands import COMMANDS, OK, USAGE

SCRIPTS = {"bash": bash.script, "zsh": zsh.script, "fish": fish.script}


@cache
def described() -> tuple[Page, ...]:
    return tuple(pages())


@cache
def script(shell: str) -> str:
    return SCRIPTS[shell](described())


def needs(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")


@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_command_prints_the_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == OK
    assert capsys.readouterr().out == script(shell)


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == USAGE
    assert "bash" in capsys.readouterr().err


@pytest.mark.parametrize("shell", SCRIPTS)
def test_a_script_has_each_option_of_each_command(shell: str) -> None:
    text = script(shell)
    for page in described():
        assert page.command.name in text
        for flag in (flag for each in page.arguments for flag in each.flags):
            assert (fish._name(flag) if shell == "fish" else flag) in text


@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_shell_reads_the_script(shell: str, tmp_path: Path) -> None:
    needs(shell)
    file = tmp_path / "script"
    file.write_text(script(shell), "utf-8")
    found = subprocess.run([shell, "-n", file], capture_output=True, text=True, timeout=300)
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


def completed_by_bash(folder: Path, *words: str) -> set[str]:
    """Return what bash offers for the last of the words, in a folder."""
    line = shlex.join(["octavo", *words])
    program = f"""{script("bash")}
        COMP_WORDS=({line}) COMP_CWORD={len(words)}
        _octavo
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    found = subprocess.run(
        ["bash", "--norc", "-c", program],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (found.returncode, found.stderr) == (0, "")
    return set(filter(None, found.stdout.splitlines()))


def test_bash_completes_commands_flags_and_values(tmp_path: Path) -> None:
    needs("bash")
    (tmp_path / "a folder").mkdir()
    (tmp_path / "a file.yaml").touch()

    def offered(*words: str) -> set[str]:
        return completed_by_bash(tmp_path, *words)

    assert offered("") == {*COMMANDS, "help"}
    assert offered("ser") == offered("--debug", "ser") == {"serve"}
    flags = offered("serve", "--max-")
    assert {"--max-model-len", "--max-num-seqs", "--max-body-bytes"} <= flags
    assert all(flag.startswith("--max-") for flag in flags)
    assert offered("serve", "--engine", "") == {"process", "inline"}
    assert offered("serve", "--engine", "=") == {"process", "inline"}  # as bash splits it
    assert offered("serve", "--engine", "=", "pro") == {"process"}
    assert offered("serve", "--dtype", "b") == {"bfloat16"}
    assert offered("serve", "--config", "a") == {"a file.yaml", "a folder"}
    assert offered("serve", "--download-dir", "a") == {"a folder"}
    assert offered("serve", "--port", "") == set()
    assert offered("serve", "smo") == {"smollm2"}
    assert offered("serve", "a f") == {"a file.yaml", "a folder"}
    assert offered("completion", "") == set(SCRIPTS)
    assert offered("man", "ver") == {"version"}
    assert offered("nothing", "--") == set()


def test_fish_completes_flags_and_values(tmp_path: Path) -> None:
    needs("fish")
    for line, offered in (
        ("octavo serve --max-model", "--max-model-len"),
        ("octavo serve --engine i", "inline"),
        ("octavo serv", "serve"),
        ("octavo serve smoll", "smollm2"),
    ):
        found = subprocess.run(
            ["fish", "--no-config", "-c", f"{script('fish')}complete -C {shlex.quote(line)}"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert found.returncode == 0
        assert offered in [each.partition("\t")[0] for each in found.stdout.splitlines()]
