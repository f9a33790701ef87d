"""The rehearsal of the first run on a card: every stage passes on the fake device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import first_light
from benchmarks.first_light import STAGES, Asked, Findings, Stage
from tests.api.tiny import make_model

pytest.importorskip("torch")

FIGURES = {
    "start": "num_blocks",
    "tokens": "greedy_equal",
    "rows": "batched_bits_equal",
    "speed": "decode_8_tokens_s",
}


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("name", STAGES)
def test_a_stage_passes_on_the_fake_device(name: str, tmp_path: Path) -> None:
    make_model(tmp_path)
    found = first_light._separate(name, Asked(str(tmp_path), "fake", 4), scale=10)
    assert found["verdict"] == "passed", found
    if name in FIGURES:
        assert found[FIGURES[name]] > 0


def test_what_a_stage_finds_is_kept_when_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def disagree(asked: Asked) -> Findings:
        found: dict[str, Any] = {"equal": 3, "all": False}
        first_light._demand(found, "all")
        return found

    def break_off(asked: Asked) -> Findings:
        raise RuntimeError("an illegal access")

    asked = Asked("m", "cuda", 8)
    monkeypatch.setitem(STAGES, "tokens", Stage(disagree, 1))
    monkeypatch.setitem(STAGES, "rows", Stage(break_off, 1))
    monkeypatch.setitem(STAGES, "waits", Stage(lambda asked: {"skipped": "no card"}, 1))
    report = {name: first_light.run_stage(name, asked) for name in ("tokens", "rows", "waits")}
    assert report["tokens"] == {
        "verdict": "failed",
        "why": "all does not hold",
        "equal": 3,
        "all": False,
    }
    assert report["rows"]["why"] == "RuntimeError: an illegal access"
    text = first_light.summary(asked, report)
    assert "python -m benchmarks.first_light m --device cuda --tokens 8 --stage tokens" in text
    assert "waits    skipped   no card" in text


@pytest.mark.slow
def test_a_stage_that_takes_too_long_or_dies_does_not_end_the_others(tmp_path: Path) -> None:
    asked = Asked(str(tmp_path / "none"), "fake", 4)
    assert first_light._separate("facts", asked, scale=1e-4)["why"].startswith("it had not ended")
    assert first_light._separate("rows", asked, scale=10)["verdict"] == "failed"


def test_the_first_difference_of_two_answers() -> None:
    assert first_light._first_difference([1, 2, 3], [1, 5, 3]) == 1
    assert first_light._first_difference([1, 2], [1, 2, 3]) == 2
