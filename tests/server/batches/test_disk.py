"""The room of files and results, for each key; disks that are full; uploads that are cut off."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from octavo.server.admin.routes import ADMIN_ROUTES
from octavo.serving.batches import input_file
from octavo.serving.batches.disk import in_thread, open_in_thread
from octavo.serving.batches.input_file import Bounds, InputFile
from octavo.serving.batches.lines import call_name
from octavo.serving.batches.results import ResultsError, ResultsFile
from octavo.serving.batches.room import MAX_UPLOADS, Room
from octavo.serving.batches.schema import StoredBatch, StoredFile
from octavo.serving.batches.service import Batches
from octavo.serving.batches.store import Store
from octavo.serving.bounds.shares import Shares
from octavo.serving.store.database import Database
from octavo.transport.errors import ApiError
from tests.server.batches.make import batches_in, begin, ended, lines_of, request, text_of, upload
from tests.server.batches.test_service import LINES, run
from tests.server.engine import ChainRunner, FakeEngine
from tests.server.make import Client, until

KEYS = ("one", "two", "three")
LIMIT = 6000
SHARES = Shares(len(KEYS), KEYS.__contains__)


@given(st.lists(st.tuples(st.sampled_from(KEYS), st.integers(1, 2000), st.booleans())))
def test_each_key_finds_its_share_whatever_others_have(
    steps: list[tuple[str, int, bool]],
) -> None:
    stored: Counter[str] = Counter()
    room = Room(LIMIT, SHARES, stored, {}, lambda: [("one", 0)], list)
    for owner, num_bytes, is_kept in steps:
        has_room = room.left(owner) >= num_bytes
        outcome = contextlib.nullcontext() if has_room else pytest.raises(ApiError)
        with outcome, room.upload(owner) as sent:
            room.keep(sent, num_bytes // 2)
            room.keep(sent, num_bytes)
            assert room.used_bytes() == stored.total() + num_bytes
            stored[owner] += num_bytes * is_kept
        assert room.used_bytes() == stored.total() <= LIMIT
        for each in KEYS:
            assert stored[each] <= LIMIT // 2
            assert stored[each] + room.left(each) >= LIMIT // 6


@given(st.lists(st.sampled_from(("", *KEYS)), max_size=20), st.booleans())
@example(["", "", "", "one", "one", "one", ""], True)
def test_one_key_sends_at_most_half_of_the_files_at_once(owners: list[str], has_keys: bool) -> None:
    """A server without keys gives all places to all its clients."""
    room = Room(LIMIT, SHARES if has_keys else Shares(0, KEYS.__contains__), {}, {}, list, list)
    counts: Counter[str] = Counter()
    with contextlib.ExitStack() as sending:
        for owner in owners:
            places = Counter({each: 1 for each in KEYS if has_keys and each != owner}) | counts
            most = MAX_UPLOADS // 2 if has_keys else MAX_UPLOADS
            if counts[owner] < most and places.total() < MAX_UPLOADS:
                sending.enter_context(room.upload(owner))
                counts[owner] += 1
                continue
            assert not has_keys or owner not in KEYS or counts[owner]
            with pytest.raises(ApiError) as refused:
                sending.enter_context(room.upload(owner))
            assert (refused.value.status, refused.value.code) == (429, "too_many_uploads")
            assert dict(refused.value.headers)[b"retry-after"] == b"1"
    assert room.num_uploads == 0


def test_files_and_batches_of_one_key_leave_places_for_those_of_others(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key may have half of each, and has places again when it has deleted some."""
    monkeypatch.setattr("octavo.serving.batches.room.MAX_FILES", 12)
    monkeypatch.setattr("octavo.serving.batches.batch_routes.MAX_BATCHES", 6)

    async def batch_of(client: Client, file_id: str) -> Any:
        body = {"input_file_id": file_id, "endpoint": "/v1/completions"}
        return (await client.post("/v1/batches", json=body)).json()

    async def fill(client: Client, key: str) -> tuple[list[str], list[str]]:
        """Begin batches of a file without requests, and send others, until both are refused."""
        client.headers["authorization"] = f"Bearer {key}"
        files, names = [(await upload(client, "\n")).json()["id"]], []
        while "id" in (made := await batch_of(client, files[0])):
            assert (await ended(client, made["id"]))["status"] == "failed"
            names.append(made["id"])
        assert made["error"]["code"] == "too_many_batches"
        while "id" in (sent := (await upload(client, "\n")).json()):
            files.append(sent["id"])
        assert sent["error"]["code"] == "storage_full"
        return files, names

    async def test(client: Client) -> None:
        files, names = await fill(client, "one")
        assert (len(files), len(names)) == (6, 3)
        assert [len(each) for each in await fill(client, "two")] == [6, 3]
        assert (await client.delete(f"/v1/batches/{names[0]}")).status_code == 404
        client.headers["authorization"] = "Bearer one"
        for path in (f"batches/{names[0]}", f"files/{files[-1]}", f"files/{files[-2]}"):
            assert (await client.delete(f"/v1/{path}")).json()["deleted"]
            assert (await client.get(f"/v1/{path}")).status_code == 404
        assert (await ended(client, (await batch_of(client, files[0]))["id"]))["status"] == "failed"
        for status in (200, 200, 400):
            assert (await upload(client, "\n")).status_code == status

    async def later(client: Client) -> None:
        assert names_of(client) == 6
        client.headers["authorization"] = "Bearer two"
        assert (await upload(client, "\n")).json()["error"]["code"] == "storage_full"

    def names_of(client: Client) -> int:
        return len(batches_in(client).store.batches)

    keys = ("one", "two")
    run(directory, tmp_path / "batches", test, api_keys=keys)
    run(directory, tmp_path / "batches", later, api_keys=keys)


def test_results_of_batches_leave_places_for_files_of_other_keys(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch needs places for two files; a key could add any number, deleting its batches."""
    monkeypatch.setattr("octavo.serving.batches.room.MAX_FILES", 12)

    async def test(client: Client) -> None:
        client.headers["authorization"] = "Bearer one"
        file = (await upload(client, text_of([request(0)]))).json()["id"]
        body = {"input_file_id": file, "endpoint": "/v1/completions"}
        for _ in range(4):
            name = (await client.post("/v1/batches", json=body)).json()["id"]
            batch = await ended(client, name)
            assert (batch["status"], batch["error_file_id"]) == ("completed", None)
            assert (await client.delete(f"/v1/batches/{name}")).json()["deleted"]
        refused = (await client.post("/v1/batches", json=body)).json()
        assert refused["error"]["code"] == "storage_full"
        assert (await upload(client, "\n")).status_code == 200
        client.headers["authorization"] = "Bearer two"
        for _ in range(6):
            assert (await upload(client, "\n")).status_code == 200

    run(directory, tmp_path / "batches", test, api_keys=("one", "two"))


def test_files_of_batches_that_have_not_ended_have_their_places(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.serving.batches.room.MAX_FILES", 4)

    async def test(client: Client) -> None:
        batch = await begin(client, [request(0)])
        body = {"input_file_id": batch["input_file_id"], "endpoint": "/v1/completions"}
        refused = await client.post("/v1/batches", json=body)
        assert refused.json()["error"]["code"] == "storage_full"
        for status in (200, 400):
            assert (await upload(client, "\n")).status_code == status
        engine.is_ready = True
        assert (await ended(client, batch["id"]))["status"] == "completed"
        assert len(batches_in(client).store.files) == 3
        assert (await upload(client, "\n")).status_code == 200

    engine = FakeEngine(directory, is_ready=False)
    run(directory, tmp_path / "batches", test, engine=engine)


def test_a_batch_that_has_not_ended_is_not_deleted(directory: Path, tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        batch = await begin(client, LINES)
        refused = await client.delete(f"/v1/batches/{batch['id']}")
        assert refused.status_code == 409
        assert refused.json()["error"]["code"] == "batch_has_not_ended"
        await client.post(f"/v1/batches/{batch['id']}/cancel")
        done = await ended(client, batch["id"])
        assert (await client.delete(f"/v1/batches/{batch['id']}")).status_code == 200
        assert (await client.get("/v1/batches")).json()["data"] == []
        file = f"/v1/files/{done['input_file_id']}"
        assert (await client.get(file)).status_code == 200
        assert (await client.delete(file)).status_code == 200

    engine = FakeEngine(directory, is_ready=False)
    run(directory, tmp_path / "batches", test, engine=engine)


def test_results_of_one_key_do_not_end_the_batches_of_another(
    directory: Path, tmp_path: Path
) -> None:
    async def test(client: Client) -> None:
        client.headers["authorization"] = "Bearer one"
        done = await ended(client, (await begin(client, LINES))["id"])
        rest = await lines_of(client, done["error_file_id"])
        assert {each["error"]["code"] for each in rest} == {"storage_full"}
        client.headers["authorization"] = "Bearer two"
        done = await ended(client, (await begin(client, LINES[:5]))["id"])
        assert done["request_counts"] == {"total": 5, "completed": 5, "failed": 0}

    half = len(text_of(LINES)) + 4000
    run(directory, tmp_path / "batches", test, batch_bytes=2 * half, api_keys=("one", "two"))


def form_of(*parts: bytes) -> list[bytes]:
    """Return the pieces of a form whose file comes in these parts."""
    head = b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x\r\n'
    head += b'Content-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
    return [head, *parts, b"\r\n--x--\r\n"]


def test_results_count_once_while_they_become_files(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another batch of the key would end for want of room that there is."""
    seen: list[int] = []
    on_disk, save_file = Batches.on_disk, Store.save_file

    async def watched(self: Batches, act: Callable[..., Any], *values: Any) -> Any:
        found = await on_disk(self, act, *values)
        seen.extend(
            self.room.used_bytes()
            for stored in self.store.batches.values()
            if stored.batch.status == "finalizing"
        )
        return found

    def full(self: Store, stored: StoredFile) -> None:
        if stored.file.filename.endswith("_errors.jsonl"):
            raise OSError(errno.ENOSPC, "No space left on device")
        save_file(self, stored)

    async def begins(client: Client) -> None:
        lines = [*LINES[:20], *(request(each, temperature="hot") for each in range(20, 40))]
        await begin(client, lines)
        files = batches_in(client).store.contents("file").parent
        await until(lambda: any(files.glob("*-errors")))

    async def ends(client: Client) -> None:
        (name,) = batches_in(client).store.batches
        done = await ended(client, name)
        files = [done[f"{kind}_file_id"] for kind in ("output", "error")]
        sizes = [(await client.get(f"/v1/files/{each}")).json()["bytes"] for each in files]
        assert max(seen) < batches_in(client).room.used_bytes() + min(sizes) // 2

    monkeypatch.setattr(Batches, "on_disk", watched)
    with monkeypatch.context() as patch:  # a server that stops between the two files
        patch.setattr(Store, "save_file", full)
        run(directory, tmp_path / "batches", begins)
    run(directory, tmp_path / "batches", ends)


def test_ids_of_results_appear_with_the_state_that_the_disk_has(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_batch, has_room, was_refused = Store.save_batch, False, False

    def save(self: Store, stored: StoredBatch) -> None:
        nonlocal was_refused
        if stored.batch.status == "completed" and not has_room:
            was_refused = True
            raise OSError(errno.ENOSPC, "No space left on device")
        save_batch(self, stored)

    async def test(client: Client) -> None:
        nonlocal has_room
        name = (await begin(client, LINES[:2]))["id"]
        await until(lambda: was_refused)
        unsaved = (await client.get(f"/v1/batches/{name}")).json()
        assert (unsaved["status"], unsaved["output_file_id"]) == ("finalizing", None)
        has_room = True
        done = await ended(client, name)
        assert (await client.get(f"/v1/files/{done['output_file_id']}")).status_code == 200

    monkeypatch.setattr(Store, "save_batch", save)
    monkeypatch.setattr("octavo.serving.batches.service.DISK_SECONDS", 0.05)
    run(directory, tmp_path / "batches", test)


def test_uploads_at_once_share_the_room(directory: Path, tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        room, go_on = batches_in(client).room, asyncio.Event()
        held = 4  # bytes that may be the beginning of a boundary

        async def slowly() -> AsyncIterator[bytes]:
            head, first, second, end = form_of(b"x" * 1000, b"x" * 900)
            yield head + first
            await go_on.wait()
            yield second
            yield end

        kind = {"content-type": "multipart/form-data; boundary=x"}
        slow = asyncio.create_task(client.post("/v1/files", content=slowly(), headers=kind))
        await until(lambda: room.used_bytes() == 1000 - held)
        refused = await upload(client, "y" * 1990)
        assert (refused.status_code, refused.json()["error"]["code"]) == (413, "file_too_large")
        assert f"there is room for {1900 + held}" in refused.json()["error"]["message"]
        assert (await upload(client, "y" * 1000)).status_code == 200
        go_on.set()
        sent = await slow
        assert sent.status_code == 200, sent.text
        assert sent.json()["bytes"] == 1900
        assert room.used_bytes() == 2900
        assert room.num_uploads == 0

    run(directory, tmp_path / "batches", test, batch_file_bytes=2000, batch_bytes=2900)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("act", ["write", "fsync", "change"])
def test_a_full_disk_is_a_503_and_leaves_nothing(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, act: str
) -> None:
    async def test(client: Client) -> None:
        kept = (await upload(client, text_of(LINES[:2]))).json()["id"]
        files = batches_in(client).store.contents("")
        before = sorted(files.iterdir())

        def full(*arguments: Any) -> None:
            raise OSError(code, "full")

        body = {"input_file_id": kept, "endpoint": "/v1/completions"}
        with monkeypatch.context() as patch:
            if act == "change":
                patch.setattr(Database, "write", full)
            else:
                patch.setattr(f"os.{act}", full)
            answers = [await upload(client, "x")]
            if act == "change":
                answers.append(await client.post("/v1/batches", json=body))
        for refused in answers:
            assert refused.status_code == 503, refused.text
            assert refused.json()["error"]["code"] == "storage_full"
            assert refused.headers["retry-after"]
        assert sorted(files.iterdir()) == before
        assert batches_in(client).room.num_uploads == 0
        done = await ended(client, (await client.post("/v1/batches", json=body)).json()["id"])
        assert done["request_counts"]["completed"] == 2
        batches_in(client).store.contents(kept).unlink()
        gone = await client.get(f"/v1/files/{kept}/content")
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "file_not_found")
        assert (await client.delete(f"/v1/files/{kept}")).json()["deleted"]

    run(directory, tmp_path / "batches", test)


def test_a_caller_that_is_cancelled_waits_for_its_thread() -> None:
    """The thread may be writing to a descriptor that the caller closes then."""
    begun, go_on = threading.Event(), threading.Event()

    def act() -> None:
        begun.set()
        assert go_on.wait(300)

    async def main() -> None:
        work = asyncio.create_task(in_thread(act))
        await until(begun.is_set)
        for _ in range(3):
            work.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not work.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await work

    asyncio.run(main())


def test_what_a_cancelled_caller_has_opened_is_closed(tmp_path: Path) -> None:
    """A file of results stays locked while it is open."""
    begun, go_on, path = threading.Event(), threading.Event(), tmp_path / "results"
    opened: list[ResultsFile] = []

    def opens() -> ResultsFile:
        begun.set()
        assert go_on.wait(300)
        opened.append(ResultsFile(path, b"one"))
        return opened[0]

    async def main() -> None:
        work = asyncio.create_task(open_in_thread(opens))
        await until(begun.is_set)
        work.cancel()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await work
        ResultsFile(path, b"one").close()
        (await open_in_thread(ResultsFile, path, b"one")).close()
        with pytest.raises(ResultsError):
            await open_in_thread(ResultsFile, path, b"two")

    asyncio.run(main())


LINE = st.one_of(st.just(b""), st.just(b"  "), st.integers(1, 60).map(lambda size: b"x" * size))


@given(st.lists(LINE), st.integers(1, 20), st.booleans())
def test_the_lines_of_a_file_are_found_in_pieces_of_any_size(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], piece: int, has_end: bool
) -> None:
    """A line that is too long is named once, and the lines behind it are found."""
    limit = 40
    data = b"\n".join(lines) + b"\n" * has_end
    path = tmp_path_factory.getbasetemp() / "lines.jsonl"
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(input_file, "PIECE_BYTES", piece)
        patch.setattr(input_file, "ENVELOPE_BYTES", 0)
        file = InputFile(path, Bounds((), 1000, limit))
        try:
            while file.read_piece(checks=False):
                pass
            found = list(zip(file._starts, file._lengths, strict=True))
        finally:
            file.close()
    named = [each.line for each in file.errors if each.error.code == "line_too_long"]
    assert len(named) == len(set(named))
    all_lines = data.split(b"\n")
    # A line that ends within its last piece may be a little longer.
    assert {index for index, line in enumerate(all_lines, 1) if len(line) > limit + piece} <= set(
        named
    )
    assert all(line is not None and len(all_lines[line - 1]) > limit for line in named)
    expected = [
        line for index, line in enumerate(all_lines, 1) if line.strip() and index not in named
    ]
    if len(file.errors) < input_file.MAX_ERRORS:
        assert [data[start : start + length] for start, length in found] == expected


def test_a_line_that_an_operator_ends_has_no_part_of_an_answer(
    directory: Path, tmp_path: Path
) -> None:
    """One that is ended by its id has an error; those that a pause ends are answered again."""
    gate = threading.Event()
    engine = FakeEngine(directory, runner=ChainRunner(lambda: gate.wait(300)))
    lines = [request(each, max_tokens=20) for each in range(5)]

    async def test(client: Client) -> None:
        async with Client(client.server, ADMIN_ROUTES, checks_access=False) as admin:
            batch = await begin(client, lines)
            active = client.server.active
            await until(lambda: len(active) == 5 and bool(engine.core.scheduler.running))
            first = call_name(batch["id"], 0)
            ended_one = await admin.post("/abort_requests", json={"request_ids": [first]})
            assert ended_one.json()["aborted"] == 1
            await until(lambda: len(active) == 4)
            pausing = asyncio.create_task(admin.post("/pause?mode=abort"))
            await until(lambda: len(engine._client._commands) == 1)  # type: ignore[attr-defined]
            gate.set()
            assert (await pausing).json() == {"paused": True}
            assert (await admin.post("/resume")).status_code == 200
            done = await ended(client, batch["id"])
            assert done["request_counts"] == {"total": 5, "completed": 4, "failed": 1}
            (wrong,) = await lines_of(client, done["error_file_id"])
            assert wrong["custom_id"] == "line-0"
            assert wrong["response"]["body"]["error"]["code"] == "aborted"
            for line in await lines_of(client, done["output_file_id"]):
                assert line["response"]["body"]["usage"]["completion_tokens"] == 20

    run(directory, tmp_path / "batches", test, engine=engine)
