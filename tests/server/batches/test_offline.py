"""A file of requests is answered offline: each once, in order, however often it is interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octavo.api.outputs import EngineDeadError
from octavo.cli import main
from octavo.cli.commands import USAGE
from octavo.options.named_adapters import NamedAdapter
from octavo.options.server import ServerSettings
from octavo.server.offline import Outcome, Paths, answer_file, open_requests
from octavo.serving.batches.results import ResultsError, ResultsFile
from tests.server.adapters.make import write_adapter
from tests.server.batches.make import ids, read, request, write
from tests.server.engine import FakeEngine
from tests.server.make import patient

Show = Callable[[int, int, int], None]


def paths_in(directory: Path) -> Paths:
    return Paths(directory / "in.jsonl", directory / "out.jsonl", directory / "bad.jsonl")


def answer(
    engine: FakeEngine,
    paths: Paths,
    show: Show = lambda done, total, tokens: None,
    config: ServerSettings | None = None,
) -> Outcome:
    """Answer a file with an engine that is closed behind it."""
    file = open_requests(paths)
    try:
        return asyncio.run(answer_file(engine, config or patient(), file, paths, show))
    finally:
        file.close()
        engine.close()


def interrupted_after(
    engine: FakeEngine, paths: Paths, num_results: int, *, is_killed: bool = False
) -> int:
    """Begin a batch and end it by an interrupt; return the number of results it has left.

    If it is killed, the last write is torn, as a loss of power may leave it.
    """
    log = paths.progress.with_name(paths.progress.name + "-wal")
    found: list[tuple[bytes, bytes]] = []

    def stop(done: int, total: int, tokens: int) -> None:
        if done >= num_results:
            found.append((paths.progress.read_bytes(), log.read_bytes()[:-5]))
            tasks = asyncio.all_tasks()
            next(each for each in tasks if each.get_name() == "main").cancel()

    async def begin() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.set_name("main")
        file = open_requests(paths)
        try:
            await answer_file(engine, patient(), file, paths, stop)
        finally:
            file.close()

    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(begin())
    engine.close()
    if is_killed:
        data, logged = found[0]
        paths.progress.write_bytes(data)
        log.write_bytes(logged)
    return num_in(paths.progress)


def num_in(path: Path) -> int:
    """Return the number of results in a file."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        (number,) = database.execute("SELECT count(*) FROM results").fetchone()
    return int(number)


def test_results_are_in_order_and_errors_apart(directory: Path, tmp_path: Path) -> None:
    paths = paths_in(tmp_path)
    lines = [request(each) for each in range(40)]
    lines[3]["body"]["temperature"] = "hot"
    lines[30]["body"]["model"] = "another"
    write(paths.requests, lines)
    shown: list[tuple[int, int]] = []
    engine = FakeEngine(directory)
    outcome = answer(engine, paths, lambda done, total, tokens: shown.append((done, total)))
    assert outcome == Outcome(num_lines=40, num_errors=2, num_before=0)
    assert (shown[0], shown[-1]) == ((0, 40), (40, 40))
    well, wrong = read(paths.output), read(paths.errors)
    assert ids(well) == [f"line-{each}" for each in range(40) if each not in (3, 30)]
    for line in well:
        assert (line["response"]["status_code"], line["error"]) == (200, None)
        assert line["id"] == line["response"]["request_id"]
        number = int(line["custom_id"].removeprefix("line-"))
        assert line["response"]["body"]["usage"]["completion_tokens"] == 1 + number % 7
    assert [line["response"]["status_code"] for line in wrong] == [400, 404]
    assert wrong[0]["response"]["body"]["error"]["param"] == "temperature"
    assert not paths.progress.exists()


def test_requests_may_name_adapters(directory: Path, tmp_path: Path) -> None:
    """A command that continues with another content of one has begun another batch."""
    paths = paths_in(tmp_path)
    names = ("sql", "law", None)
    lines = [request(5, **({"model": name} if name else {})) for name in names]
    write(paths.requests, [{**line, "custom_id": f"{n}"} for n, line in enumerate(lines)])
    places = [write_adapter(tmp_path / name, seed) for seed, name in enumerate(("sql", "law"))]
    named = tuple(NamedAdapter(place.name, str(place)) for place in places)
    config = patient(lora_modules=named)
    outcome = answer(FakeEngine(directory, max_loras=2), paths, config=config)
    assert outcome == Outcome(num_lines=3, num_errors=0, num_before=0)
    bodies = [line["response"]["body"] for line in read(paths.output)]
    assert len({body["choices"][0]["text"] for body in bodies}) == 3
    assert [body["model"] for body in bodies[:2]] == ["sql", "law"]
    paths.output.unlink()
    file = open_requests(paths)
    begun = file.digest + b"another model or adapter"
    file.close()
    ResultsFile(paths.progress, begun).close()
    with pytest.raises(ResultsError):
        answer(FakeEngine(directory, max_loras=2), paths, config=config)


def test_each_line_is_answered_once_after_interrupts_and_torn_writes(
    directory: Path, tmp_path: Path
) -> None:
    paths = paths_in(tmp_path)
    write(paths.requests, [request(each) for each in range(100)])
    num_left = 0
    for num_results in (20, 50, 80):
        # Ten requests at once: so many may come with the one that interrupts, so many may be lost
        # with the last write, and what is on its way at the third interrupt is not all the rest.
        engine = FakeEngine(directory, max_num_seqs=2)
        left = interrupted_after(engine, paths, num_results, is_killed=True)
        assert num_left < left < 100
        assert not paths.output.exists()
        num_left = left
    outcome = answer(FakeEngine(directory), paths)
    assert outcome.num_before == num_left
    undisturbed = paths_in(tmp_path / "again")
    undisturbed.requests.parent.mkdir()
    write(undisturbed.requests, [request(each) for each in range(100)])
    answer(FakeEngine(directory), undisturbed)

    def texts(path: Path) -> list[Any]:
        return [
            (each["custom_id"], each["response"]["body"]["choices"][0]["text"])
            for each in read(path)
        ]

    assert texts(paths.output) == texts(undisturbed.output)
    assert len(texts(paths.output)) == 100


def test_what_the_server_cannot_try_now_is_tried_again(directory: Path, tmp_path: Path) -> None:
    paths = paths_in(tmp_path)
    write(paths.requests, [request(each) for each in range(5)])
    engine = FakeEngine(directory, is_ready=False)
    loops: list[asyncio.AbstractEventLoop] = []

    def mend(done: int, total: int, tokens: int) -> None:
        if not loops:
            loops.append(asyncio.get_running_loop())
            loops[0].call_later(0.01, setattr, engine, "is_ready", True)

    assert answer(engine, paths, mend).num_errors == 0
    assert len(read(paths.output)) == 5


def test_without_an_engine_the_results_so_far_are_kept(directory: Path, tmp_path: Path) -> None:
    paths = paths_in(tmp_path)
    write(paths.requests, [request(each) for each in range(5)])
    engine = FakeEngine(directory, is_ready=False)
    engine._death = EngineDeadError("it has ended")
    with pytest.raises(EngineDeadError):
        answer(engine, paths)
    assert paths.progress.exists()


def test_results_belong_to_one_file_and_one_process(directory: Path, tmp_path: Path) -> None:
    paths = paths_in(tmp_path)
    write(paths.requests, [request(each) for each in range(30)])
    interrupted_after(FakeEngine(directory), paths, 3)
    write(paths.requests, [request(each) for each in range(31)])
    with pytest.raises(ResultsError, match="another file"):
        answer(FakeEngine(directory), paths)
    name = tmp_path / "mine"
    with (
        contextlib.closing(ResultsFile(name, b"x")),
        pytest.raises(ResultsError, match="in use"),
    ):
        ResultsFile(name, b"x")


LINE = request(0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no requests"),
        ("\n \n", "has no requests"),
        ("{oops\n", "line 1: the line is not valid JSON"),
        ('{"custom_id": "a"}', "line 1: body is missing"),
        ("[1]", "line 1: the line must be a JSON object"),
        ({**LINE, "custom_id": ""}, "custom_id"),
        ({**LINE, "method": "GET"}, "method is 'GET'"),
        ({**LINE, "url": "/v1/nothing"}, "url is '/v1/nothing'"),
        ({**LINE, "body": [1]}, "body must be a JSON object"),
        ({**LINE, "body": {"stream": True}}, "leave stream out"),
        ({**LINE, "extra": 1}, "unknown field 'extra'\n"),
        ({**LINE, "urls": 1}, "unknown field 'urls'; did you mean 'url'?"),
        ({**LINE, "url": "/v1/chat/completion"}, "; did you mean '/v1/chat/completions'?"),
        ([LINE, LINE], "line 2: custom_id 'line-0' is that of an earlier line too"),
    ],
)
def test_a_file_with_an_error_is_refused_before_the_model_is_loaded(
    text: Any, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    if isinstance(text, str):
        path.write_text(text, "utf-8")
    else:
        write(path, text if isinstance(text, list) else [text])
    assert main(["batch", str(path), str(output), "--model", str(tmp_path / "no-model")]) == USAGE
    assert words in capsys.readouterr().err
    assert not output.exists()


def test_all_that_is_wrong_with_a_line_is_named_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = {"custom_ids": 3, "url": 5, "method": "PUT", "body": {"stream": 1, "background": 1}}
    write(tmp_path / "in.jsonl", [line])
    assert main(["batch", *map(str, (tmp_path / "in.jsonl", tmp_path / "out.jsonl"))]) == USAGE
    found = capsys.readouterr().err
    for words in (
        "has errors (6)",
        "custom_id is missing",
        "url: expected string, got integer",
        "unknown field 'custom_ids'; did you mean 'custom_id'?",
        "method is 'PUT'",
        "leave stream out",
        "leave background out",
    ):
        assert words in found


def test_fields_without_effect_are_named_once(tmp_path: Path) -> None:
    paths, warnings = paths_in(tmp_path), list[str]()
    lines = [request(each) for each in range(6)]
    for line in lines[2:]:
        line["body"].update({"max_token": 5, "user": "me", "best_of": 1, "x" * 300: 0})
    lines[4] = {**lines[4], "url": "/v1/embeddings", "body": {"inputs": "x", "input": "x"}}
    write(paths.requests, lines)
    open_requests(paths, warnings.append).close()
    assert warnings == [
        "line 3: body: unknown field 'max_token'; did you mean 'max_tokens'? (it has no effect)",
        f"line 3: body: unknown field {'x' * 192!r} (it has no effect)",
        "line 5: body: unknown field 'inputs'; did you mean 'input'? (it has no effect)",
    ]


@pytest.mark.parametrize(
    ("name", "words"), [("absent", "cannot be read: no such file"), (".", "cannot be read: is a")]
)
def test_requests_that_cannot_be_read_are_an_error_of_usage(
    name: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["batch", str(tmp_path / name), str(tmp_path / "out.jsonl")]) == USAGE
    assert words in capsys.readouterr().err


def test_lines_are_found_whatever_pieces_the_file_is_read_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = paths_in(tmp_path)
    lines = [request(each) for each in range(9)]
    write(paths.requests, lines)
    paths.requests.write_text("\n" + paths.requests.read_text("utf-8").strip(), "utf-8")
    for size in (1, 7, 100, 1000):
        monkeypatch.setattr("octavo.serving.batches.input_file.PIECE_BYTES", size)
        with contextlib.closing(open_requests(paths)) as file:
            found = [file.line(each).custom_id for each in range(file.num_lines)]
            assert found == ids(lines)


@pytest.mark.parametrize("option", ["--output-file", "--errors"])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        *((".", "is a directory"), ("/", "is a directory"), ("", "is a directory")),
        *(("made", "is a directory"), ("pipe", "no regular file"), ("/dev/null", "no regular")),
    ],
)
def test_outputs_that_are_no_files_are_refused_before_the_model_is_loaded(
    option: str, name: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "in.jsonl", [LINE])
    (tmp_path / "made").mkdir()
    os.mkfifo(tmp_path / "pipe")
    named = str(tmp_path / name) if name in ("made", "pipe") else name
    outputs = {"--output-file": str(tmp_path / "out.jsonl"), option: named}
    arguments = [each for pair in outputs.items() for each in pair]
    for more in ([], ["--overwrite"]):
        assert main(["batch", "--input-file", str(path), *arguments, *more]) == USAGE
        assert words in capsys.readouterr().err


def test_an_output_is_replaced_only_if_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, output = write(tmp_path / "in.jsonl", [LINE]), tmp_path / "out.jsonl"
    output.write_text("precious", "utf-8")
    assert main(["batch", str(path), str(output)]) == USAGE
    assert "--overwrite" in capsys.readouterr().err
    assert output.read_text("utf-8") == "precious"
    assert main(["batch", str(path)]) == USAGE
    assert main(["batch", str(path), str(path)]) == USAGE
