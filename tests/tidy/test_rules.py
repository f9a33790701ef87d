"""Each rule finds its planted offences, accepts decent code, and holds in this repository."""

from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath

import pytest

from tests.tidy import core_rules, prose_rules, safety_rules, set_rule, size_rules
from tests.tidy.cases import CASES, RULES, Case
from tests.tidy.source import Offence, Rule, Source, sources

FOLDER_FILES = 20

BAD = [(case, text) for case in CASES for text in case.bad]
GOOD = [(case, text) for case in CASES for text in case.good]


def name(value: object) -> str | None:
    """Return the name of a parameter: the rule's name, or the first line of the text."""
    if isinstance(value, Case):
        return value.rule.__name__
    return str(value).partition("\n")[0][:40]


@pytest.mark.parametrize(("case", "text"), BAD, ids=name)
def test_a_planted_offence_is_found(case: Case, text: str) -> None:
    """A rule reports one offence, at a line that exists, in the words of a sentence."""
    offences = list(case.rule(case.source(text)))
    assert len(offences) == 1
    assert 1 <= offences[0].line <= text.count("\n") + 1
    assert str(offences[0]).startswith(f"{case.path}:")


@pytest.mark.parametrize(("case", "text"), GOOD, ids=name)
def test_decent_code_passes(case: Case, text: str) -> None:
    """A rule accepts decent code; otherwise it would be switched off."""
    assert list(case.rule(case.source(text))) == []


def test_every_rule_has_a_planted_offence() -> None:
    """A function written as a rule and forgotten in the cases would never run."""
    takes_a_source_and_yields = {"source": Source, "return": Iterator[Offence]}
    written = {
        name
        for module in (core_rules, prose_rules, safety_rules, set_rule, size_rules)
        for name, value in vars(module).items()
        if getattr(value, "__annotations__", None) == takes_a_source_and_yields
        and not name.startswith("_")
    }
    assert written == {rule.__name__ for rule in RULES}
    assert all(any(case.bad for case in CASES if case.rule is rule) for rule in RULES)


def test_the_tree_is_walked(tmp_path: Path) -> None:
    """Files are found at any depth and whatever their language, and nothing else is read."""
    for path in ("octavo/core/plan.py", "csrc/kernels/gemm.cpp", "tests/data.json", "docs/x.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("text")
    found = [source.path for source in sources(tmp_path)]
    assert found == [PurePosixPath("csrc/kernels/gemm.cpp"), PurePosixPath("octavo/core/plan.py")]
    assert PurePosixPath("tests/tidy/test_rules.py") in [source.path for source in sources()]


@cache
def offences() -> dict[Rule, list[str]]:
    """Apply every rule to every file of the repository, each of which is parsed once."""
    found: dict[Rule, list[str]] = {rule: [] for rule in RULES}
    for source in sources():
        for rule in RULES:
            found[rule] += map(str, rule(source))
    return found


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_tree_is_tidy(rule: Rule) -> None:
    """The repository's own files have no offence; the message of a failure lists them."""
    assert not offences()[rule], "\n" + "\n".join(offences()[rule])


def test_no_folder_holds_too_many_files() -> None:
    """A folder holds at most twenty files directly; model families may be more."""
    folders = Counter(source.path.parent for source in sources())
    crowded = {str(folder): count for folder, count in folders.items() if count > FOLDER_FILES}
    assert crowded.keys() <= {"octavo/models", "tests/models"}
