"""Batches of a server: every line answered once, whatever stops in between, and for one key."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from octavo.options.transport import ServerStartError
from tests.server.batches.make import (
    batches_in,
    batching,
    begin,
    ended,
    ids,
    lines_of,
    request,
    text_of,
    upload,
)
from tests.server.durable.make import Gate
from tests.server.engine import FakeEngine
from tests.server.make import Client, serving, until

Test = Callable[[Client], Awaitable[None]]
NUM_LINES = 40
LINES = [request(each) for each in range(NUM_LINES)]
ALL = [f"line-{each}" for each in range(NUM_LINES)]


def run(directory: Path, where: Path, test: Test, **options: Any) -> None:
    """Run a test against a server whose batches are in `where`."""

    async def main() -> None:
        async with batching(directory, where, **options) as client:
            await test(client)

    asyncio.run(main())


def test_a_batch_goes_from_its_file_to_its_results(directory: Path, tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        lines = [*LINES[:3], request(3, temperature="hot"), *LINES[4:]]
        batch = await begin(client, lines, metadata={"for": "the test"})
        done = await ended(client, batch["id"])
        assert (done["status"], done["errors"]) == ("completed", None)
        assert done["request_counts"] == {"total": 40, "completed": 39, "failed": 1}
        assert done["metadata"] == {"for": "the test"}
        assert done["created_at"] <= done["in_progress_at"] <= done["completed_at"]
        well = await lines_of(client, done["output_file_id"])
        wrong = await lines_of(client, done["error_file_id"])
        assert ids(well) == [each for each in ALL if each != "line-3"]
        assert ids(wrong) == ["line-3"]
        assert wrong[0]["response"]["body"]["error"]["param"] == "temperature"
        alone = await client.post("/v1/completions", json=LINES[7]["body"])
        assert well[6]["response"]["body"]["choices"] == alone.json()["choices"]
        files = (await client.get("/v1/files")).json()
        assert [each["purpose"] for each in files["data"]].count("batch_output") == 2
        name = done["output_file_id"]
        assert (await client.delete(f"/v1/files/{name}")).json()["deleted"]
        assert (await client.get(f"/v1/files/{name}")).status_code == 404
        listed = (await client.get("/v1/batches")).json()
        assert [each["id"] for each in listed["data"]] == [batch["id"]]
        again = await client.post(f"/v1/batches/{batch['id']}/cancel")
        assert again.json()["error"]["code"] == "batch_has_ended"

    run(directory, tmp_path / "batches", test)


def test_each_line_is_answered_once_however_often_the_server_stops(
    directory: Path, tmp_path: Path
) -> None:
    """The server is stopped in every state, at whatever point of the work."""
    where = tmp_path / "batches"
    asked: list[str] = []
    names: list[str] = []

    async def start(client: Client) -> None:
        names.append((await begin(client, LINES))["id"])
        names.append((await begin(client, LINES))["id"])

    def stopping_at(count: int) -> Test:
        async def test(client: Client) -> None:
            if not names:
                await start(client)
            batches = batches_in(client)
            seen = [batches.store.batches[name].batch.request_counts for name in names]
            if count < 2 * NUM_LINES:
                await until(lambda: sum(each.completed for each in seen) >= count)

        return test

    for count in (0, 7, 21, 50, 79):
        run(directory, where, stopping_at(count))

    async def finish(client: Client) -> None:
        for name in names:
            done = await ended(client, name)
            assert done["status"] == "completed"
            assert done["request_counts"]["completed"] == NUM_LINES
            lines = await lines_of(client, done["output_file_id"])
            assert ids(lines) == ALL
            asked.extend(line["response"]["body"]["choices"][0]["text"] for line in lines)

    run(directory, where, finish)
    assert asked[:NUM_LINES] == asked[NUM_LINES:]


def test_what_a_stop_behind_the_end_has_left_is_removed(directory: Path, tmp_path: Path) -> None:
    """The results of a batch that runs are removed when its last state is on the disk."""
    where = tmp_path / "batches"

    async def test(client: Client) -> None:
        await ended(client, (await begin(client, LINES[:3]))["id"])
        (name,) = batches_in(client).store.batches
        results = batches_in(client).store.results(name)
        await until(lambda: not results.exists())

    async def later(client: Client) -> None:
        (name,) = batches_in(client).store.batches
        assert not batches_in(client).store.results(name).exists()

    run(directory, where, test)
    with contextlib.closing(sqlite3.connect(where / "descriptions")) as database, database:
        ((name,),) = database.execute("SELECT id FROM batches").fetchall()
        for table, new in (("files", "file-new"), ("batches", "batch_new")):
            # By a newer version, say: its descriptions cannot be read.
            database.execute(f"INSERT INTO {table} VALUES (?, ?)", (new, b'{"form": 2}'))
    left = [where / "results" / each for each in (name, f"{name}-wal", "batch_lost.next")]
    left.append(where / "contents" / "file-cut")
    kept = [where / "contents" / "file-new", where / "results" / "batch_new"]
    for each in (*left, *kept):
        each.write_bytes(b"left")
    run(directory, where, later)
    assert not any(each.exists() for each in left)
    assert all(each.exists() for each in kept)


def test_a_cancelled_batch_keeps_what_was_answered(directory: Path, tmp_path: Path) -> None:
    gate = Gate(0)
    engine = FakeEngine(directory, runner=gate.runner)

    async def test(client: Client) -> None:
        lines = [request(each, max_tokens=3 if each < 10 else 200) for each in range(NUM_LINES)]
        batch = await begin(client, lines)
        counts = batches_in(client).store.batches[batch["id"]].batch.request_counts
        success = client.server.metrics.success

        def are_enough() -> bool:
            """Let a step pass if all that has ended is counted, and there is not enough."""
            is_counted = success.value("length") == counts.completed
            if counts.completed < 5 and is_counted and gate.num_arrived > gate.num_passes:
                gate.open(1)
            return counts.completed >= 5

        await until(are_enough)
        sent = await client.post(f"/v1/batches/{batch['id']}/cancel")
        assert sent.json()["status"] == "cancelling"
        done = await ended(client, batch["id"])
        gate.open()
        assert done["status"] == "cancelled"
        well = await lines_of(client, done["output_file_id"])
        rest = await lines_of(client, done["error_file_id"])
        assert sorted([*ids(well), *ids(rest)]) == sorted(ALL)
        assert 5 <= len(well) < NUM_LINES
        assert {each["error"]["code"] for each in rest} == {"batch_cancelled"}

    run(directory, tmp_path / "batches", test, engine=engine)


def test_a_batch_ends_with_its_window(directory: Path, tmp_path: Path) -> None:
    engine = FakeEngine(directory, is_ready=False)  # so that no line is answered

    async def test(client: Client) -> None:
        batch = await begin(client, LINES, completion_window="1m")
        assert batch["expires_at"] == batch["created_at"] + 60
        stored = batches_in(client).store.batches[batch["id"]]
        await until(lambda: stored.batch.status == "in_progress")

    async def later(client: Client) -> None:
        (batch,) = batches_in(client).store.batches.values()
        done = await ended(client, batch.batch.id)
        assert (done["status"], done["output_file_id"]) == ("expired", None)
        rest = await lines_of(client, done["error_file_id"])
        assert ids(rest) == ALL
        assert {each["error"]["code"] for each in rest} == {"batch_expired"}

    run(directory, tmp_path / "batches", test, engine=engine)
    # The next server starts after the end of the window.
    with pytest.MonkeyPatch.context() as patch:
        now = time.time()
        patch.setattr("octavo.serving.server.time.time", lambda: now + 61)
        run(directory, tmp_path / "batches", later)


@pytest.mark.parametrize(
    ("lines", "code", "line"),
    [
        ([request(0), request(0)], "duplicate_custom_id", 2),
        ([request(0), {**request(1), "url": "/v1/chat/completions"}], "invalid_url", 2),
        ("{}\n{\n", "invalid_request", 1),
        (
            [
                {
                    "custom_id": "a",
                    "method": "POST",
                    "url": "/v1/completions",
                    "body": {"prompt": "x", "background": True},
                }
            ],
            "invalid_request",
            1,
        ),
        ("", "empty_file", None),
        ([request(each) for each in range(6)], "too_many_requests", None),
    ],
)
def test_a_file_with_errors_fails(
    lines: Any, code: str, line: int | None, directory: Path, tmp_path: Path
) -> None:
    async def test(client: Client) -> None:
        done = await ended(client, (await begin(client, lines))["id"])
        assert done["status"] == "failed"
        first = done["errors"]["data"][0]
        assert (first["code"], first["line"]) == (code, line)

    run(directory, tmp_path / "batches", test, batch_lines=5)


def test_a_key_sees_only_its_own(directory: Path, tmp_path: Path) -> None:
    where, keys = tmp_path / "batches", ("key-of-one", "key-of-two")

    async def test(client: Client) -> None:
        client.headers["authorization"] = "Bearer key-of-one"
        batch = await begin(client, LINES[:5])
        done = await ended(client, batch["id"])
        assert done["status"] == "completed"
        client.headers["authorization"] = "Bearer key-of-two"
        for path in (
            f"batches/{batch['id']}",
            f"files/{batch['input_file_id']}",
            f"files/{done['output_file_id']}/content",
        ):
            assert (await client.get(f"/v1/{path}")).status_code == 404
        assert (await client.delete(f"/v1/files/{batch['input_file_id']}")).status_code == 404
        assert (await client.post(f"/v1/batches/{batch['id']}/cancel")).status_code == 404
        for path in ("files", "batches"):
            assert (await client.get(f"/v1/{path}")).json()["data"] == []
        body = {"input_file_id": batch["input_file_id"], "endpoint": "/v1/completions"}
        refused = (await client.post("/v1/batches", json=body)).json()["error"]
        assert (refused["param"], refused["code"]) == ("input_file_id", "file_not_found")

    run(directory, where, test, api_keys=keys)


def test_the_batch_of_a_key_that_is_no_more_is_cancelled(directory: Path, tmp_path: Path) -> None:
    engine, where = FakeEngine(directory, is_ready=False), tmp_path / "batches"

    async def test(client: Client) -> None:
        client.headers["authorization"] = "Bearer key-of-one"
        batch = await begin(client, LINES[:5])
        stored = batches_in(client).store.batches[batch["id"]]
        await until(lambda: stored.batch.status == "in_progress")

    async def later(client: Client) -> None:
        (stored,) = batches_in(client).store.batches.values()
        await until(lambda: stored.batch.status == "cancelled")
        assert stored.batch.request_counts.completed == 0

    run(directory, where, test, engine=engine, api_keys=("key-of-one",))
    run(directory, where, later, api_keys=("key-of-two",))


def test_what_a_client_may_send_is_bounded(directory: Path, tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        large = await upload(client, "x" * 3000)
        assert (large.status_code, large.json()["error"]["code"]) == (413, "file_too_large")
        for fields, param in (
            ({"purpose": "fine-tune"}, "purpose"),
            ({"expires_after[seconds]": "5"}, "expires_after"),
            ({"expires_after[anchor]": "never"}, "expires_after"),
        ):
            refused = await upload(client, "x", **fields)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
        assert (await client.post("/v1/files", json={})).status_code == 415
        assert not list((tmp_path / "batches" / "contents").iterdir())
        kept = await upload(client, "x" * 1900, **{"expires_after[seconds]": "3600"})
        described = kept.json()
        assert described["expires_at"] == described["created_at"] + 3600
        assert (described["bytes"], described["filename"]) == (1900, "in.jsonl")
        again = await upload(client, "x" * 1900)
        assert again.status_code == 413  # of what is left
        used = {"input_file_id": described["id"], "endpoint": "/v1/completions"}
        for change, param in (
            ({"endpoint": "/v1/files"}, "endpoint"),
            ({"completion_window": "soon"}, "completion_window"),
            ({"completion_window": "99d"}, "completion_window"),
            ({"input_file_id": "../lock"}, "input_file_id"),
            ({"metadata": {"a": "x" * 600}}, "metadata"),
        ):
            refused = await client.post("/v1/batches", json={**used, **change})
            assert refused.status_code == 400, change
            assert refused.json()["error"]["param"].startswith(param)
        for query, param in (("limit=0", "limit"), ("after=x", "after"), ("order=up", "order")):
            refused = await client.get(f"/v1/files?{query}")
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)

    run(directory, tmp_path / "batches", test, batch_file_bytes=2000, batch_bytes=3000)


def test_results_end_where_the_room_ends(directory: Path, tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        done = await ended(client, (await begin(client, LINES))["id"])
        assert done["status"] == "completed"
        rest = await lines_of(client, done["error_file_id"])
        assert {each["error"]["code"] for each in rest} == {"storage_full"}
        assert len(rest) + done["request_counts"]["completed"] == NUM_LINES

    size = len(text_of(LINES))
    run(directory, tmp_path / "batches", test, batch_bytes=size + 4000)


def test_files_are_listed_in_pages(directory: Path, tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        names = {(await upload(client, f"{each}")).json()["id"] for each in range(5)}
        found: list[str] = []
        after = ""
        while True:
            page = (await client.get(f"/v1/files?limit=2&order=asc{after}")).json()
            found += [each["id"] for each in page["data"]]
            if not page["has_more"]:
                break
            after = f"&after={page['last_id']}"
        assert len(found) == 5
        assert set(found) == names

    run(directory, tmp_path / "batches", test)


def test_a_directory_belongs_to_one_server(directory: Path, tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        with pytest.raises(ServerStartError, match="in use"):
            type(batches_in(client).store)(tmp_path / "batches")

    run(directory, tmp_path / "batches", test)


def test_without_a_directory_there_are_no_batches(directory: Path) -> None:
    async def main() -> None:
        async with serving(directory) as client:
            for path in ("/v1/files", "/v1/batches"):
                refused = await client.get(path)
                assert (refused.status_code, refused.json()["error"]["code"]) == (
                    404,
                    "batches_disabled",
                )

    asyncio.run(main())
