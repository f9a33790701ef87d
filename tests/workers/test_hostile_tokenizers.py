"""A model's tokenizer and template cost their own request only, and run in prompt workers only."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from octavo.text.token_bytes import TokenizerError
from octavo.text.tokenizer import Tokenizer
from octavo.text.tokenizer_files import load_tokenizer_at
from octavo.transport.errors import ApiError
from octavo.workers.jobs import PromptJob
from octavo.workers.pool import MAX_OVERRUNS
from octavo.workers.process import Worker
from tests.server.engine import FakeEngine
from tests.server.make import LIMIT, events, patient, serving
from tests.workers.test_prompt_pool import FOREVER, conversation, pool_of

Json = dict[str, Any]
MEBIBYTE = 1 << 20


def changed(source: Path, target: Path, change: Callable[[Json], object]) -> Path:
    """Copy a tokenizer's files, with a change of `tokenizer.json`."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (target / name).write_bytes((source / name).read_bytes())
    content = json.loads((target / "tokenizer.json").read_text())
    change(content)
    (target / "tokenizer.json").write_text(json.dumps(content))
    return target


def replace(old: str, new: str) -> Json:
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def in_turn(*steps: Json) -> Json:
    return {"type": "Sequence", "normalizers": list(steps)}


# Rules that make a short text large; the limit of the test is small, so that memory is not filled.
GROWING = {
    "a large replacement": replace("zq", "x" * (20 * MEBIBYTE)),
    "nested replacements": in_turn(*[replace("x", "x" * 300)] * 4),
}


@pytest.mark.parametrize("normalizer", GROWING.values(), ids=GROWING.keys())
def test_a_text_that_grows_costs_its_own_request_only(
    directory: Path, tmp_path: Path, normalizer: Json
) -> None:
    changed(directory, tmp_path, lambda content: content.update(normalizer=normalizer))

    async def main() -> None:
        async with pool_of(tmp_path, prompt_worker_bytes=200 * MEBIBYTE) as pool:
            for text in ("zqx" * 40, "zqx" * 41):
                with pytest.raises(ApiError) as refused:
                    await pool.prepare(PromptJob(text=text))
                assert (refused.value.status, refused.value.param) == (400, "prompt")
            assert (await pool.prepare(PromptJob(text="The quick"))).token_ids

    asyncio.run(main())


def test_a_pattern_that_backtracks_without_an_end_is_a_refusal(
    directory: Path, tmp_path: Path
) -> None:
    split = {"type": "Split", "pattern": {"Regex": r"(a+)+\1b"}, "behavior": "Isolated"}

    def change(content: Json) -> None:
        steps = [{**split, "invert": False}, content["pre_tokenizer"]]
        content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}

    changed(directory, tmp_path, change)
    killed: list[float] = []

    async def main() -> None:
        async with pool_of(tmp_path, killed) as pool:
            with pytest.raises(ApiError) as refused:
                await pool.prepare(PromptJob(text="a" * 40))
            assert "tokenizer fails on this text" in refused.value.message
            assert (await pool.prepare(PromptJob(text="The quick"))).token_ids
        assert not killed

    asyncio.run(main())


def growing_tokens(content: Json) -> None:
    """Let each added token become large, which happens when the tokenizer is read."""
    content["normalizer"] = in_turn(*[replace("x", "x" * 1000)] * 4)
    token = {"special": False, "lstrip": False, "rstrip": False, "single_word": False}
    content["added_tokens"].append({**token, "id": 300, "content": "x", "normalized": True})


def broken(content: Json) -> None:
    """Leave the vocabulary out."""
    del content["model"]["vocab"]


def growing_decoder(content: Json) -> None:
    """Let the text of each token be a thousand times as long."""
    content["decoder"] = replace("e", "e" * 1000)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (growing_tokens, "its process was ended by signal 6, as when memory runs out"),
        (broken, "Missing vocab"),
        (growing_decoder, "more than the limit of 64"),
    ],
)
def test_a_tokenizer_that_cannot_be_read_within_the_limits_is_refused_in_one_line(
    directory: Path,
    tmp_path: Path,
    change: Callable[[Json], object],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("octavo.workers.process.END_SECONDS", LIMIT)
    worker = Worker.launch(patient(), str(changed(directory, tmp_path, change)))
    with pytest.raises(TokenizerError) as refused:
        worker.read_table()
    worker.end()
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_tokenizer_for_which_its_time_was_too_short_is_said_to_be_slow(directory: Path) -> None:
    """The process ends itself by an alarm, which does not show that memory ran out."""
    worker = Worker.launch(patient(), str(directory))
    os.kill(worker._process.pid, signal.SIGALRM)
    with pytest.raises(TokenizerError, match="has taken too long"):
        worker.read_table()
    worker.end()


LIMITED = """
import resource, subprocess, sys
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
sys.exit(subprocess.run([sys.executable, "-c", sys.argv[2], *sys.argv[3:]]).returncode)
"""
PREPARE = """
import asyncio, sys
from octavo.workers.pool import PromptPool
from octavo.options.server import ServerSettings
from octavo.workers.jobs import PromptJob
from octavo.text.tokenizer_files import load_tokenizer_at

async def main():
    settings = ServerSettings(template_seconds=300, tokenize_seconds=300)
    pool = PromptPool(settings, sys.argv[1], print)
    print((await pool.prepare(PromptJob(text="The quick"))).token_ids)
    await pool.close()

asyncio.run(main())
"""


@pytest.mark.parametrize("mebibytes", [600, 3000])
def test_a_worker_starts_under_a_lower_limit_of_memory(directory: Path, mebibytes: int) -> None:
    """`ulimit -v` may be lower than what a worker would allow itself; it cannot be raised."""
    command = [sys.executable, "-c", LIMITED, str(mebibytes * MEBIBYTE), PREPARE, str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    expected = load_tokenizer_at(directory).encode("The quick")
    assert done.stdout == f"{expected}\n", done.stderr


def test_the_limit_of_memory_is_that_of_the_settings(directory: Path) -> None:
    async def main() -> None:
        async with pool_of(directory, prompt_worker_bytes=300 * MEBIBYTE) as pool:
            await pool.prepare(PromptJob(text="x"))
            (worker,) = pool._workers
            soft, hard = resource.prlimit(worker._process.pid, resource.RLIMIT_AS)
            pages = int(Path(f"/proc/{worker._process.pid}/statm").read_text().split()[0])
            assert soft == hard
            rest = soft - pages * resource.getpagesize()
            assert 200 * MEBIBYTE < rest <= 301 * MEBIBYTE

    asyncio.run(main())


def test_a_template_that_always_exceeds_the_limits_is_reported_once(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with pool_of(directory, template_seconds=0.1, chat_template=FOREVER) as pool:
            for _ in range(MAX_OVERRUNS + 1):
                with pytest.raises(ApiError, match=r"took more than 0\.1 s"):
                    await pool.prepare(conversation(FOREVER))

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())
    said = [record for record in caplog.records if "chat template has exceeded" in record.message]
    assert len(said) == 1


def test_templates_of_clients_are_not_reported_as_the_models(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with pool_of(directory, template_seconds=0.1) as pool:
            for _ in range(MAX_OVERRUNS):
                with pytest.raises(ApiError, match="took more than"):
                    await pool.prepare(conversation(FOREVER))

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())
    assert not [record for record in caplog.records if "has exceeded" in record.message]


CHAT: Json = {"messages": [{"role": "user", "content": "The quick"}]}
ASKED: list[tuple[str, Json]] = [
    ("/v1/completions", {"prompt": "The quick", "echo": True, "logprobs": 3}),
    ("/v1/completions", {"prompt": ["one", "two"], "bad_words": ["fox"], "stop": ["q"]}),
    ("/v1/completions", {"prompt": [5, 6, 7], "echo": True, "prompt_logprobs": 1}),
    ("/v1/completions", {"prompt": "x", "stream": True, "truncate_prompt_tokens": 2}),
    ("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 2}),
    ("/v1/chat/completions", {**CHAT, "stream": True, "return_token_ids": True}),
    ("/tokenize", {"prompt": "The quick", "return_token_strs": True}),
    ("/tokenize", CHAT),
    ("/detokenize", {"tokens": [5, 6, 7]}),
]


def test_the_server_answers_everything_without_the_models_tokenizer(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table of tokens that a worker has packed is enough, as in `octavo serve`."""

    async def ask(engine: FakeEngine) -> list[Any]:
        answers = []
        async with serving(directory, engine, template_seconds=LIMIT) as client:
            for path, body in ASKED:
                extra = {"max_tokens": 9, "temperature": 0} if path.startswith("/v1") else {}
                response = await client.post(path, json={**body, **extra})
                assert response.status_code == 200, response.text
                answers.append(without_names(response.text, is_stream="stream" in body))
        return answers

    usual = asyncio.run(ask(FakeEngine(directory)))
    engine = FakeEngine(directory)
    worker = Worker.launch(patient(), str(directory))
    engine.model.tokenizer = worker.read_table()
    worker.end()

    def refuse(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("the model's tokenizer ran in the server's process")

    monkeypatch.setattr(Tokenizer, "__init__", refuse)
    monkeypatch.setattr(tokenizers.Tokenizer, "from_file", refuse)
    assert asyncio.run(ask(engine)) == usual


def without_names(text: str, *, is_stream: bool) -> Any:
    """Return what an answer says, without its id and its time."""
    if is_stream:
        choices = [choice for event in events(text) for choice in event["choices"]]
        texts = [{**each, **each.get("delta", {})} for each in choices]
        return "".join(each.get("text", "") + each.get("content", "") for each in texts)
    content = json.loads(text)
    return {name: value for name, value in content.items() if name not in ("id", "created")}
