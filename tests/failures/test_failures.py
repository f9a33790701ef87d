"""Each failure of the catalogue is one line that says what is wrong, why, and what to do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.failures.catalogue import FAILURES
from tests.failures.making import Failure, Outcome
from tests.failures.page import PAGE, outcomes_of, page

# How a part of a message begins, or what it holds, that says what to do.
_DOES = re.compile(
    r"(^|[;:,.?(] )(or )?(write|give|name|use|see|set|choose|leave|make|correct|download|copy|put|"
    r"create|add|lower|raise|shorten|free|unset|check|install|save|convert|bind|ask|did you mean|"
    r"there are|a model is|supported are|an example is|as in)\b"
    r"|`(octavo|pip|git lfs|hf)\b|must be\b|the (types|names) are\b|the nearest are\b"
    r"|choose from|pip install|is its directory in|of another model family|does not belong",
    re.IGNORECASE,
)
_MOST_CHARACTERS = 1200  # beside the names of a temporary directory


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Outcome], Path]:
    """Return what the failures led to, and where they were made."""
    place = tmp_path_factory.mktemp("failures")
    return outcomes_of(place), place


def test_the_catalogue_has_each_failure_once() -> None:
    assert len(FAILURES) >= 50
    assert len({each.title for each in FAILURES}) == len(FAILURES)


@pytest.mark.parametrize("failure", FAILURES, ids=lambda each: each.title)
def test_a_failure_is_one_line_with_its_three_parts(
    failure: Failure, made: tuple[dict[str, Outcome], Path]
) -> None:
    found = made[0][failure.title]
    assert found.code == failure.code
    (line,) = found.lines
    head, _, message = line.partition(": ")
    assert re.fullmatch("octavo( [a-z]+)?", head)
    assert failure.subject in message, "what is wrong is not named"
    assert _DOES.search(message), "it does not say what to do"
    assert len(re.split(r"[;:,.?(] ", message)) > 1 or "must" in message, "it does not say why"
    assert len(message) < _MOST_CHARACTERS
    assert "bug in Octavo" not in line
    assert "Traceback" not in line


def test_the_page_is_what_is_printed(made: tuple[dict[str, Outcome], Path]) -> None:
    assert PAGE.read_text("utf-8") == page(*made), "run: python -m tests.failures.page --write"
