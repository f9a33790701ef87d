"""The tools for llama.cpp's tests: command lines, stand-ins, and the counting of outcomes."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo import LLM, SamplingParams
from tests.llama.__main__ import outcomes, summary
from tests.llama.plugin import settings_of
from tests.llama.reasons import is_of_words, reason_of
from tests.llama.server import words_of
from tests.llama.standins import FILL, vocabulary, write_model

GIVEN = ["--hf-repo", "ggml-org/test-model-stories260K", "--offline", "--ctx-size", "512"]


def test_a_command_line_of_llama_servers_becomes_ours() -> None:
    words = words_of(Path("/models"), [*GIVEN, "--parallel", "2", "--no-jinja"])
    assert words[:2] == ["--model", "/models/stories.gguf"]
    assert words[2:6] == ["--ctx-size", "256", "--parallel", "2"]
    router = words_of(Path("/models"), ["--cors-origins", "localhost"])
    assert router[:4] == ["--cors-origins", "localhost", "--model", "/models/stories.gguf"]
    whole = words_of(Path("/models"), [*GIVEN, "--parallel", "2", "--kv-unified"])
    assert "512" in whole


def test_a_server_is_kept_where_nothing_differs_that_counts() -> None:
    first = ["server", *GIVEN, "--parallel", "2", "--batch-size", "32", "--no-jinja"]
    same = ["server", *GIVEN, "--parallel", "2", "--batch-size", "16", "--jinja"]
    assert settings_of(first) == settings_of(same)
    assert settings_of(first) != settings_of([*same, "--seed", "1"])


def test_what_cannot_pass_has_a_reason_and_nothing_else() -> None:
    assert reason_of("test_mcp_servers.py::test_mcp_echo[a]")
    assert not reason_of("test_completion.py::test_n_probs")
    assert is_of_words("test_completion.py::test_completion[a-8-(b)+]")
    assert not is_of_words("test_completion.py::test_completion_parallel_slots[1-3]")


def test_outcomes_are_counted_by_file(tmp_path: Path) -> None:
    cases = (
        '<testcase file="unit/test_a.py" name="one"/>'
        '<testcase file="unit/test_a.py" name="two"><failure/></testcase>'
        '<testcase file="unit/test_infill.py" name="test_infill_with_x"><failure/></testcase>'
        '<testcase file="unit/test_a.py" name="three"><skipped/></testcase>'
    )
    (tmp_path / "report.xml").write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    lines = summary(outcomes(tmp_path / "report.xml")).splitlines()
    assert lines[-2] == "FAILED test_a.py::two"
    assert lines[-1] == "1 passed, 1 differ by what the stand-in says, 1 not run, 1 failed"


@pytest.mark.slow
def test_a_stand_in_says_as_much_as_it_is_asked_for(tmp_path: Path) -> None:
    """Neither its end nor a byte is ever likely."""
    path = tmp_path / "m.gguf"
    write_model(path, special=FILL)
    pieces = vocabulary(FILL)[0]
    with LLM(str(path), max_model_len=256) as llm:
        sampling = SamplingParams(temperature=1.0, max_tokens=64, seed=3)
        (output,) = llm.generate("I believe", sampling, use_tqdm=False)
        ids = output.outputs[0].token_ids
    assert len(ids) == 64
    assert not any(pieces[each].startswith("<") for each in ids)
