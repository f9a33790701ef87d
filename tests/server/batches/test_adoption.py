"""What earlier versions have left is taken over: descriptions as JSON, and results in records."""

from __future__ import annotations

import fcntl
import gc
import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.client.durable.framing import Framing
from octavo.options.transport import ServerStartError
from octavo.serving.batches.results import ResultsError, ResultsFile
from octavo.serving.batches.store import Store
from tests.server.batches.make import ended, ids, lines_of, request, text_of
from tests.server.batches.test_service import run
from tests.server.make import Client

NUM_LINES = 8
NUM_DONE = 3  # lines with results
LINES = [request(each) for each in range(NUM_LINES)]
NEVER = 1 << 33


def records(identity: bytes) -> Iterator[bytes]:
    """Yield the records of a batch whose first lines were answered, the last of them badly."""
    yield struct.pack("<IB", 0xFFFFFFFF, 0) + identity
    for number in range(NUM_DONE):
        result = {"id": "old", "custom_id": f"line-{number}"}
        yield struct.pack("<IB", number, number == NUM_DONE - 1) + json.dumps(result).encode()


def write_results(path: Path, identity: bytes) -> None:
    """Write the results, and the beginning of one whose write was cut off."""
    framing = Framing.draw()
    path.write_bytes(framing.header + b"".join(map(framing.frame, records(identity))))
    with path.open("ab") as file:
        file.write(framing.frame(b"an end is missing")[:-1])


def describe(path: Path, key: str, **fields: Any) -> None:
    path.write_text(json.dumps({"owner": "", key: {"id": path.stem, "created_at": 1, **fields}}))


def old_directory(where: Path) -> Path:
    """Make a directory in which one batch has ended and one runs."""
    for each in ("files", "batches"):
        (where / each).mkdir(parents=True)
    (where / "lock").touch()
    (where / "files" / "file-a").write_text(text_of(LINES))
    named: Any = {"filename": "in.jsonl", "purpose": "batch", "expires_at": NEVER}
    describe(where / "files" / "file-a.json", "file", bytes=len(text_of(LINES)), **named)
    (where / "files" / "file-b").write_bytes(b"{}\n")
    describe(where / "files" / "file-b.json", "file", bytes=3, **named)
    asked: Any = {"endpoint": "/v1/completions", "completion_window": "24h", "expires_at": NEVER}
    asked["input_file_id"] = "file-a"
    describe(where / "batches" / "batch_a.json", "batch", status="completed", **asked)
    describe(where / "batches" / "batch_b.json", "batch", status="in_progress", **asked)
    write_results(where / "batches" / "batch_b.results", b"batch_b")
    return where


async def check(client: Client) -> None:
    """Check that the files are there, and that the rest of the lines is answered."""
    done = await ended(client, "batch_b")
    assert done["request_counts"] == {"total": 8, "completed": 7, "failed": 1}
    well = await lines_of(client, done["output_file_id"])
    assert ids(well) == [f"line-{each}" for each in range(NUM_LINES) if each != NUM_DONE - 1]
    assert [each["id"] == "old" for each in well] == [each < NUM_DONE - 1 for each in range(7)]
    assert [each["id"] for each in await lines_of(client, done["error_file_id"])] == ["old"]
    assert (await client.get("/v1/files/file-b/content")).content == b"{}\n"
    assert (await client.get("/v1/batches/batch_a")).json()["status"] == "completed"
    assert len((await client.get("/v1/files")).json()["data"]) == 4


def test_a_directory_of_the_version_before_is_taken_over(directory: Path, tmp_path: Path) -> None:
    where = old_directory(tmp_path / "batches")
    sparse = where / "files" / "file-sparse.json"
    sparse.touch()
    os.truncate(sparse, 8 << 40)  # more than there is memory
    with (where / "lock").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ServerStartError, match="in use"):
            Store(where)
    run(directory, where, check)
    assert not (where / "lock").exists()
    assert sparse.exists()
    run(directory, where, check)


@pytest.mark.slow
@pytest.mark.parametrize("act", ["pathlib.Path.rename", "pathlib.Path.unlink", "os.replace"])
def test_what_is_taken_over_survives_a_kill(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    """The work is ended at each of the steps that move something."""
    where, num_steps, is_done = old_directory(tmp_path / "batches"), 0, False
    module, name = act.rsplit(".", 1)
    inner = getattr(os if module == "os" else Path, name)

    class KilledError(BaseException):
        """An end that nothing handles."""

    while not is_done:
        steps = iter(range(num_steps))

        def acting(*given: Any, steps: Iterator[int] = steps, **named: Any) -> Any:
            if next(steps, None) is None:
                raise KilledError
            return inner(*given, **named)

        with monkeypatch.context() as patch:
            patch.setattr(act, acting)
            try:
                Store(where).close()
                ResultsFile(where / "results" / "batch_b", b"batch_b").close()
                is_done = True
            except KilledError:
                num_steps += 1
        gc.collect()  # closes what a process that ends has open
    assert num_steps > 0
    run(directory, where, check)


def test_the_progress_of_an_offline_batch_continues(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl.progress"
    write_results(path, b"mine")
    with path.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ResultsError, match="in use"):
            ResultsFile(path, b"mine")
    with pytest.raises(ResultsError, match="another file"):
        ResultsFile(path, b"another")
    results = ResultsFile(path, b"mine")
    assert (len(results), results.num_errors, NUM_DONE in results) == (NUM_DONE, 1, False)
    results.copy(tmp_path / "out.jsonl", errors=False)
    assert (tmp_path / "out.jsonl").read_bytes().count(b"old") == NUM_DONE - 1
    results.remove()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["out.jsonl"]
