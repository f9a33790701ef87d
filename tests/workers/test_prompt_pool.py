"""Prompt workers: what exceeds a limit or dies fails alone, and nothing outlives the server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from octavo.core.structured_outputs import StructuredOutputsParams
from octavo.grammar.checked import job_of
from octavo.options.server import ServerSettings
from octavo.text.tokenizer_files import load_tokenizer_at
from octavo.transport.errors import ApiError
from octavo.workers import frames
from octavo.workers import pool as worker_pool
from octavo.workers import process as worker_process
from octavo.workers.jobs import Conversation, PromptJob
from octavo.workers.pool import (
    HEAVY_BYTES,
    MAX_AHEAD,
    MAX_DEATHS,
    SUSPECT_SECONDS,
    PromptPool,
)
from octavo.workers.process import SentJob, Worker
from tests.server.make import LIMIT, patient, until

HELLO = PromptJob(text="The quick brown fox")
FOREVER = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
DOUBLING = "{% set n = namespace(s=SEED) %}{% for i in range(60) %}{% set n.s = STEP %}{% endfor %}"
BOMBS = {
    "loops within loops": FOREVER,
    "loops within macros": "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
    "a power, computed by the compiler": "{{ 9 ** (9 ** 9) }}",
    "a power": "{% set n = namespace(s=10) %}{% for i in range(60) %}"
    "{% set n.s = n.s * n.s %}{% endfor %}{{ n.s }}",
    "repeated text": "{{ 'x' * n }}",
    "repeated list": "{{ [0] * n }}",
    "a width": "{{ 'x'.ljust(n * n) }}",
    "a width in a format": "{{ '%*d' % (n * 9, 1) }}",
    "doubling by ~": DOUBLING.replace("SEED", "'xx'").replace("STEP", "n.s ~ n.s"),
    "doubling by +": DOUBLING.replace("SEED", "'xx'").replace("STEP", "n.s + n.s"),
    "doubling a list": DOUBLING.replace("SEED", "[0]").replace("STEP", "n.s + n.s"),
    "shared branches": DOUBLING.replace("SEED", "[0]").replace("STEP", "[n.s, n.s]") + "{{ n.s }}",
    "replacement": "{{ ('x' * 90000).replace('x', 'y' * 90000) }}",
    "join": "{{ range(90000) | join('y' * 90000) }}",
    "much output": "{% for a in range(99999) %}{{ 'x' * 999 }}{% endfor %}",
    "many tokens": "{% for a in range(8000) %}{{ 'x ' * 500 }}{% endfor %}",
    "stolen time": "{% set l = [1] %}{% for i in range(99999) %}"
    "{{ (range(9999) | list | sort | join) | length }}{% endfor %}",
}


def conversation(template: str | None, **variables: Any) -> PromptJob:
    """Return a job that renders one message, with this template."""
    messages = [{"role": "user", "content": "hi"}]
    return PromptJob(
        conversation=Conversation(messages=messages, template=template, variables=variables)
    )


@contextlib.asynccontextmanager
async def pool_of(
    directory: Path, killed: list[float] | None = None, **options: Any
) -> AsyncIterator[PromptPool]:
    """Run a pool that waits as long as it takes, unless `options` set limits."""
    limits = dict.fromkeys(("template_seconds", "tokenize_seconds", "shape_seconds"), LIMIT)
    settings: dict[str, Any] = {**limits, **options}
    deaths = [] if killed is None else killed
    pool = PromptPool(ServerSettings(**settings), str(directory), lambda: deaths.append(1))
    try:
        yield pool
    finally:
        await pool.close()


def process_of(pool: PromptPool) -> subprocess.Popen[bytes]:
    """Return the process of a pool's only worker."""
    (worker,) = pool._workers
    return worker._process


def test_tokens_are_those_of_the_tokenizer(directory: Path) -> None:
    tokenizer = load_tokenizer_at(directory)

    async def main() -> None:
        async with pool_of(directory) as pool:
            for text in ("", "The quick", "x " * 200_000):
                prepared = await pool.prepare(PromptJob(text=text))
                assert (prepared.text, prepared.token_ids) == (text, tokenizer.encode(text))
            prepared = await pool.prepare(conversation(None))
            assert prepared.text == "<s>user: hi\n<s>assistant: "

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS.keys())
def test_a_bomb_fails_alone_and_soon(directory: Path, bomb: str) -> None:
    """A bomb is rejected within its time limit, and the prompt after it is prepared."""

    async def main() -> None:
        async with pool_of(directory, template_seconds=0.5) as pool:
            await pool.start()
            began = time.monotonic()
            with pytest.raises(ApiError) as refused:
                await pool.prepare(conversation(bomb, n=10**9))
            assert (refused.value.status, refused.value.param) == (400, "template")
            assert time.monotonic() - began < LIMIT
            assert (await pool.prepare(HELLO)).token_ids

    asyncio.run(main())


def test_the_models_own_template_that_never_ends_fails_its_requests_alone(
    directory: Path, tmp_path: Path
) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((directory / name).read_bytes())
    (tmp_path / "chat_template.jinja").write_text(FOREVER)
    killed: list[float] = []

    async def main() -> None:
        async with pool_of(tmp_path, killed, template_seconds=0.1) as pool:
            with pytest.raises(ApiError) as refused:
                await pool.prepare(conversation(None))
            assert (refused.value.status, refused.value.param) == (400, "messages")
            assert "more than 0.1 s" in refused.value.message
            assert (await pool.prepare(HELLO)).token_ids
        assert len(killed) == 1

    asyncio.run(main())


def test_a_worker_that_is_killed_from_outside_fails_no_request(directory: Path) -> None:
    killed: list[float] = []

    async def main() -> None:
        async with pool_of(directory, killed, chat_template=FOREVER) as pool:
            await pool.prepare(HELLO)
            process_of(pool).kill()
            assert (await pool.prepare(HELLO)).token_ids, "killed while it was idle"
            endless = asyncio.ensure_future(pool.prepare(conversation(FOREVER)))
            await asyncio.sleep(0.05)
            asked = asyncio.ensure_future(pool.prepare(HELLO))
            for _ in range(MAX_DEATHS):
                workers = pool._workers.copy()
                process_of(pool).kill()
                await until(lambda: bool(pool._workers - workers))  # noqa: B023
            with pytest.raises(ApiError) as refused:
                await endless
            assert (refused.value.status, refused.value.param) == (400, "template")
            assert (await asked).token_ids, "queued behind it"
        assert len(killed) == 1 + MAX_DEATHS

    asyncio.run(main())


def test_an_unexpected_error_fails_one_request(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def decode(self, frame: bytes) -> None:
            raise RuntimeError("a bug")

    async def main() -> None:
        async with pool_of(directory) as pool:
            await pool.start()
            with monkeypatch.context() as patch:
                patch.setattr(frames, "_decoder", Broken())
                with pytest.raises(RuntimeError, match="a bug"):
                    await pool.prepare(HELLO)
            assert (await pool.prepare(HELLO)).token_ids
            assert len(pool._workers) == 1, "the worker of the failed job is not kept"

    asyncio.run(main())


def test_a_bug_beside_the_jobs_does_not_make_all_prompts_wait(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def settle(self: object, jobs: object, reason: object) -> None:
        raise RuntimeError("a bug")

    async def main() -> None:
        async with pool_of(directory) as pool:
            await pool.start()
            with monkeypatch.context() as patch:
                patch.setattr(worker_pool._Lane, "_settle", settle)
                process_of(pool).kill()
                await until(lambda: not pool._workers)
                await asyncio.sleep(0)
            async with asyncio.timeout(LIMIT):
                assert (await pool.prepare(HELLO)).token_ids

    asyncio.run(main())


def test_a_prompt_does_not_wait_behind_a_slow_one(directory: Path) -> None:
    """Templates of clients, and long texts, have a worker of their own."""

    async def main() -> None:
        async with pool_of(directory) as pool:
            slow = asyncio.ensure_future(pool.prepare(conversation(FOREVER)))
            await asyncio.sleep(0)
            assert (await pool.prepare(HELLO, "another key")).token_ids
            assert not slow.done()
            slow.cancel()

    asyncio.run(main())


def test_keys_take_turns() -> None:
    async def main() -> None:
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def start(on_answer: object) -> None:
            await started

        lane = worker_pool._Lane(1, 1, start, lambda worker: None, lambda owner: None)
        for owner in "aaab":
            answer = asyncio.get_running_loop().create_future()
            lane.put(SentJob(owner, (), LIMIT, answer))
        jobs = [lane.next_job() for _ in range(4)]
        assert [job.owner for job in jobs if job] == ["a", "b", "a", "a"]
        assert lane.next_job() is None
        await lane.close()

    asyncio.run(main())


def test_a_key_that_costs_a_worker_delays_no_other_key_for_a_while(directory: Path) -> None:
    now = [0.0]

    async def main() -> None:
        async with pool_of(directory, template_seconds=0.2) as pool:
            pool._clock = lambda: now[0]
            long = PromptJob(text="x " * HEAVY_BYTES)
            with pytest.raises(ApiError):
                await pool.prepare(conversation(FOREVER), "first")
            heavy = pool._heavy._tasks[0]
            for prompt in (HELLO, long):
                assert (await pool.prepare(prompt, "first")).token_ids
            shape = job_of(StructuredOutputsParams(regex="a+"), 300)
            assert (await pool.check_shape(shape, "first")).grammar
            assert pool._suspected._ready
            assert pool._suspected_shapes._ready
            assert not pool._shapes._tasks
            assert not pool._heavy._waiting
            for _ in range(2):
                with pytest.raises(ApiError):
                    await pool.prepare(conversation(FOREVER), "first")
            await until(lambda: bool(pool._heavy._ready))  # its first worker is being replaced
            (worker,) = pool._heavy._ready
            assert (await pool.prepare(long, "second")).token_ids
            assert pool._heavy._ready == [worker], "these endings have not been its own"
            assert not heavy.done()
            now[0] += SUSPECT_SECONDS
            pool._suspected.put = None  # type: ignore[assignment,method-assign]
            assert (await pool.prepare(long, "first")).token_ids

    asyncio.run(main())


def test_clients_without_keys_are_not_suspected_for_each_other(directory: Path) -> None:
    async def main() -> None:
        async with pool_of(directory, template_seconds=0.2) as pool:
            with pytest.raises(ApiError):
                await pool.prepare(conversation(FOREVER))
            assert (await pool.prepare(HELLO)).token_ids
            assert not pool._suspects
            assert not pool._suspected._tasks

    asyncio.run(main())


def test_jobs_sent_ahead_are_not_blamed_for_the_one_before_them(directory: Path) -> None:
    killed: list[float] = []

    async def main() -> None:
        options = {"chat_template": FOREVER, "template_seconds": 0.3}
        async with pool_of(directory, killed, **options) as pool:
            assert (await pool.prepare(HELLO)).token_ids
            process = process_of(pool)
            endless = asyncio.ensure_future(pool.prepare(conversation(FOREVER)))
            texts = [f"text {index}" for index in range(2 * MAX_AHEAD)]
            asked = [asyncio.ensure_future(pool.prepare(PromptJob(text=text))) for text in texts]
            await asyncio.sleep(0)
            assert len(next(iter(pool._workers)).jobs) == MAX_AHEAD
            asked.pop(2).cancel()
            texts.pop(2)
            with pytest.raises(ApiError) as refused:
                await endless
            assert (refused.value.status, refused.value.param) == (400, "template")
            assert [prepared.text for prepared in await asyncio.gather(*asked)] == texts
            assert process_of(pool) is not process
        assert len(killed) == 1

    asyncio.run(main())


def test_a_socket_that_is_full_is_written_to_later(directory: Path) -> None:
    async def main() -> None:
        async with pool_of(directory) as pool:
            job = PromptJob(text="a " * 30_000)  # quick, and several fill a socket's buffer
            prepared = await asyncio.gather(*(pool.prepare(job) for _ in range(3 * MAX_AHEAD)))
            assert {each.text for each in prepared} == {job.text}
            assert len({len(each.token_ids) for each in prepared}) == 1

    asyncio.run(main())


def test_a_job_ends_soon_after_its_client_has_left(directory: Path) -> None:
    async def main() -> None:
        async with pool_of(directory) as pool:
            leaving = asyncio.ensure_future(pool.prepare(conversation(FOREVER)))
            await until(lambda: any(worker.jobs for worker in pool._workers))
            leaving.cancel()
            assert (await pool.prepare(conversation("{{ messages[0].content }}"))).text == "hi"

    asyncio.run(main())


def test_a_lone_surrogate_of_a_template_is_refused_by_name_and_costs_no_worker(
    directory: Path,
) -> None:
    async def main() -> None:
        killed: list[float] = []
        async with pool_of(directory, killed) as pool:
            for template in ('{{ "a\\ud800" }}', '{{ raise_exception("a\\ud800") }}'):
                with pytest.raises(ApiError) as refused:
                    await pool.prepare(conversation(template))
                assert (refused.value.status, refused.value.param) == (400, "template")
                if "raise" not in template:
                    assert "lone surrogate (U+D800 at character 1)" in refused.value.message
        assert not killed

    asyncio.run(main())


def test_a_worker_runs_no_code_of_the_current_directory_and_has_no_keys(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server may be started in the directory of a model that is not trusted."""
    for module in ("jinja2", "msgspec", "tokenizers", "resource"):
        (tmp_path / f"{module}.py").write_text("open('executed', 'w')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OCTAVO_API_KEY", "a-secret-key")

    async def main() -> None:
        worker = Worker.launch(patient(), str(directory))
        await worker.become_ready(lambda worker: None)
        environment = Path(f"/proc/{worker._process.pid}/environ").read_bytes()
        worker.end()
        assert b"a-secret-key" not in environment

    asyncio.run(main())
    assert not (tmp_path / "executed").exists()


def test_a_client_that_leaves_costs_no_worker(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short job is finished for nothing, which is cheaper than a new worker."""
    monkeypatch.setattr(worker_process, "LEFT_SECONDS", LIMIT)

    async def main() -> None:
        async with pool_of(directory) as pool:
            await pool.start()
            process = process_of(pool)
            for _ in range(3):
                leaving = asyncio.ensure_future(pool.prepare(PromptJob(text="x " * 30_000)))
                await asyncio.sleep(0.001)
                leaving.cancel()
            assert (await pool.prepare(HELLO)).token_ids
            assert process_of(pool) is process

    asyncio.run(main())


def test_a_job_whose_client_has_left_is_not_kept(directory: Path) -> None:
    """Jobs that count no more could fill the memory while the worker is busy for long."""

    async def main() -> None:
        async with pool_of(directory) as pool:
            await pool.start()
            job, lane = conversation(FOREVER), pool._heavy
            slow = asyncio.ensure_future(pool.prepare(job))
            await until(lambda: any(worker.jobs for worker in lane._ready))
            leaving = [asyncio.ensure_future(pool.prepare(job)) for _ in range(5)]
            await until(lambda: sum(map(len, lane._waiting.values())) >= 4)
            for each in leaving:
                each.cancel()
            await asyncio.gather(*leaving, return_exceptions=True)
            assert not lane._waiting
            slow.cancel()

    asyncio.run(main())


def test_the_queue_is_bounded(directory: Path) -> None:
    async def main() -> None:
        async with pool_of(directory, max_waiting_requests=2) as pool:
            jobs = [asyncio.ensure_future(pool.prepare(HELLO)) for _ in range(9)]
            ends = await asyncio.gather(*jobs, return_exceptions=True)
            refused = [end for end in ends if isinstance(end, ApiError)]
            assert {error.status for error in refused} == {503}
            assert {error.code for error in refused} == {"preparation_full"}
            assert len(ends) - len(refused) == 2

    asyncio.run(main())


def test_a_worker_that_cannot_start_is_the_servers_fault(tmp_path: Path) -> None:
    async def main() -> None:
        async with pool_of(tmp_path) as pool:  # there is no tokenizer
            with pytest.raises(ApiError) as refused:
                await pool.prepare(HELLO)
            assert (refused.value.status, refused.value.code) == (503, "prompt_worker")

    asyncio.run(main())


PROGRAM = """
import asyncio, sys
from octavo.workers.pool import PromptPool
from octavo.options.server import ServerSettings
from octavo.workers.jobs import (Conversation, PromptJob)
from octavo.text.tokenizer_files import load_tokenizer_at

async def main():
    limit = float(sys.argv[2])
    config = ServerSettings(template_seconds=limit, tokenize_seconds=limit)
    pool = PromptPool(config, sys.argv[1], lambda: None)
    await pool.start()
    while not pool._workers:  # the first took too long, and is being replaced
        await asyncio.sleep(0.01)
    (worker,) = pool._workers
    messages = [{"role": "user", "content": "x"}]
    if sys.argv[3]:
        talk = Conversation(messages=messages, template=sys.argv[3])
        asyncio.ensure_future(pool.prepare(PromptJob(conversation=talk)))
        while not any(each.jobs for each in pool._workers):  # one of its own is started
            await asyncio.sleep(0.01)
        (worker,) = [each for each in pool._workers if each.jobs]
    print(worker._process.pid, flush=True)
    await asyncio.sleep(0.1)
    print("busy", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.parametrize("template", ["", FOREVER], ids=["idle", "busy"])
def test_no_worker_outlives_a_server_that_is_killed(directory: Path, template: str) -> None:
    command = [sys.executable, "-c", PROGRAM, str(directory), "1", template]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        number = int(server.stdout.readline())
        assert server.stdout.readline() == "busy\n"
        server.kill()
    deadline = time.monotonic() + LIMIT
    while _runs(number):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _runs(number: int) -> bool:
    """Return whether a process exists and is no zombie."""
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_a_worker_is_silent_and_can_be_killed_in_any_state(directory: Path) -> None:

    async def main() -> None:
        worker = Worker.launch(patient(), str(directory))
        await worker.become_ready(lambda worker: None)
        assert _runs(worker._process.pid)
        # A stack that it prints when it crashes could hold a prompt.
        assert os.readlink(f"/proc/{worker._process.pid}/fd/2") == os.devnull
        os.kill(worker._process.pid, signal.SIGSTOP)  # not even a stopped one stays
        worker.kill()
        assert worker.wait() == -signal.SIGKILL
        assert not _runs(worker._process.pid)

    asyncio.run(main())
