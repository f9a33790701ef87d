"""The manual of the command line describes what the parsers accept."""

from octavo.cli.commands import COMMANDS
from octavo.cli.execute import make_parser
from octavo.cli.parsing import Parser
from tests.tidy.cli_page import PAGE, page, section, spelled


def test_the_page_is_true() -> None:
    """Every command and option is on it as it is."""
    assert PAGE.read_text("utf-8") == page(), "run: python -m tests.tidy.cli_page --write"


def test_every_visible_option_is_on_the_page() -> None:
    """The writer leaves none out."""
    for command in COMMANDS.values():
        text = section(command)
        if command.name == "config":
            text += section(COMMANDS["serve"])
        for action in make_parser(command).visible_actions():
            if action.dest not in ("help", "debug"):
                assert spelled(action) in text, (command.name, action.dest)


def test_options_are_spelled_as_they_are_typed() -> None:
    """A value behind each flag that takes one, choices in braces, words alone."""
    parser = Parser(prog="x")
    assert spelled(parser.add_argument("-q", "--quiet", action="store_true")) == "`-q`, `--quiet`"
    assert spelled(parser.add_argument("--size", metavar="N")) == "`--size N`"
    assert spelled(parser.add_argument("--way", choices=("a", "b"))) == "`--way {a,b}`"
    assert spelled(parser.add_argument("model", metavar="MODEL")) == "`MODEL`"
