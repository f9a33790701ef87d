"""`octavo run` answers as the library does, from words and from standard input."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from octavo import LLM, SamplingParams
from octavo.cli import main
from octavo.cli.commands import INTERRUPTED, OK, USAGE
from octavo.env import child_environment

Pipe = Callable[[bytes], None]
FEW = ("--temperature", "0", "--max-tokens", "6", "--ignore-eos")
SMALL = ("--num-gpu-blocks-override", "20")


@pytest.fixture(scope="module")
def llm(tiny: str) -> LLM:
    return LLM(tiny, num_gpu_blocks_override=20)


GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


def run(tiny: str, *words: str) -> int:
    return main(["run", tiny, *SMALL, *FEW, *words])


@pytest.mark.usefixtures("pipe")
def test_a_prompt_is_answered(tiny: str, llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tiny, "The quick", "brown fox") == OK
    messages = [{"role": "user", "content": "The quick brown fox"}]
    expected = llm.chat(messages, GREEDY)[0].outputs[0].text
    assert capsys.readouterr().out == expected + "\n"


def test_the_first_word_is_the_model(
    tiny: str, llm: LLM, pipe: Pipe, capsys: pytest.CaptureFixture[str]
) -> None:
    """The prompt may stand before, between and behind options, or be piped in."""
    for words, piped in (
        ((tiny, *SMALL, *FEW, "The", "quick"), b""),
        ((*SMALL, *FEW, tiny, "The", "quick"), b""),
        ((tiny, "The", *SMALL, "quick", *FEW), b""),
        ((tiny, *SMALL, *FEW, "--", "The", "quick"), b""),
        ((tiny, *SMALL, *FEW), b"The quick\n"),
    ):
        pipe(piped)
        assert main(["run", *words]) == OK
        messages = [{"role": "user", "content": "The quick"}]
        assert capsys.readouterr().out == llm.chat(messages, GREEDY)[0].outputs[0].text + "\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name a model first, as in: octavo run smollm2"),
        (["--raw"], "name a model first, as in: octavo run smollm2"),
        (["smollm2"], "there is no prompt"),
        (["smolm2", "hi"], "there is no model 'smolm2'; did you mean 'smollm2'?"),
        (["hello"], "the model is the first word, as in: octavo run smollm2 hello"),
        (["Why so?"], "the model is the first word, as in: octavo run smollm2 'Why so?'"),
        (["-m", "smollm2", "hi", "you"], "the first word now: octavo run smollm2 hi you"),
        (["hi", "--model", "smollm2"], "the first word now: octavo run smollm2 hi"),
    ],
)
def test_the_model_is_never_guessed(
    words: list[str], message: str, pipe: Pipe, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe(b"")
    assert main(["run", *words]) == USAGE
    told = capsys.readouterr()
    assert told.out == ""
    (line,) = told.err.splitlines()
    assert message in line


def test_a_mistyped_model_does_not_take_what_is_piped_in(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(b"a long document"), "utf-8")
    monkeypatch.setattr("sys.stdin", stream)
    assert main(["run", "smolm2"]) == USAGE
    assert "did you mean 'smollm2'" in capsys.readouterr().err
    assert stream.read() == "a long document"


def test_at_a_terminal_a_model_alone_opens_the_conversation(
    tiny: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    # The engine is the real one; tests/cli/chat/test_own_engine.py asks it.
    monkeypatch.setattr(
        "octavo.cli.chat.own_engine.OwnEngine", lambda llm, _: SimpleNamespace(close=llm.close)
    )
    monkeypatch.setattr("octavo.cli.chat.loop.converse", lambda made: len(made.messages))
    assert main(["run", tiny, *SMALL, *FEW]) == OK
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("pipe")
def test_raw_continues(tiny: str, llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tiny, "--raw", "A day in", "--stats") == OK
    told = capsys.readouterr()
    assert told.out == llm.generate("A day in", GREEDY)[0].outputs[0].text + "\n"
    assert "6 tokens" in told.err


def test_piped_text_comes_behind_the_words(
    tiny: str, llm: LLM, pipe: Pipe, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, piped, prompt in (
        ((), b"x y\n", "x y"),
        (("Say:",), b"x y\n", "Say:\n\nx y"),
        (("Say:",), b"\n", "Say:"),
    ):
        pipe(piped)
        assert run(tiny, *words) == OK
        messages = [{"role": "user", "content": prompt}]
        expected = llm.chat(messages, GREEDY)[0].outputs[0].text
        assert capsys.readouterr().out == expected + "\n"


def test_a_system_message_and_a_template(
    tiny: str, llm: LLM, tmp_path: Path, pipe: Pipe, capsys: pytest.CaptureFixture[str]
) -> None:
    template = tmp_path / "chat.jinja"
    template.write_text("{% for m in messages %}[{{ m.role }}|{{ m.content }}]{% endfor %}")
    assert run(tiny, "--system", "Be", "--chat-template", str(template), "hello") == OK
    expected = llm.generate("[system|Be][user|hello]", GREEDY)[0].outputs[0].text
    assert capsys.readouterr().out == expected + "\n"


@pytest.mark.parametrize(
    ("words", "piped", "code", "message"),
    [
        ([], b"", USAGE, "there is no prompt"),
        (["--raw", "--system", "x", "y"], b"", USAGE, "--raw uses no chat template"),
        ([], b"\xff\xfe", USAGE, "not UTF-8 text (at byte 0)"),
        (["x", "--top-p", "7"], b"", USAGE, "--top-p=7.0"),
        (["x", "--max-num-seqs", "0"], b"", USAGE, "--max-num-seqs=0 must be at least 1"),
        (
            ["x", "--chat-template", "/no/such"],
            b"",
            USAGE,
            "--chat-template='/no/such' cannot be read",
        ),
        (["x " * 300], b"", USAGE, "leaves no room for an answer"),
    ],
)
def test_mistakes(
    tiny: str,
    pipe: Pipe,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    piped: bytes,
    code: int,
    message: str,
) -> None:
    pipe(piped)
    assert main(["run", tiny, *SMALL, *words]) == code
    told = capsys.readouterr()
    assert told.err.startswith("octavo run: ")
    assert message in told.err
    assert "Traceback" not in told.err
    assert told.out == ""


@pytest.mark.usefixtures("pipe")
def test_a_model_without_a_template(
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in Path(tiny).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert run(str(tmp_path), "hello") == USAGE
    assert "this model has no chat template" in capsys.readouterr().err


def test_ctrl_c_ends_the_program(tiny: str, tmp_path: Path) -> None:
    """A real signal to a real process, once it has begun an answer that would take minutes."""
    for file in Path(tiny).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    config["max_position_embeddings"] = 100_000
    (tmp_path / "config.json").write_text(json.dumps(config))
    command = [sys.executable, "-W", "ignore", "-m", "octavo", "run", str(tmp_path)]
    command += ["--raw", "x", "--ignore-eos", "--max-tokens", "99000", "--max-num-seqs", "1"]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=child_environment({"OMP_NUM_THREADS": "1"}),
    )
    assert process.stdout is not None
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == INTERRUPTED
    assert b"Traceback" not in errors


def test_a_conversation_has_one_engine(
    tiny: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", None)  # as at a terminal
    assert main(["chat", tiny, "-dp", "2"]) == USAGE
    assert "octavo chat --url" in capsys.readouterr().err
