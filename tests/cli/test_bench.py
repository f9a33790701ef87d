"""`octavo bench profile` lists the parts of a step, for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from octavo.backends.native.backend import PeakRates
from octavo.bench.profile import Line, Profile
from octavo.bench.speculation import Gain
from octavo.cli import main
from octavo.cli.bench.engine import as_gains, as_text, way_of
from octavo.cli.commands import OK, USAGE
from octavo.cli.parsing import UsageError
from octavo.core.pace.draft_counts import DraftCounts
from octavo.observe import machine
from octavo.options.speculation import read_speculative_config

SHORT = ("--steps", "3", "--peak-seconds", "0", "--num-threads", "2")


def told_of(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["bench", "profile", *words, *SHORT, "--json"]) == OK
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def test_the_phases_of_a_step(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "profile", tiny, "--context", "20", *SHORT]) == OK
    text = capsys.readouterr().out
    assert "a step of 1 row takes" in text
    assert "A plain loop reads" in text
    lines = [line.split() for line in text.splitlines()]
    head = next(line for line in lines if line[:1] == ["PHASE"])
    assert head == ["PHASE", "INSTRUCTION", "CALLS", "WAIT", "MS", "SHARE", "MB", "GB/S", "GOP/S"]
    assert [line[0] for line in lines if line[:1] and line[0].isdigit()] == [*"123456789"]


@pytest.mark.parametrize(("waits", "warns"), [(0.001, False), (0.004, True)])
def test_what_the_shares_are_of(waits: float, warns: bool) -> None:
    lines = tuple(
        Line(phase, "multiply", "Gemm", "U8", "int8", 1, 0.002, wait, 1000, 1000)
        for phase, wait in ((1, 0.0), (2, waits))
    )
    step = 0.006 + waits  # slower than its medians together: each step was disturbed elsewhere
    peaks = PeakRates(1e9, 1e9, 1e9, 1e9)
    sizes = 3 << 20, 4 << 20, 2 << 20
    text = as_text(
        "m", Profile("avx2", 2, 1, step, 0.0005, peaks, ("U8: to 1 rows",), *sizes, lines)
    )
    assert "The weights take 3 MiB. 2 MiB of this process's own 4 MiB are in huge pages." in text
    assert "A cold panel of U8: to 1 rows\n" in text
    total = 0.004 + waits
    sums = ["total", f"{1e3 * waits:.3f}", "4.000", f"{0.004 / total:.0%}"]
    assert sums in [line.split() for line in text.splitlines()]
    assert f"Shares are of the {1e3 * total:.3f} ms of all phases" in text
    assert f"{waits / total:.0%} of it is waiting for other threads. 0.500 ms" in text
    assert ("something else may be running" in text) is warns


def test_alike_phases_are_one_and_nothing_is_left_out(
    tiny: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = told_of(capsys, tiny, "--streams", "3", "--context", "20", "--cpu-weights", "int8")
    assert told["threads"] == 2
    assert told["rows"] == 3
    assert 0 < told["outside_seconds"] < told["step_seconds"]
    assert min(told["peak_rates"].values()) > 0
    lines = told["lines"]
    assert sum(line["calls"] for line in lines if line["kernel"] == "Gemm") == 2 * 4 + 1
    assert {line["format"] for line in lines if line["kernel"] == "Gemm"} <= {"U8", "F32"}
    assert sum(line["seconds"] for line in lines) > 0
    [attention] = [line for line in lines if line["kernel"] == "Attention"]
    assert attention["calls"] == 2
    # 21 positions each of three streams, 2 layers, 2 KV heads of 8 numbers in bf16, keys and values
    assert attention["bytes_read"] == 3 * 21 * 2 * 2 * 8 * 2 * 2


def test_a_prompt(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A single row, the last, passes through the end of the last layer and the head."""
    one, many = (told_of(capsys, tiny, "--prompt", str(rows), "--context", "0") for rows in (1, 40))
    assert many["rows"] == 40
    times: dict[float, int] = {}
    for before, after in zip(one["lines"], many["lines"], strict=True):
        assert before["text"] == after["text"]
        if before["kernel"] == "Gemm":
            assert after["bytes_read"] == before["bytes_read"]
            ratio = after["operations"] / before["operations"]
            times.setdefault(ratio, 0)
            times[ratio] += before["calls"]
    # Queries, keys and values of both layers are of all rows; what follows is in the second layer
    # of one row, as is the head.
    assert times == {40.0: 2, 20.5: 6, 1.0: 1}


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--streams", "0"), USAGE, "--streams 0 must be at least 1"),
        (("--streams", "2", "--prompt", "3"), USAGE, "--prompt is a chunk of one sequence"),
        (("--streams", "10000000"), USAGE, "a step has at most 1,048,576 rows"),
        (("--prompt", "0"), USAGE, "--prompt 0 must be at least 1"),
        (("--context", "128"), USAGE, "129 positions are more than the model's 128"),
        (("--backend", "torch"), USAGE, "only the native engine can be profiled"),
        (("-tp", "2"), USAGE, "one process is profiled"),
    ],
)
def test_what_cannot_be_is_refused(
    tiny: str, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, message: str
) -> None:
    assert main(["bench", "profile", tiny, *words, *SHORT]) == code
    assert message in capsys.readouterr().err


def test_more_memory_than_there_is_is_refused(
    tiny: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    little = machine.Memory(1 << 30, 1 << 20, "the container")
    monkeypatch.setattr(machine, "memory", lambda: little)
    assert main(["bench", "profile", tiny, "--context", "20", *SHORT]) == USAGE
    assert "measure a smaller step or a smaller model" in capsys.readouterr().err


def test_there_is_nothing_else_to_measure(capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        (["everything", "tiny"], "'everything' is not a measurement: there are serve,"),
        (["tiny"], "profile and speculation; write: octavo bench profile tiny"),
        (["profile"], "the model is not named; write: octavo bench profile MODEL"),
        ([], "neither the measurement nor the model is named; write: octavo bench profile MODEL"),
    ):
        assert main(["bench", *words]) == USAGE
        assert message in capsys.readouterr().err


def test_the_ways_to_draft_are_compared_on_the_users_prompts(
    tiny: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    lines = [
        {"prompt": "The quick brown fox and the quick brown fox", "prediction": "the lazy dog"},
        {
            "prompt": "a b a b a b",
            "prediction": {
                "type": "content",
                "content": [{"type": "text", "text": "a b "}, {"type": "text", "text": "a b"}],
            },
        },
        {"prompt": "a", "prediction": {"type": "content", "content": "a b a b"}},
        {"prompt": "a", "prediction": None},
    ]
    prompts.write_text("\n\n".join(map(json.dumps, lines)))
    words = ["bench", "speculation", str(prompts), tiny, "--tokens", "40", "--streams", "2"]
    # What a row costs is measured, so that a busy machine might see no gain in any draft.
    with mock.patch.object(DraftCounts, "_costs", return_value=None):
        assert main([*words, "--num-threads", "1", "--json"]) == OK
    found = json.loads(capsys.readouterr().out)
    assert [each["way"] for each in found] == ["off", "ngram", "suffix", "prediction"]
    assert {each["tokens"] for each in found} == {found[0]["tokens"]}
    assert found[0]["drafts"] == 0
    assert found[3]["drafts"] > 0
    assert all(each["steps"] + each["accepted"] <= each["tokens"] for each in found)


def test_the_table_of_gains() -> None:
    text = as_gains([Gain("off", 2.0, 20, 18), Gain("ngram", 1.0, 20, 9, 12, 9, 2.0)])
    lines = [line.split() for line in text.splitlines()]
    assert ["off", "10.0", "1.00", "1.00", "0", "0"] in lines
    assert ["ngram", "20.0", "2.00", "2.00", "12", "9"] in lines


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no prompts"),
        ("{", "line 1 of the prompts is not JSON"),
        ("a\n{}", "line 2 of the prompts has neither messages nor"),
        ('{"prompt": 5}', "line 1 of the prompts has neither messages nor"),
        ('{"prompt": "a", "prediction": 5}', "its prediction is neither a text, nor"),
        ('{"prompt": "a", "prediction": {"content": [{"text": 5}]}}', "its prediction is neither"),
    ],
)
def test_wrong_prompts_are_refused(
    tiny: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, message: str
) -> None:
    prompts = tmp_path / "prompts"
    prompts.write_text(text)
    assert main(["bench", "speculation", str(prompts), tiny]) != OK
    assert message in capsys.readouterr().err
    assert main(["bench", "speculation", str(tmp_path / "none"), tiny]) != OK
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["p", "m", "--streams", "0"], ["p", "--spec-tokens", "3"]])
def test_wrong_words_of_speculation(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "p").write_text("a prompt")
    words = [str(tmp_path / word) if word == "p" else word for word in words]
    assert main(["bench", "speculation", *words]) == USAGE


@pytest.mark.parametrize(
    "given",
    [
        {"method": "mtp", "num_speculative_tokens": 3},
        {"method": "custom_class", "model": "mine:Mine"},
        {"model": "smaller"},
        {"model": "smaller", "draft_candidates": 3, "quantization": "int4"},
    ],
)
def test_ways_that_need_settings_are_measured_beside_the_others(given: dict[str, Any]) -> None:
    assert way_of(given) == read_speculative_config(given)
    with pytest.raises(UsageError, match="--spec-method mtp"):
        way_of({"method": "suffix"})
