"""The tools for llama.cpp's tests: command lines, stand-ins, and the counting of outcomes."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo import LLM, SamplingParams
from tests.llama.__main__ import outcomes, summary
from tests.llama.encoders import make_encoders, pieces_in
from tests.llama.plugin import Wget, settings_of
from tests.llama.reasons import is_of_words, reason_of
from tests.llama.server import words_of
from tests.llama.standins import FILL, vocabulary, write_model
from tests.loader.make_files import ARRAY, STRING, write_gguf

GIVEN = ["--hf-repo", "ggml-org/test-model-stories260K", "--offline", "--ctx-size", "512"]


def test_a_command_line_of_llama_servers_becomes_ours() -> None:
    given = [*GIVEN, "--parallel", "2", "--no-jinja"]
    words = words_of(Path("/models"), [*given, "--batch-size", "32"])
    assert words[:2] == ["--model", "/models/stories.gguf"]
    assert words[2:6] == ["--cors-origins", "*", "--max-num-batched-tokens", "32"]
    assert words[6:10] == ["--ctx-size", "256", "--parallel", "2"]
    vectors = words_of(Path("/models"), [*GIVEN, "--batch-size", "32", "--embedding"])
    assert "--max-num-batched-tokens" not in vectors
    router = words_of(Path("/models"), ["--cors-origins", "localhost"])
    assert router[:3] == ["/models/stories.gguf", "/models/stories.gguf", "/models/infill.gguf"]
    assert router[3:6] == ["--cors-origins", "localhost", "--served-model-name"]
    assert len(router[6:]) == 3
    assert "--any-model-name" not in router
    whole = words_of(Path("/models"), [*GIVEN, "--parallel", "2", "--kv-unified"])
    assert "512" in whole
    experts = ["--hf-repo", "ggml-org/stories15M_MOE", "--hf-file", "any.gguf"]
    assert words_of(Path("/models"), experts)[:2] == ["--model", "/models/experts.gguf"]


def test_a_server_is_kept_where_nothing_differs_that_counts() -> None:
    first = ["server", *GIVEN, "--parallel", "2", "--ubatch-size", "32", "--no-jinja"]
    same = ["server", *GIVEN, "--parallel", "2", "--ubatch-size", "16", "--jinja"]
    assert settings_of(first) == settings_of(same)
    assert settings_of(first) != settings_of([*same, "--seed", "1"])
    assert settings_of(first) != settings_of([*same, "--batch-size", "16"])


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


def test_files_that_are_downloaded_have_stand_ins(tmp_path: Path) -> None:
    (tmp_path / "stories.gguf").write_bytes(b"weights")
    to = tmp_path / "tmp" / "draft.gguf"
    Wget(tmp_path).download("https://hub.example/main/stories15M-q4_0.gguf", str(to))
    assert to.read_bytes() == b"weights"


@pytest.mark.slow
def test_an_encoder_reads_the_pieces_of_a_vocabulary(tmp_path: Path) -> None:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "\u2581hello", "\u2581wor", "ld", "["]
    source = tmp_path / "vocabulary.gguf"
    write_gguf(source, [("tokenizer.ggml.tokens", ARRAY, (STRING, pieces))], [])
    make_encoders(tmp_path, source)
    assert pieces_in(source)[4:] == ["hello", "wor", "##ld", "##["]
    with LLM(str(tmp_path / "vectors")) as llm:
        (output,) = llm.embed("Hello world")
        assert output.prompt_token_ids == [2, 4, 5, 6, 3]
    with LLM(str(tmp_path / "scores")) as llm:
        scores = [each.outputs.score for each in llm.score("hello", ["world", "hello"])]
    assert scores[0] != scores[1]


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
