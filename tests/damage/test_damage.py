"""Every damaged model either loads, or is refused in one line that names the file and the place."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.damage.corpus import MODELS, write_model
from tests.damage.mutants import Mutant
from tests.damage.trial import trial

SAMPLE = 12  # mutants of each model in every run
CHUNKS = 4
STRIDE = 5  # one in so many mutants is tried in the slow tests; `make damage` tries all


def complaints(model: Path, mutants: list[Mutant]) -> list[str]:
    """Try mutants; return what is wrong with each outcome."""
    tried = ((mutant, trial(model, mutant)) for mutant in mutants)
    return [f"{each.file}: {each.name}: {what}" for each, what in tried if what is not None]


@pytest.mark.parametrize("name", MODELS)
def test_a_sample_of_mutants_is_refused_in_a_line_or_loads(name: str, tmp_path: Path) -> None:
    model, mutants = write_model(name, tmp_path)
    unchanged = Mutant("unchanged", mutants[0].file, lambda content: content)
    assert complaints(model, [unchanged, *mutants[:SAMPLE]]) == []


@pytest.mark.slow
@pytest.mark.sample(15)
@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("name", MODELS)
def test_many_mutants_are_refused_in_a_line_or_load(name: str, chunk: int, tmp_path: Path) -> None:
    model, mutants = write_model(name, tmp_path)
    assert complaints(model, mutants[chunk * STRIDE :: CHUNKS * STRIDE]) == []


def test_the_slow_tests_try_more_than_a_thousand(tmp_path: Path) -> None:
    total = 0
    for index, name in enumerate(MODELS):
        (tmp_path / str(index)).mkdir()
        total += len(write_model(name, tmp_path / str(index))[1])
    assert total // STRIDE > 1000
