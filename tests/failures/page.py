"""docs/errors.md, generated from the failures: `python -m tests.failures.page --write`."""

from __future__ import annotations

import sys
import tempfile
from itertools import groupby
from pathlib import Path

from tests.failures.catalogue import FAILURES
from tests.failures.making import Failure, Outcome, outcome
from tests.tidy.source import ROOT

PAGE = ROOT / "docs" / "errors.md"
_VARIES = "*a line with what this machine and this version have*"
_OPENING = """\
# What Octavo prints when something fails

Each line below was printed by a failure that the tests make on purpose; the page is made from them
by `python -m tests.failures.page --write`. A message is one line: what is wrong, why, and what to
do. Exit codes: 1, it failed, and may work another time; 2, the command line or the settings cannot
work; 3, the model's files are damaged, incomplete or not supported. `--debug` shows the traceback.
"""


def page(outcomes: dict[str, Outcome], place: Path) -> str:
    """Return the page, for what the failures printed in sub-directories of a place."""
    parts = [_OPENING]
    for group, failures in groupby(FAILURES, lambda each: each.group):
        parts.append(f"\n## {group}\n\n| what happened | code | what is printed |\n")
        parts.append("| --- | --- | --- |\n")
        parts += [_row(each, outcomes[each.title], place) for each in failures]
    return "".join(parts)


def _row(failure: Failure, found: Outcome, place: Path) -> str:
    message = found.lines[-1].replace(f"{directory_of(failure, place)}/", "")
    text = _VARIES if failure.varies else f"`{message.replace('|', chr(92) + '|')}`"
    if "`" in message and not failure.varies:
        text = f"`` {message.replace('|', chr(92) + '|')} ``"
    return f"| {failure.title} | {found.code} | {text} |\n"


def directory_of(failure: Failure, place: Path) -> Path:
    """Return the directory in which a failure is made."""
    return place / str(FAILURES.index(failure))


def outcomes_of(place: Path) -> dict[str, Outcome]:
    """Make all failures, each in its own directory, and return what each led to."""
    found = {}
    for failure in FAILURES:
        directory = directory_of(failure, place)
        directory.mkdir()
        found[failure.title] = outcome(failure, directory)
    return found


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python -m tests.failures.page --write")
    with tempfile.TemporaryDirectory() as name:
        PAGE.write_text(page(outcomes_of(Path(name)), Path(name)), "utf-8")
