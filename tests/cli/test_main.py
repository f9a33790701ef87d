"""The sub-command is found, and only what it needs is imported."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from octavo.cli import main
from octavo.cli.commands import COMMANDS, FAILED, INTERRUPTED, OK, USAGE
from octavo.cli.execute import execute
from octavo.env import child_environment

HEAVY = ("numpy", "torch", "msgspec", "jinja2", "tokenizers", "httptools", "zmq", "asyncio")


def modules_after(*words: str) -> set[str]:
    """Return the modules that the interpreter has imported after a command line."""
    program = (
        "import sys; from octavo.cli import main; "
        "code = main(sys.argv[1:]); print('modules:', *sys.modules); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=True
    )
    return set(done.stdout.rpartition("modules:")[2].split())


def test_help_imports_next_to_nothing() -> None:
    imported = modules_after("--help")
    assert not imported & {*HEAVY, "argparse", "dataclasses", "logging"}
    ours = {name for name in imported if name.startswith("octavo")}
    root = {"octavo", "octavo.bytecode", "octavo.env"}
    assert ours == root | {"octavo.cli", "octavo.cli.commands"}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_needs_no_engine(name: str) -> None:
    assert not modules_after(name, "--help") & set(HEAVY)


@pytest.mark.usefixtures("caches")
def test_listing_models_needs_no_engine() -> None:
    assert not modules_after("list") & {"numpy", "torch", "msgspec", "asyncio"}


def test_the_overview_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["-h"], ["--help"], ["help"], ["--debug"]):
        assert main(words) == OK
        text = capsys.readouterr().out
        assert all(f"octavo {each.words}" in text for each in COMMANDS.values())


def test_chat_is_run(capsys: pytest.CaptureFixture[str]) -> None:
    """A conversation is what `octavo run` holds without a prompt."""
    assert main(["chat", "--help"]) == OK
    told = capsys.readouterr().out
    assert main(["help", "run"]) == OK
    assert capsys.readouterr().out == told
    assert main(["chat"]) == USAGE
    assert "name a model first, as in: octavo run smollm2" in capsys.readouterr().err


def test_help_on_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "pull"]) == OK
    told = capsys.readouterr().out
    assert main(["pull", "--help"]) == OK
    assert capsys.readouterr().out == told
    assert "usage: octavo pull" in told


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("serv", "there is no command 'serv'; did you mean `octavo serve`?"),
        ("chatt", "there is no command 'chatt'"),
        ("zzz", "there is no command 'zzz'; there are: serve, run,"),
        ("--port", "there is no option '--port'"),
    ],
)
def test_an_unknown_command(word: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word]) == USAGE
    assert message in capsys.readouterr().err


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for word in ("version", "--version", "-V"):
        assert main([word]) == OK
        told.append(capsys.readouterr().out)
    assert told[0].startswith("octavo ")
    assert "None" not in told[0]
    assert told[0] == told[1] == told[2]


def test_debug_may_stand_before_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--debug", "pull", "no/../such"]) == FAILED
    assert "Traceback" in capsys.readouterr().err


def test_ctrl_c_has_its_own_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(arguments: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("octavo.cli.version.run", interrupt)
    assert execute(COMMANDS["version"], []) == INTERRUPTED


def test_a_reader_that_has_read_enough_gets_no_traceback() -> None:
    program = f"{sys.executable} -m octavo serve --help | head -1"
    done = subprocess.run(["sh", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage: octavo serve")
    assert done.stderr == ""


@pytest.mark.parametrize("is_buffered", [True, False])
@pytest.mark.parametrize("command", ["--help", "version", "list"])
def test_a_full_disk_behind_the_output_gets_one_line(command: str, is_buffered: bool) -> None:
    environment = child_environment({"PYTHONUNBUFFERED": "" if is_buffered else "1"})
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "octavo", command],
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
            check=False,
        )
    assert done.returncode == FAILED
    assert re.fullmatch(r"octavo.*: .*(No space|no space).*\n", done.stderr)
