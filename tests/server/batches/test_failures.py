"""Batches after exceptions that nothing foresees: each ends, and the others go on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from octavo.serving.batches import pump
from octavo.serving.batches.calls import Calls, Reply
from octavo.serving.batches.results import Result, ResultsFile
from octavo.serving.batches.service import Batches
from octavo.serving.batches.store import Store
from octavo.serving.bounds.periodic import periodically
from tests.server.batches.make import batches_in, begin, ended, ids, lines_of, request
from tests.server.batches.test_service import run
from tests.server.make import Client, until

LINES = [request(each) for each in range(12)]


class UnforeseenError(Exception):
    """An exception that no code expects."""


async def another(client: Client) -> None:
    """Check that further batches are answered."""
    done = await ended(client, (await begin(client, LINES[:2]))["id"])
    assert (done["status"], done["request_counts"]["completed"]) == ("completed", 2)


@pytest.mark.parametrize("place", ["save_batch", "copy"])
def test_an_unexpected_exception_ends_a_batch_as_failed(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    saved, is_new = Store.save_batch, place == "save_batch"

    def failing(*_: Any, **__: Any) -> None:
        raise UnforeseenError("of a test")

    def saving(self: Store, stored: Any) -> None:
        if stored.batch.status == "in_progress":
            failing()
        saved(self, stored)

    async def test(client: Client) -> None:
        with monkeypatch.context() as patch:
            if is_new:
                patch.setattr(Store, "save_batch", saving)
            else:
                patch.setattr(ResultsFile, "copy", failing)
            batch = await begin(client, LINES)
            done = await ended(client, batch["id"])
        assert done["status"] == "failed"
        assert done["failed_at"]
        assert [each["code"] for each in done["errors"]["data"]] == ["internal"]
        assert "of a test" not in json.dumps(done)
        batches = batches_in(client)
        await until(lambda: not batches._work)
        assert not batches.store.results(batch["id"]).exists()
        assert batches.room.used_bytes() == sum(batches.store.bytes_by_owner.values())
        await another(client)

    run(directory, tmp_path / "batches", test)


def test_a_batch_whose_results_cannot_be_written_keeps_those_before(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = ResultsFile.append

    def failing(self: ResultsFile, results: Iterable[Result]) -> None:
        given = list(results)
        if any(b"line-11" in each.data for each in given):
            raise UnforeseenError("of a test")
        append(self, given)

    async def test(client: Client) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(ResultsFile, "append", failing)
            done = await ended(client, (await begin(client, LINES))["id"])
        assert done["status"] == "failed"
        answered = ids(await lines_of(client, done["output_file_id"]))
        assert "line-11" not in answered
        assert done["request_counts"] == {"total": 12, "completed": len(answered), "failed": 0}
        await another(client)

    run(directory, tmp_path / "batches", test)


def test_a_line_that_fails_again_and_again_has_an_error(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pump, "REST_SECONDS", 0.001)
    ask, num_failures = Calls.ask, [0]

    async def failing(self: Calls, path: str, body: bytes, **named: Any) -> Reply:
        if b"quick 7" in body:
            num_failures[0] += 1
            raise UnforeseenError("of a test")
        return await ask(self, path, body, **named)

    monkeypatch.setattr(Calls, "ask", failing)

    async def test(client: Client) -> None:
        done = await ended(client, (await begin(client, LINES))["id"])
        assert done["status"] == "completed"
        assert done["request_counts"] == {"total": 12, "completed": 11, "failed": 1}
        (wrong,) = await lines_of(client, done["error_file_id"])
        assert (wrong["custom_id"], wrong["error"]["code"]) == ("line-7", "internal")
        assert num_failures == [pump.MAX_ATTEMPTS]

    run(directory, tmp_path / "batches", test)


def test_what_is_done_again_and_again_goes_on_after_an_exception(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_calls = 0

    async def act() -> None:
        nonlocal num_calls
        num_calls += 1
        raise UnforeseenError("of a test")

    async def main() -> None:
        task = asyncio.create_task(periodically(0.0, act, "a test"))
        await until(lambda: num_calls >= 3)
        task.cancel()

    asyncio.run(main())
    monkeypatch.setattr("octavo.serving.batches.service.TIDY_SECONDS", 0.0)
    tidy, tidied = Batches._tidy, [0]

    async def tidying(self: Batches) -> None:
        tidied[0] += 1
        if tidied[0] == 1:
            raise UnforeseenError("of a test")
        await tidy(self)

    monkeypatch.setattr(Batches, "_tidy", tidying)

    async def test(client: Client) -> None:
        await until(lambda: tidied[0] >= 3)

    run(directory, tmp_path / "batches", test)
